"""Law 8: the free scales are exactly the rescalings along which no output moves; and law 1 along each of them."""

import copy

import pytest
import torch
from function_law import outputs, unbalance
from nullity import nullity, randomize
from small_conv_nets import CONVS
from small_derived_nets import DERIVED
from small_memory_nets import MEMORY, UNDIFFERENTIABLE
from small_nets import MLPS, Row
from small_scatter_nets import PLACES, PLACES_UNDIFFERENTIABLE, RECURRENT
from small_token_nets import TOKENS

import equinorm

ROWS = [*MLPS, *CONVS, *TOKENS, *MEMORY, *DERIVED, *PLACES, *RECURRENT]
COUNTED_BY_HAND = [*UNDIFFERENTIABLE, *PLACES_UNDIFFERENTIABLE]


SEEDS = 20


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_free_scales_are_the_nullity_of_the_jacobian(row: Row) -> None:
    torch.manual_seed(0)
    found = equinorm.symmetries(row.build().double(), row.inputs(0))
    assert found.num_free == row.free, str(found)
    expected, least = row.free + row.missed, None
    for seed in range(SEEDS):  # a dead or a never resting neuron adds to it: generic is the least
        measured = nullity(randomize(row.build(), seed), row.inputs)
        assert measured >= expected
        least = measured if least is None else min(least, measured)
        if least == expected:
            return
    raise AssertionError(f"expected {row.free} + {row.missed} ({row.why}), the Jacobian has nullity {least}")


@pytest.mark.parametrize("row", COUNTED_BY_HAND, ids=lambda row: row.name)
def test_free_scales_where_autograd_does_not_follow(row: Row) -> None:
    found = equinorm.symmetries(row.build().double(), row.inputs(0))
    assert found.num_free == row.free, str(found)


@pytest.mark.parametrize("row", [*ROWS, *COUNTED_BY_HAND], ids=lambda row: row.name)
@pytest.mark.parametrize("training", (False, True), ids=("eval", "train"))
def test_random_scales_keep_the_function(row: Row, training: bool) -> None:
    net, x = randomize(row.build()), row.inputs(0)
    moved = copy.deepcopy(net)
    unbalance(moved, equinorm.symmetries(net, x))
    before, after = (list(outputs(copy.deepcopy(model), x, training)) for model in (net, moved))
    for a, b in zip(before, after, strict=True):
        assert float((a - b).abs().max()) <= 1e-9 * float(a.abs().max())
