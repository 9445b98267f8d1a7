"""Scales without a minimum, scales that are held back, and p = inf."""

from __future__ import annotations

import math

import pytest
import torch
from graphs import ZOO, Graph, chain, entries, generator, powers, scaled, weight

from equinorm.objective import Objective
from equinorm.solve import Solution, Status, solve

METHODS = ("cycle", "multilevel")


def solved(graph: Graph, p: float = 2.0, **options: object) -> Solution:
    return solve(Objective(graph.done(), graph.tensors, p), **options)  # type: ignore[arg-type]


# -- when the minimum exists ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_dead_neurons_and_what_hangs_on_them_stay(method: str) -> None:
    g = generator()
    w1, w2, w3 = weight(g, 5, 4), weight(g, 5, 5), weight(g, 3, 5)
    w1[0] = 0  # channel 1 is fed by nothing
    w2[:, 1] = 0  # channel 2 feeds nothing
    w2[2] = 0  # channel 8 is fed by nothing ...
    w2[3] = 0
    w2[3, 0] = 1.0  # ... and channel 9 by a dead channel only
    graph = chain([w1, w2, w3])
    found = solved(graph, method=method)
    assert found.converged
    assert found.still.nonzero().flatten().tolist() == [1, 2, 8, 9]
    assert not found.log_scales[found.still].any()
    alive = chain([w1[2:], w2[[0, 1, 4]][:, 2:], w3[:, [0, 1, 4]]])
    expected = solved(alive).log_scales
    torch.testing.assert_close(found.log_scales[[0, 3, 4, 5, 6, 7, 10]], expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("p", (2.0, math.inf))
def test_an_all_zero_layer_leaves_everything_still(p: float) -> None:
    g = generator()
    found = solved(chain([weight(g, 4, 3), torch.zeros(4, 4), weight(g, 2, 4)]), p)
    assert found.status is Status.NOTHING_FREE
    assert found.still[1:].all() and not found.log_scales.any()


def test_a_zero_affine_weight_is_no_producer() -> None:
    g, graph = generator(), Graph()
    ids = graph.group(4)
    affine = torch.tensor([1.0, 0.0, 2.0, 0.0])
    graph.add(affine, ids, torch.zeros(1, dtype=torch.int64))
    graph.linear(weight(g, 3, 4), None, ids)
    found = solved(graph)
    assert found.still.tolist() == [False, False, True, False, True]
    assert found.converged


@pytest.mark.parametrize("name", ("producer", "consumer"))
def test_one_side_alone_has_no_minimum(name: str) -> None:
    g, graph = generator(), Graph()
    ids = graph.group(4)
    graph.linear(weight(g, 4, 4), ids if name == "producer" else None, None if name == "producer" else ids)
    assert solved(graph).status is Status.NOTHING_FREE


@pytest.mark.parametrize("method", METHODS)
def test_a_detached_loop_is_balanced_around_its_mean(method: str) -> None:
    g, graph = generator(), Graph()
    first, second = graph.group(4), graph.group(3)
    main = graph.group(2)
    graph.linear(weight(g, 3, 4), second, first)
    graph.linear(weight(g, 4, 3), first, second)
    graph.linear(weight(g, 2, 3), main, None)
    graph.linear(weight(g, 3, 2), None, main)
    found = solved(graph, method=method, tol=1e-11)
    assert found.converged and not found.still.any()
    assert abs(float(found.log_scales[1:8].mean())) < 1e-12
    start = torch.randn(graph.free + 1, generator=g, dtype=torch.float64)
    start[0] = 0
    again = Graph(scaled(graph, start), graph.scalings, graph.groups, graph.free)
    ends = scaled(graph, found.log_scales), scaled(again, solved(again, tol=1e-11).log_scales)
    for key in graph.tensors:
        torch.testing.assert_close(ends[0][key].abs(), ends[1][key].abs(), rtol=1e-8, atol=0)


def test_a_branch_that_only_leaves_a_loop_is_left_out() -> None:
    """Cells between components would be driven to zero for ever: they take no part, but count in the norm."""
    g, graph = generator(), Graph()
    ids, branch = graph.group(4), graph.group(4)
    graph.linear(weight(g, 4, 3), ids, None)
    graph.linear(weight(g, 3, 4), None, ids)
    out = weight(g, 4, 4)
    graph.linear(out, branch, ids)
    found = solved(graph)
    assert found.still.nonzero().flatten().tolist() == [5, 6, 7, 8]
    rest = chain([graph.tensors["w0"], graph.tensors["w1"]])
    torch.testing.assert_close(found.log_scales[:5], solved(rest).log_scales)
    objective = Objective(graph.done(), graph.tensors, 2.0)
    assert objective.value(found.log_scales) == pytest.approx(float(powers(graph, found.log_scales, 2.0)))


def test_signed_loops_have_a_minimum_without_the_pinned_node() -> None:
    g, graph = generator(), Graph()
    ids = graph.group(3)
    graph.linear(weight(g, 3, 3), ids, -ids)
    graph.linear(weight(g, 3, 3), -ids, ids)
    found = solved(graph, tol=1e-10)
    assert found.converged and not found.still.any()
    moved = found.log_scales + torch.tensor([0, 1e-3, 1e-3, 1e-3], dtype=torch.float64)
    assert powers(graph, found.log_scales, 2.0) < powers(graph, moved, 2.0)


# -- bounds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_scale_stops_where_it_would_overflow_a_bias(method: str) -> None:
    g = generator()
    w1, w2 = weight(g, 4, 3) * 1e-3, weight(g, 3, 4) * 1e3
    graph = chain([w1, w2])
    bias = torch.tensor([1.0, 3e38, 1e37, 0.0])
    graph.bias(bias, torch.arange(1, 5))
    found = solved(graph, method=method)
    assert found.status is Status.CONVERGED
    assert found.capped.tolist() == [False, False, True, True, False]
    moved = scaled(graph, found.log_scales)["w2"].float()
    assert torch.isfinite(moved).all()
    free = solved(chain([w1, w2])).log_scales
    torch.testing.assert_close(found.log_scales[[1, 4]], free[[1, 4]])


def test_a_scale_stops_where_it_would_overflow_a_weight() -> None:
    """Balancing norms of very different widths can push one entry beyond float16."""
    w1 = torch.full((1, 1), 3e4, dtype=torch.float16)
    w2 = torch.full((1, 1), 6e4, dtype=torch.float16)
    graph = chain([w1, w2])
    objective = Objective(graph.done(), graph.tensors, 2.0, {"w0": -10.0})
    found = solve(objective)
    assert found.capped[1]
    moved = scaled(graph, found.log_scales)
    assert all(torch.isfinite(tensor.half()).all() for tensor in moved.values())
    assert 0 < found.log_scales[1] <= math.log(65504 / 3e4)


@pytest.mark.parametrize("p", (0.02, 0.3, 2.0))
@pytest.mark.parametrize("name", ZOO)
def test_no_weight_overflows_and_none_is_held_far_from_it(name: str, p: float) -> None:
    """Penalties that differ by layer ask for scales beyond float16; norms of many entries must not count as entries."""
    graph = ZOO[name](generator())
    tensors = {key: tensor.half() for key, tensor in graph.tensors.items()}
    graph = Graph(tensors, graph.scalings, graph.groups, graph.free)
    penalties = {key: 30.0 * p * (-1) ** k for k, key in enumerate(tensors)}
    found = solve(Objective(graph.done(), tensors, p, penalties))
    largest = {key: float(t.abs().max()) for key, t in scaled(graph, found.log_scales).items()}
    assert all(top <= 65504 * (1 + 1e-9) for top in largest.values()), largest
    if (
        found.capped.any() and name != "mirrored"
    ):  # there both sides of a cell move together, and are clamped twice
        assert max(largest.values()) > 65504 / 8


def test_bounds_of_the_caller_hold() -> None:
    graph = ZOO["learnt shortcuts"](generator())
    n = graph.free + 1
    box = torch.full((n,), 0.1, dtype=torch.float64)
    for method in METHODS:
        found = solved(graph, method=method, lower=-box, upper=box)
        assert found.converged and found.capped.any()
        assert found.log_scales.abs().max() <= 0.1
        energies = [energy for _, _, energy in found.history]
        assert energies == sorted(energies, reverse=True)


# -- p = inf -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ZOO)
def test_maxima_are_equalised_and_stay(name: str, method: str) -> None:
    graph = ZOO[name](generator())
    found = solved(graph, math.inf, method=method)
    assert found.status is Status.CONVERGED
    after = Graph(scaled(graph, found.log_scales), graph.scalings, graph.groups, graph.free)
    zero = torch.zeros(graph.free + 1, dtype=torch.float64)
    largest = [max(float(v.amax()) for _, v in entries(graph, x)) for x in (zero, found.log_scales)]
    assert largest[1] <= largest[0] * (1 + 1e-12)
    objective = Objective(after.done(), after.tensors, math.inf)
    assert float(objective.imbalance(zero).abs().max()) <= 1e-7
    again = solved(after, math.inf, method=method, tol=1e-7)
    assert again.cycles == 0 and not again.log_scales.any()
