"""The paper's Algorithm 1 on any graph: one pass over the groups, in topological order, is a cycle."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from .problem import Problem


def cycle(problem: Problem, x: Tensor, cycles: int) -> Iterator[tuple[int, Tensor]]:
    x = x.clone()
    for done in range(1, cycles + 1):
        problem.forward(x)
        yield done, x
