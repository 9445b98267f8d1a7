"""Coarse step, sweep forward, sweep back, extrapolate: as many cycles for a hundred layers as for five.

The cycle alone moves energy by one layer per visit, so its cost grows with the square of the depth. Before
every double sweep (two cycles), a coarse step moves all energy at once with a single scale per group
(coarse.py), and after it Anderson acceleration extrapolates from the last iterates, safeguarded by phi.

For p = inf the same steps equalise maxima; the safeguard is then that the largest entry does not grow, and
what guarantees the result is the residual. Weights that are equalised already are left as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .coarse import Coarse
from .problem import Problem

MEMORY = 10
SLACK = 1e-13  # relative rounding of an energy


def multilevel(problem: Problem, x: Tensor, cycles: int) -> Iterator[tuple[int, Tensor]]:
    coarse = Coarse(problem)
    memory = _Memory()
    point = x.clone()
    done = 0
    while done < cycles:
        moved = coarse.step(point)
        problem.forward(moved)
        done += 1
        if done < cycles:
            problem.backward(moved)
            done += 1
        yield done, moved
        memory.add(point, moved)
        point = problem.clamp(memory.extrapolated())
        if rises(problem, moved, point):
            memory = _Memory()
            point = moved


def rises(problem: Problem, before: Tensor, after: Tensor) -> bool:
    """Whether phi is larger after; true as well where it is not a number."""
    low, high = problem.objective.energy(before), problem.objective.energy(after)
    return not high <= low + SLACK * max(1.0, abs(low))


class _Memory:
    """Anderson acceleration: the combination of the last iterates whose step is the smallest."""

    def __init__(self) -> None:
        self.moved: list[Tensor] = []
        self.steps: list[Tensor] = []

    def add(self, point: Tensor, moved: Tensor) -> None:
        self.moved = [*self.moved[-MEMORY:], moved]
        self.steps = [*self.steps[-MEMORY:], moved - point]

    def extrapolated(self) -> Tensor:
        if len(self.steps) < 2:
            return self.moved[-1]
        moved, steps = torch.stack(self.moved, 1), torch.stack(self.steps, 1)
        changes = steps.diff(dim=1)
        scale = changes.norm(dim=0).clamp(min=torch.finfo(torch.float64).tiny)
        weights = torch.linalg.lstsq(changes / scale, steps[:, -1:], rcond=1e-12, driver="gelsd").solution
        change: Tensor = moved.diff(dim=1) @ (weights.squeeze(1) / scale)
        return moved[:, -1] - change
