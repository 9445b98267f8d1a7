"""The paper's approximation for basic blocks with learnt shortcuts (appendix "Skip-connection").

Between block k and block k+1 the paper weighs a block by the parallel equivalent of Conv1 and ConvSkip,
having given up the series equivalent of Conv1 and Conv2. Read as an electrical network whose conductances
are p-th powers of norms, conductances in parallel add:

    L[j] = ||Conv1_k[j]||_p^p + ||Skip_k[j]||_p^p            (rows: what channel j is made of)
    R[i] = ||Conv1_{k+1}[:, i]||_p^p + ||Skip_{k+1}[:, i]||_p^p   (columns: what consumes channel i)

so output channel j of Conv1 stands for that of the series Conv1-Conv2, and d = (R / L)^(1 / 2p) as ever. R is
what the true objective has as well; L replaces Conv2's rows by Conv1's. All other groups use the exact
coefficient. This is no descent on phi and carries no guarantee: it stops when its own L and R agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..block import Block
from ..errors import ArgumentError
from ..objective import Objective
from .problem import Problem


@dataclass(frozen=True, eq=False)
class _Junction:
    """The group that Conv2 and ConvSkip write to together."""

    conv1: Block
    skip: Block

    def pull(self, objective: Objective, group: int, x: Tensor) -> Tensor:
        """log R - log L of the group's scales, 0 where a side is empty."""
        size = objective.groups[group].size
        makers = (self.conv1, self.skip)
        energies = torch.cat([block.row_energies(x).flatten() for block in makers])
        starts = [objective.groups[block.rows.group].start for block in makers]
        index = torch.cat([(b.rows.index - start).flatten() for b, start in zip(makers, starts, strict=True)])
        left = objective.norm.gather(energies, index, size)
        right = objective.balance(group, x).right
        return torch.where(torch.isfinite(left) & torch.isfinite(right), right - left, 0.0)


def cycle_parallel(problem: Problem, x: Tensor, cycles: int) -> Iterator[tuple[int, Tensor]]:
    junctions = _junctions(problem.objective)
    x = x.clone()
    for done in range(1, cycles + 1):
        for group in range(len(problem.objective.groups)):
            if group in junctions:
                pull = junctions[group].pull(problem.objective, group, x)
                problem.move(group, x, pull / (2 * problem.objective.norm.exponent))
            else:
                problem.visit(group, x)
        yield done, x


def parallel_residual(problem: Problem, x: Tensor) -> float:
    """max |R - L| / (R + L) with the approximate L at the junctions."""
    objective = problem.objective
    pull = objective.imbalance(x)
    for group, junction in _junctions(objective).items():
        start, size = objective.groups[group].start, objective.groups[group].size
        pull[start : start + size] = junction.pull(objective, group, x)
    free = problem.live & ~problem.outward(x, pull)
    return float(torch.tanh(pull[free].abs() / 2).amax()) if free.any() else 0.0


def _junctions(objective: Objective) -> dict[int, _Junction]:
    """Basic blocks by their structure: Conv1, inner group, Conv2 beside a shortcut from the same input."""
    makers: dict[int, list[Block]] = {}
    for block in objective.blocks:
        if block.rows.group >= 0:
            makers.setdefault(block.rows.group, []).append(block)
    found = {}
    for group, blocks in makers.items():
        if len(blocks) != 2:
            continue
        for conv2, skip in (blocks, blocks[::-1]):
            inner = makers.get(conv2.cols.group, [])
            if len(inner) != 1 or inner[0].cols.group != skip.cols.group:
                continue
            if objective.groups[conv2.cols.group].size == objective.groups[group].size:
                found[group] = _Junction(inner[0], skip)
    if not found:
        raise ArgumentError(
            "solver='cycle-parallel' is the paper's rule for basic residual blocks with learnt shortcuts "
            "(two convolutions next to one), and this network has none: use 'cycle' or 'multilevel'"
        )
    return found
