"""Every solver reaches the minimum that independent methods find, from any start on the orbit."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import scipy.optimize
import torch
from graphs import ZOO, Graph, chain, generator, powers, random_chain, scaled
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equinorm.errors import ArgumentError
from equinorm.objective import Objective
from equinorm.solve import Solution, Status, solve

few = settings(max_examples=8, deadline=None, derandomize=True)


def solved(graph: Graph, p: float = 2.0, **options: object) -> Solution:
    return solve(Objective(graph.done(), graph.tensors, p), **options)  # type: ignore[arg-type]


def oracle(graph: Graph, p: float) -> Tensor:
    """scipy's L-BFGS on log phi."""

    def value(free: object) -> tuple[float, object]:
        x = torch.cat([torch.zeros(1, dtype=torch.float64), torch.tensor(free)]).requires_grad_()
        log = powers(graph, x, p).log()
        (gradient,) = torch.autograd.grad(log, x)
        return float(log.detach()), gradient[1:].numpy()

    start = torch.zeros(graph.free, dtype=torch.float64).numpy()
    options = {"maxiter": 20000, "maxfun": 40000, "ftol": 1e-16, "gtol": 1e-11, "maxcor": 50}
    found = scipy.optimize.minimize(value, start, jac=True, method="L-BFGS-B", options=options)
    return torch.cat([torch.zeros(1, dtype=torch.float64), torch.tensor(found.x)])


@pytest.mark.parametrize("method", ("cycle", "multilevel"))
@pytest.mark.parametrize("p", (0.7, 2.0, 3.0))
@pytest.mark.parametrize("name", ZOO)
def test_the_minimum_is_that_of_an_independent_solver(name: str, p: float, method: str) -> None:
    graph = ZOO[name](generator())
    found = solved(graph, p, method=method, tol=1e-10)
    assert found.status is Status.CONVERGED
    assert not found.still.any() and not found.capped.any()
    best = oracle(graph, p)
    torch.testing.assert_close(found.log_scales, best, rtol=0, atol=2e-5)
    assert powers(graph, found.log_scales, p) <= powers(graph, best, p) * (1 + 1e-12)


@pytest.mark.parametrize("method", ("cycle", "multilevel"))
@given(seed=st.integers(0, 10**6), name=st.sampled_from(sorted(ZOO)), p=st.sampled_from((0.5, 2.0, 4.0)))
@few
def test_phi_never_increases(method: str, seed: int, name: str, p: float) -> None:
    graph = ZOO[name](generator(seed))
    energies = [energy for _, _, energy in solved(graph, p, method=method, cycles=12).history]
    for before, after in pairwise(energies):
        assert after <= before + 1e-12 * max(1.0, abs(before))


@given(seed=st.integers(0, 10**6), name=st.sampled_from(sorted(ZOO)))
@few
def test_any_start_on_the_orbit_ends_at_the_same_weights(seed: int, name: str) -> None:
    graph = ZOO[name](generator(seed))
    x = torch.randn(graph.free + 1, generator=generator(seed), dtype=torch.float64) * 3
    x[0] = 0
    ends = []
    for start in (graph.tensors, scaled(graph, x)):
        other = Graph({k: v.double() for k, v in start.items()}, graph.scalings, graph.groups, graph.free)
        found = solved(other, tol=1e-11)
        assert found.converged
        ends.append(scaled(other, found.log_scales))
    for key in graph.tensors:
        torch.testing.assert_close(ends[0][key], ends[1][key], rtol=1e-7, atol=0)


@given(seed=st.integers(0, 10**6), p=st.sampled_from((0.5, 1.0, 2.0, 3.0)), cycles=st.integers(0, 4))
@few
def test_cycle_is_algorithm_1_of_the_paper(seed: int, p: float, cycles: int) -> None:
    graph = ZOO["chain"](generator(seed))
    weights = [w.double().T.clone() for w in graph.tensors.values()]  # the paper's W_k is [in, out]
    for _ in range(cycles):
        for k in range(1, len(weights)):
            for i in range(weights[k].shape[0]):
                left = weights[k - 1][:, i].abs().pow(p).sum() ** (1 / p)
                right = weights[k][i, :].abs().pow(p).sum() ** (1 / p)
                d = (right / left) ** 0.5
                weights[k - 1][:, i] *= d
                weights[k][i, :] /= d
    found = solved(graph, p, method="cycle", cycles=cycles)
    assert found.cycles == cycles
    for ours, theirs in zip(scaled(graph, found.log_scales).values(), weights, strict=True):
        torch.testing.assert_close(ours.T, theirs, rtol=1e-12, atol=0)


def test_asymmetric_weights_are_equation_4_times_the_paper_factor() -> None:
    """Section "Asymmetric scaling": d is multiplied by (c_{k+1} / c_k)^(1 / 2p)."""
    graph, p = ZOO["chain"](generator()), 3.0
    symmetries, c = graph.done(), (0.5, 2.0)
    two = chain(list(graph.tensors.values())[:2])
    plain = solve(Objective(two.done(), two.tensors, p), cycles=1)
    logs = {f"w{k}": math.log(value) for k, value in enumerate(c)}
    weighted = solve(Objective(two.done(), two.tensors, p, logs), cycles=1)
    change = (weighted.log_scales - plain.log_scales)[1:]
    torch.testing.assert_close(change, torch.full_like(change, math.log(c[1] / c[0]) / (2 * p)))
    assert symmetries.num_free > two.free


@pytest.mark.parametrize("depth", (5, 21, 51))
def test_multilevel_needs_few_cycles_at_any_depth(depth: int) -> None:
    found = solved(random_chain(depth, 60))
    assert found.status is Status.CONVERGED
    assert found.residual <= 1e-8
    assert found.cycles <= 12


@pytest.mark.parametrize("method", ("cycle", "multilevel"))
@pytest.mark.parametrize("cycles", (0, 1, 2, 5))
def test_cycles_are_done_exactly(method: str, cycles: int) -> None:
    found = solved(random_chain(12, 10), method=method, cycles=cycles)
    assert found.cycles == cycles
    assert found.status is Status.CYCLES_DONE
    assert found.history[-1][0] == cycles


@pytest.mark.parametrize("p", (0.5, 2.0, 20.0))
@pytest.mark.parametrize("name", sorted(ZOO))
def test_extreme_magnitudes_are_balanced(name: str, p: float) -> None:
    graph = ZOO[name](generator())
    for k, tensor in enumerate(graph.tensors.values()):
        tensor *= 1e30 if k % 2 else 1e-30
    found = solved(graph, p)
    assert torch.isfinite(found.log_scales).all()
    assert found.residual <= 1e-8


def test_a_second_solve_does_nothing() -> None:
    graph = ZOO["learnt shortcuts"](generator())
    x = solved(graph, tol=1e-11).log_scales
    again = Graph(scaled(graph, x), graph.scalings, graph.groups, graph.free)
    found = solved(again)
    assert found.cycles == 0 and not found.log_scales.any()


def test_nothing_free() -> None:
    graph = chain([torch.ones(2, 3)])
    found = solved(graph)
    assert found.status is Status.NOTHING_FREE and found.converged and found.residual == 0
    assert found.log_scales.tolist() == [0.0]


@pytest.mark.parametrize(
    "options",
    ({"method": "newton"}, {"cycles": -1}, {"tol": 0.0}, {"tol": math.nan}, {"method": "cycle-parallel"}),
)
def test_wrong_arguments_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        solved(ZOO["chain"](generator()), **options)


def test_parallel_is_near_the_exact_coefficient_and_exact_elsewhere() -> None:
    graph = ZOO["learnt shortcuts"](generator())
    found, exact = solved(graph, method="cycle-parallel"), solved(graph)
    assert found.status is Status.APPROXIMATED and found.converged
    assert found.residual > 1e-3 and "residual is below" not in found.status.value
    before = powers(graph, torch.zeros(graph.free + 1, dtype=torch.float64), 2.0)
    after, best = (powers(graph, s.log_scales, 2.0) for s in (found, exact))
    assert best < after < before
