"""Scales that are powers of two, by integer coordinate descent on exponents; every value survives exactly.

Multiplying by a power of two changes no bit of a mantissa, so outputs are bit-identical, unless a value
overflows or loses bits to subnormals. Exponents start from the rounded optimum of the real scales; the norm
is never above that of the weights as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ..objective import Balance, Objective
from ..symmetry import Symmetries
from .attained import attained
from .problem import Problem, step
from .rooms import Room, feasible, interval, rooms
from .solution import Solution

LOG2 = math.log(2.0)
SWEEPS = 100
GAIN = 1e-12  # an energy must fall by more than its rounding


def round_to_powers(
    objective: Objective,
    solution: Solution,
    symmetries: Symmetries,
    tensors: Mapping[str, Tensor],
    biases: bool = True,
) -> Solution:
    """The solution with ``exponents`` k, for scales 2^k; ``blocked`` scales would move if values survived.

    Without ``biases`` only counted parameters are going to be rescaled, and only they have to survive.
    """
    found = attained(objective)
    free = torch.full_like(solution.log_scales, math.inf)
    problem = Problem(found.objective, found.live, -free, free)
    touched = rooms([s for s in symmetries.scalings if s.counted or biases], tensors)
    spaces = _by_group(objective, touched)
    zero = torch.zeros_like(solution.log_scales, dtype=torch.int64)
    rounded = torch.where(found.live, (solution.log_scales / LOG2).round().long(), zero)
    k = _descend(problem, spaces, feasible(touched, rounded, zero))
    if not problem.objective.energy(LOG2 * k.double()) <= problem.objective.energy(objective.start()):
        k = _descend(problem, spaces, zero)
    wanted = zero.clone()
    for number in range(len(objective.groups)):
        _set(wanted, problem, number, _best(problem, number, k, (-free, free)))
    x = LOG2 * k.double()
    return replace(
        solution,
        log_scales=x,
        residual=problem.residual(x),
        capped=torch.zeros_like(solution.capped),
        blocked=wanted != 0,
        exponents=k,
    )


def exponents_by_cycles(objective: Objective, cycles: int, limit: Tensor) -> Tensor:
    """The exponents after some cycles of Algorithm 1 in integers from 0, each of size at most ``limit``."""
    found = attained(objective)
    problem = Problem(found.objective, found.live, -limit, limit)
    k = torch.zeros(limit.shape, dtype=torch.int64)
    for _ in range(cycles):
        for number in range(len(objective.groups)):
            _set(k, problem, number, _best(problem, number, k, (-limit, limit)))
    return k


def _by_group(objective: Objective, found: list[Room]) -> list[list[Room]]:
    """The rooms that meet each group."""
    ids = [torch.cat([room.rows.flatten(), room.cols.flatten()]).abs() for room in found]
    out = []
    for group in objective.groups:
        stop = group.start + group.size
        meets = [bool(((own >= group.start) & (own < stop)).any()) for own in ids]
        out.append([room for room, yes in zip(found, meets, strict=True) if yes])
    return out


def _set(values: Tensor, problem: Problem, number: int, change: Tensor) -> None:
    variables = problem.objective.groups[number].variables
    values[variables.start : variables.stop] += change


def _descend(problem: Problem, spaces: list[list[Room]], k: Tensor) -> Tensor:
    """Sweeps forward and back until no exponent moves."""
    for sweep in range(SWEEPS):
        before = k
        order = range(len(spaces))
        for number in order if sweep % 2 == 0 else reversed(order):
            moved = k.clone()
            bounds = interval(spaces[number], k, problem.objective.groups[number].variables)
            _set(moved, problem, number, _best(problem, number, k, bounds))
            # Entries between two scales of the group saw both move.
            k = feasible(spaces[number], moved, k)
        if torch.equal(before, k):
            break
    return k


def _best(problem: Problem, number: int, k: Tensor, bounds: tuple[Tensor, Tensor]) -> Tensor:
    """The change of each exponent of a group that lowers the norm most, within bounds; 0 where none does.

    In one scale the norm (or its separable majoriser, see ``step``) is convex, so the best integer is next to
    the real optimum, and the best within an interval is that integer clamped.
    """
    objective, group = problem.objective, problem.objective.groups[number]
    part = slice(group.start, group.start + group.size)
    sides = objective.balance(number, LOG2 * k.double())
    real = torch.where(problem.live[part], torch.nan_to_num(step(objective, sides), nan=0.0) / LOG2, 0.0)
    low, high = (bound[part].double() - k[part] for bound in bounds)
    best, lowest = torch.zeros_like(real), _after(objective, sides, torch.zeros_like(real))
    for candidate in (real.floor(), real.ceil()):
        change = torch.minimum(torch.maximum(candidate, low), high)
        value = _after(objective, sides, change)
        better = value < lowest - GAIN * lowest.abs().clamp(min=1.0)
        best, lowest = torch.where(better, change, best), torch.where(better, value, lowest)
    return best.long()


def _after(objective: Objective, sides: Balance, change: Tensor) -> Tensor:
    """The energy of what each scale meets after a change of its exponent (majorised within the group)."""
    t = change * (LOG2 * objective.norm.exponent)
    terms = [sides.left + t, sides.right - t]
    if sides.within is not None:
        half = LOG2 if math.isfinite(objective.norm.p) else 0.0
        terms += [sides.within[0] + 2 * t - half, sides.within[1] - 2 * t - half]
    return objective.norm.join(torch.stack(terms), 0)
