"""The objective is phi by its definition, whatever the magnitudes, shapes and signs."""

from __future__ import annotations

import math

import pytest
import torch
from graphs import ZOO, Graph, chain, entries, generator, powers, weight

from equinorm.errors import ArgumentError
from equinorm.objective import Objective
from equinorm.solve import solve

PS = (0.5, 1.0, 2.0, 3.5)


def somewhere(graph: Graph, spread: float = 0.5) -> torch.Tensor:
    x = torch.randn(graph.free + 1, generator=generator(7), dtype=torch.float64) * spread
    x[0] = 0
    return x


@pytest.mark.parametrize("p", PS)
@pytest.mark.parametrize("name", ZOO)
def test_energy_is_the_log_of_phi(name: str, p: float) -> None:
    graph = ZOO[name](generator())
    weights = {key: 0.1 * (i + 1) for i, key in enumerate(graph.tensors)}
    found = Objective(graph.done(), graph.tensors, p, {k: math.log(c) for k, c in weights.items()})
    x = somewhere(graph)
    assert found.value(x) == pytest.approx(float(powers(graph, x, p, weights)), rel=1e-12)
    assert sum(map(math.exp, found.energies(x).values())) == pytest.approx(found.value(x), rel=1e-12)


@pytest.mark.parametrize("p", PS)
@pytest.mark.parametrize("name", ZOO)
def test_both_sides_are_the_parts_of_the_gradient(name: str, p: float) -> None:
    graph = ZOO[name](generator())
    found = Objective(graph.done(), graph.tensors, p)
    x = somewhere(graph).requires_grad_()
    (gradient,) = torch.autograd.grad(powers(graph, x, p), x)
    x = x.detach()
    for number, group in enumerate(graph.groups):
        left, right, within = found.balance(number, x)
        total = left.exp() - right.exp()
        if within is not None:
            total += within[0].exp() - within[1].exp()
        torch.testing.assert_close(p * total, gradient[list(group.variables)], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ZOO)
def test_largest_entry(name: str) -> None:
    graph = ZOO[name](generator())
    x = somewhere(graph)
    largest = max(float(values.amax()) for _, values in entries(graph, x))
    assert Objective(graph.done(), graph.tensors, math.inf).value(x) == pytest.approx(largest, rel=1e-12)


@pytest.mark.parametrize("p", (0.5, 2.0, 20.0))
@pytest.mark.parametrize("magnitude", (1e30, 1e-30))
def test_extreme_magnitudes_neither_overflow_nor_vanish(p: float, magnitude: float) -> None:
    for name in ("convolutions", "concatenated", "recurrent"):
        graph = ZOO[name](generator())
        usual = Objective(graph.done(), graph.tensors, p)
        extreme = {key: (tensor * magnitude).contiguous() for key, tensor in graph.tensors.items()}
        found = Objective(graph.done(), extreme, p)
        x = somewhere(graph)
        shift = p * math.log(magnitude)
        assert found.energy(x) == pytest.approx(usual.energy(x) + shift, rel=1e-6, abs=1e-5)
        torch.testing.assert_close(found.imbalance(x), usual.imbalance(x), rtol=1e-5, atol=1e-5)


def test_exact_logarithms_where_powers_leave_float64() -> None:
    w = torch.tensor([[1e30, 1e-30], [1e-38, 1e-30]])
    graph = chain([torch.eye(2), w, torch.eye(2)])
    found = Objective(graph.done(), graph.tensors, 20.0)
    left = found.balance(1, found.start()).left
    logs = w.double().log() * 20
    torch.testing.assert_close(left, logs.logsumexp(1))
    right = found.balance(0, found.start()).right
    torch.testing.assert_close(right, logs.logsumexp(0))


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float64))
def test_other_precisions_are_read_exactly(dtype: torch.dtype) -> None:
    g = generator()
    graph = chain([weight(g, 5, 4).to(dtype), weight(g, 3, 5).to(dtype)])
    x = somewhere(graph)
    found = Objective(graph.done(), graph.tensors, 2.0)
    assert found.value(x) == pytest.approx(float(powers(graph, x, 2.0)), rel=1e-13)


@pytest.mark.parametrize("bad", (math.nan, math.inf, -math.inf))
def test_weights_that_are_not_numbers_are_refused_by_name(bad: float) -> None:
    for name in ("chain", "convolutions"):
        graph = ZOO[name](generator())
        graph.tensors["w2"].flatten()[1] = bad
        with pytest.raises(ArgumentError, match="w2"):
            Objective(graph.done(), graph.tensors, 2.0)


@pytest.mark.parametrize("p", (0.0, -1.0, math.nan))
def test_p_must_be_positive(p: float) -> None:
    graph = ZOO["chain"](generator())
    with pytest.raises(ArgumentError, match="p must be"):
        Objective(graph.done(), graph.tensors, p)


def test_a_weight_larger_than_a_chunk_is_read_in_pieces() -> None:
    g = generator()
    big = torch.randn(1500, 1400, generator=g)
    graph = chain([torch.randn(1400, 2, generator=g), big, torch.randn(2, 1500, generator=g)])
    x = somewhere(graph)
    found = Objective(graph.done(), graph.tensors, 2.0)
    assert found.value(x) == pytest.approx(float(powers(graph, x, 2.0)), rel=1e-12)
    energies = found.balance(1, x).left
    scaled = big.double() * torch.exp(x[1401:].unsqueeze(1) - x[1:1401])
    torch.testing.assert_close(energies, scaled.square().sum(1).log())


@pytest.mark.parametrize("p", (2.0, math.inf))
def test_cells_larger_than_a_chunk_are_read_in_pieces(p: float) -> None:
    g = generator()
    graph = chain([torch.randn(2, 900_000, generator=g), torch.randn(700_000, 2, generator=g)])
    graph.linear(torch.randn(1, 600_000, generator=g), None, None)
    found = Objective(graph.done(), graph.tensors, p)
    direct = torch.cat([values.flatten() for _, values in entries(graph, found.start())])
    expected = direct.amax() if math.isinf(p) else direct.pow(p).sum()
    assert found.value(found.start()) == pytest.approx(float(expected), rel=1e-12)


def test_nothing_reduces_to_an_exact_float32_copy() -> None:
    graph = ZOO["chain"](generator())
    found = Objective(graph.done(), graph.tensors, 2.0)
    for block, tensor in list(zip(found.blocks, graph.tensors.values(), strict=True))[1:-1]:
        assert block.values.dtype == torch.float32
        assert torch.equal(block.values[0], tensor.abs())


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("name", ZOO)
def test_reading_leaves_the_weights_alone(name: str, dtype: torch.dtype) -> None:
    graph = ZOO[name](generator())
    tensors = {key: tensor.to(dtype) for key, tensor in graph.tensors.items()}
    before = {key: tensor.clone() for key, tensor in tensors.items()}
    solve(Objective(graph.done(), tensors, 2.0))
    for key, tensor in tensors.items():
        assert torch.equal(tensor, before[key])


def test_flattened_channels_are_reduced_to_one_column_each() -> None:
    graph = ZOO["convolutions"](generator())
    found = Objective(graph.done(), graph.tensors, 2.0)
    assert found.blocks[-1].values.shape == (1, 1, 8)


@pytest.mark.parametrize("p", (0.02, 2.0, math.inf))
@pytest.mark.parametrize("name", ZOO)
def test_magnitudes_bound_the_entries(name: str, p: float) -> None:
    """From above, and not beyond the largest of them, however far above a norm is for small p."""
    graph = ZOO[name](generator())
    found = Objective(graph.done(), graph.tensors, p)
    assert found.blocks
    for block in found.blocks:
        top = float(graph.tensors[block.parameter].abs().max())
        assert block.largest == pytest.approx(top, rel=1e-6)
        bound = block.magnitudes()
        assert float(bound.values.max()) * math.exp(bound.log_unit) <= top * (1 + 1e-6)
        if block.values.shape == graph.tensors[block.parameter].unsqueeze(0).shape:
            torch.testing.assert_close(
                bound.values.double() * math.exp(bound.log_unit),
                block.values.double() * math.exp(block.log_unit),
            )
