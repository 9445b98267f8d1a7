"""From an objective to the scales of minimal norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..objective import Objective
from .attained import Attained, attained
from .bounds import bounds, tightened
from .cycle import cycle
from .multilevel import multilevel
from .parallel import cycle_parallel, parallel_residual
from .powers import round_to_powers
from .problem import Problem
from .solution import Solution, Status

__all__ = ["METHODS", "Method", "Solution", "Status", "round_to_powers", "solve"]


@dataclass(frozen=True)
class Method:
    """How to iterate, from x and for a number of cycles: yields (cycles done, x) wherever it may stop."""

    run: Callable[[Problem, Tensor, int], Iterator[tuple[int, Tensor]]]
    residual: Callable[[Problem, Tensor], float]  # what it brings to zero
    most: int  # cycles, when their number is left open
    success: Status = Status.CONVERGED


METHODS = {
    "multilevel": Method(multilevel, Problem.residual, 1_000),
    "cycle": Method(cycle, Problem.residual, 10_000),
    "cycle-parallel": Method(cycle_parallel, parallel_residual, 1_000, Status.APPROXIMATED),
}
ROUNDS = 5  # of solving again with tighter bounds where a rescaled weight would overflow
HALVINGS = 20


def solve(
    objective: Objective,
    method: str = "multilevel",
    cycles: int | None = None,
    tol: float = 1e-8,
    lower: Tensor | None = None,
    upper: Tensor | None = None,
) -> Solution:
    """The log-scales that minimise the norm, from the weights as they are.

    ``cycles=N`` does exactly N (a double sweep of "multilevel" is two); otherwise iterate until the residual
    max |R - L| / (R + L) over live free scales is at most ``tol``. ``lower`` and ``upper`` are further bounds
    by variable; no bias and no weight ever overflows its precision.
    """
    if method not in METHODS:
        raise ArgumentError(f"solver must be one of {', '.join(map(repr, METHODS))}, not {method!r}")
    if cycles is not None and cycles < 0:
        raise ArgumentError(f"cycles must not be negative, not {cycles}")
    if not tol > 0:
        raise ArgumentError(f"tol must be a positive number, not {tol!r}")
    found = attained(objective)
    low, high = bounds(objective)
    if lower is not None:
        low[1:] = torch.maximum(low, lower)[1:]
    if upper is not None:
        high[1:] = torch.minimum(high, upper)[1:]
    for _ in range(ROUNDS):
        problem = Problem(found.objective, found.live, low, high)
        solution = _run(problem, found, METHODS[method], cycles, tol)
        tight = tightened(objective, solution.log_scales, low, high)
        if tight is None:
            return solution
        low, high = tight
    return _held_back(objective, problem, solution, low, high)


def _run(problem: Problem, found: Attained, method: Method, cycles: int | None, tol: float) -> Solution:
    x = problem.clamp(problem.objective.start())
    done, residual = 0, method.residual(problem, x) if problem.live.any() else 0.0
    history = [(0, residual, problem.objective.energy(x))]
    stalled = False
    if problem.live.any() and (cycles is not None or residual > tol):
        before = start = x
        for done, x in method.run(problem, start, method.most if cycles is None else cycles):
            residual = method.residual(problem, x)
            history.append((done, residual, problem.objective.energy(x)))
            stalled = torch.equal(before, x)
            if cycles is None and (residual <= tol or stalled):
                break
            before = x.clone()
    x = _anchored(problem, found, x)
    still = ~problem.live
    still[0] = False
    capped, blocked = problem.capped(x), torch.zeros_like(still)
    if not problem.live.any():
        status = Status.NOTHING_FREE
    elif capped[problem.live].all():
        status = Status.HELD_BACK  # a residual over no scale says nothing
    elif residual <= tol:
        status = method.success
    elif cycles is not None:
        status = Status.CYCLES_DONE
    else:
        status = Status.STALLED if stalled and done < method.most else Status.NOT_CONVERGED
    return Solution(x, done, problem.residual(x), status, tuple(history), still, capped, blocked)


def _anchored(problem: Problem, found: Attained, x: Tensor) -> Tensor:
    """Components apart from the pinned node have a free common scale: its mean becomes 0, within bounds."""
    x = x.clone()
    for signs in found.loose:
        up, down = problem.upper - x, problem.lower - x
        most = torch.cat([up[signs > 0], -down[signs < 0]]).amin()
        least = torch.cat([down[signs > 0], -up[signs < 0]]).amax()
        shift = torch.minimum(torch.maximum(-(signs @ x) / signs.abs().sum(), least), most)
        x += signs * shift
    return x


def _held_back(
    objective: Objective, problem: Problem, solution: Solution, low: Tensor, high: Tensor
) -> Solution:
    """Give up optimality for what still overflows: clamp to the bounds, or go only a part of the way."""
    x = solution.log_scales
    for _ in range(ROUNDS):
        x = torch.minimum(torch.maximum(x, low), high)
        tight = tightened(objective, x, low, high)
        if tight is None:
            break
        low, high = tight
    else:
        x = _part_of_the_way(objective, solution.log_scales)
    capped = solution.capped | (x != solution.log_scales)
    residual = replace(problem, live=problem.live & ~capped).residual(x)
    return replace(solution, log_scales=x, residual=residual, status=Status.HELD_BACK, capped=capped)


def _part_of_the_way(objective: Objective, x: Tensor) -> Tensor:
    """As far towards x as nothing overflows: phi is convex, so it is no larger there than at the start."""
    low, high = bounds(objective)
    reached, beyond = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (reached + beyond) / 2
        fits = tightened(objective, middle * x, low, high) is None
        reached, beyond = (middle, beyond) if fits else (reached, middle)
    return reached * x
