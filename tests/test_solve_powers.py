"""Powers of two: exact on every value, never worse than doing nothing, nearly as good as real scales."""

from __future__ import annotations

import math

import pytest
import torch
from graphs import ZOO, Graph, chain, generator, powers, scaled, weight

from equinorm.objective import Objective
from equinorm.solve import Solution, round_to_powers, solve


def rounded(graph: Graph, p: float = 2.0) -> tuple[Solution, Solution]:
    symmetries = graph.done()
    objective = Objective(symmetries, graph.tensors, p)
    real = solve(objective)
    return real, round_to_powers(objective, real, symmetries, graph.tensors)


def applied(graph: Graph, found: Solution) -> Graph:
    """The tensors in their own precision after scaling, checked to have lost nothing."""
    assert found.exponents is not None
    torch.testing.assert_close(found.log_scales, found.exponents.double() * math.log(2.0))
    exact = {name: tensor.double().clone() for name, tensor in graph.tensors.items()}
    k = found.exponents
    for scaling in graph.scalings:
        change = scaling.plus.sign() * k[scaling.plus.abs()] - scaling.minus.sign() * k[scaling.minus.abs()]
        view = scaling.view(exact[scaling.parameter])
        view.copy_(torch.ldexp(view, change.expand(scaling.size)))
    tensors = {name: tensor.to(graph.tensors[name].dtype) for name, tensor in exact.items()}
    for name, tensor in tensors.items():
        assert torch.equal(tensor.double(), exact[name]), name
    return Graph(tensors, graph.scalings, graph.groups, graph.free)


def unbalanced(name: str, dtype: torch.dtype, size: int = 6) -> Graph:
    graph = ZOO[name](generator())
    x = torch.randint(-size, size + 1, (graph.free + 1,), generator=generator(3)).double() * math.log(2.0)
    x[0] = 0
    tensors = {key: tensor.to(dtype) for key, tensor in scaled(graph, x).items()}
    return Graph(tensors, graph.scalings, graph.groups, graph.free)


def phi(graph: Graph, p: float = 2.0, x: torch.Tensor | None = None) -> float:
    return float(powers(graph, torch.zeros(graph.free + 1, dtype=torch.float64) if x is None else x, p))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64))
@pytest.mark.parametrize("name", ZOO)
def test_recovers_most_of_the_decrease(name: str, dtype: torch.dtype) -> None:
    graph = unbalanced(name, dtype)
    real, found = rounded(graph)
    after = phi(applied(graph, found))
    assert phi(graph) - after >= 0.9 * (phi(graph) - phi(graph, x=real.log_scales))
    assert not found.blocked.any()


@pytest.mark.parametrize("p", (0.5, 2.0, 3.0))
@pytest.mark.parametrize("name", ZOO)
def test_never_above_the_start(name: str, p: float) -> None:
    balanced = ZOO[name](generator())
    x = solve(Objective(balanced.done(), balanced.tensors, p)).log_scales
    for graph in (balanced, Graph(scaled(balanced, x), balanced.scalings, balanced.groups, balanced.free)):
        _, found = rounded(graph, p)
        assert phi(applied(graph, found), p) <= phi(graph, p) * (1 + 1e-12)


@pytest.mark.parametrize("name", sorted(set(ZOO) - {"recurrent", "mirrored"}))  # those descend on a majoriser
def test_no_single_exponent_could_do_better(name: str) -> None:
    graph = unbalanced(name, torch.float32)
    _, found = rounded(graph)
    best = phi(graph, x=found.log_scales)
    for v in range(1, graph.free + 1):
        for change in (-1, 1):
            x = found.log_scales.clone()
            x[v] += change * math.log(2.0)
            assert phi(graph, x=x) >= best * (1 - 1e-11)


@pytest.mark.parametrize("name", ZOO)
def test_float16_is_exact_at_both_ends_of_its_range(name: str) -> None:
    graph = unbalanced(name, torch.float16)
    for tensor in graph.tensors.values():
        tensor.clamp_(-60000, 60000)
        tensor.view(-1)[0] = 60000.0
        tensor.view(-1)[-1] = 2.0**-24
    _, found = rounded(graph)
    assert phi(applied(graph, found)) <= phi(graph)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32, torch.float64))
@pytest.mark.parametrize("end", ("overflow", "subnormal"))
def test_a_value_at_the_end_of_its_precision_blocks_its_channel_only(dtype: torch.dtype, end: str) -> None:
    g, info = generator(), torch.finfo(dtype)
    up, value = (2**4, info.max) if end == "overflow" else (2**-4, info.smallest_normal * (1 + info.eps))
    graph = chain([(weight(g, 3, 4) / up).to(dtype), (weight(g, 2, 3) * up).to(dtype)])
    bias = torch.tensor([1.0, value, 0.0], dtype=torch.float64).to(dtype)
    graph.bias(bias, torch.arange(1, 4))
    real, found = rounded(graph)
    assert found.blocked.tolist() == [False, False, True, False]
    assert found.exponents is not None
    assert (found.exponents != 0).tolist() == [False, True, False, True]
    applied(graph, found)
    alone = round_to_powers(
        Objective(graph.done(), graph.tensors, 2.0), real, graph.done(), graph.tensors, biases=False
    )
    assert not alone.blocked.any()


def test_largest_entries() -> None:
    graph = unbalanced("chain", torch.float32)
    real, found = rounded(graph, math.inf)
    applied(graph, found)
    objective = Objective(graph.done(), graph.tensors, math.inf)
    assert objective.value(found.log_scales) <= 2 * objective.value(real.log_scales)
