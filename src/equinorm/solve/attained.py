"""Where the minimum exists: the strongly connected components of the graph of nonzero weights.

phi is a sum of exponentials exp(p (x[plus] - x[minus])), one for every nonzero cell, that is for every edge
minus -> plus of a graph whose nodes are the scales and one pinned node. An edge on a cycle is bounded below
by the others of the cycle; an edge on none can be driven to zero for ever. So a minimum is attained exactly
for the cells inside a strongly connected component; everything else (dead neurons and what hangs on them,
producers without consumers) is left out and its scales stay 1.

A signed id -v, standing for -x[v], is a node of its own: every edge a -> b has its mirror -b -> -a.
Reaching backwards is then reaching forwards in the mirror.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..block import Block
from ..objective import Objective


@dataclass(frozen=True, eq=False)
class Attained:
    objective: Objective  # only the cells that matter
    live: Tensor  # bool, by variable (False at 0): whether the scale has a minimum
    loose: tuple[Tensor, ...]  # for components apart from the pinned node: +1/-1 on their variables, else 0


def attained(objective: Objective) -> Attained:
    n = objective.num_free
    graph = _Graph(objective)
    labels = torch.arange(2 * n + 1)  # every node a component of its own until shown otherwise
    start = torch.zeros(2 * n + 1, dtype=torch.bool)
    start[n] = True
    reached = graph.reach(start, torch.ones_like(start))
    main = reached & reached.flip(0)
    labels[main] = n
    loose = []
    for component in graph.others(~main):
        labels[component] = int(component.nonzero()[0])
        mirror = component.flip(0)
        if not (mirror & component).any():
            labels[mirror] = int(mirror.nonzero()[0])
            loose.append(component[n:].double() - mirror[n:].double())
    live = labels.bincount(minlength=2 * n + 1)[labels[n:]] > 1
    live[0] = False
    return Attained(objective.restricted(labels), live, tuple(loose))


class _Graph:
    def __init__(self, objective: Objective) -> None:
        n = objective.num_free
        self.blocks: list[tuple[Block, bool, Tensor, Tensor]] = []
        for block in objective.blocks:
            rows = n + block.rows.sign * block.rows.index
            cols = n + block.cols.sign * block.cols.index
            self.blocks.append((block, block.full, rows, cols))

    def step(self, source: Tensor, target: Tensor) -> None:
        """Mark the nodes that an edge from the source leads to; in order, so that source may be target."""
        last = source.numel() - 1
        for block, full, rows, cols in self.blocks:
            target[rows[_rows_hit(block, full, source[cols])]] = True
        for block, full, rows, cols in reversed(self.blocks):
            target[last - cols[_cols_hit(block, full, source[last - rows])]] = True

    def reach(self, start: Tensor, allowed: Tensor) -> Tensor:
        reached = start.clone()
        while True:
            before = reached.clone()
            self.step(reached, reached)
            reached &= allowed
            if torch.equal(before, reached):
                return reached

    def others(self, active: Tensor) -> list[Tensor]:
        """The nontrivial components among the active nodes, one of each mirrored pair."""
        found = []
        active = self._trimmed(active)
        while active.any():
            pivot = torch.zeros_like(active)
            pivot[active.nonzero()[-1]] = True
            component = self.reach(pivot, active) & self.reach(pivot.flip(0), active).flip(0)
            if component.sum() > 1:
                found.append(component)
            active = self._trimmed(active & ~component & ~component.flip(0))
        return found

    def _trimmed(self, active: Tensor) -> Tensor:
        """Drop, until none is left, the nodes that nothing active leads to or that lead to nothing active."""
        while active.any():
            entered = torch.zeros_like(active)
            self.step(active, entered)
            kept = active & entered & entered.flip(0)
            if torch.equal(kept, active):
                break
            active = kept
        return active


def _rows_hit(block: Block, full: bool, source: Tensor) -> Tensor:
    """[B, R]: rows with a nonzero cell in a marked column."""
    if full or not source.any():
        return source.any(1, keepdim=True).expand(block.rows.index.shape)
    hit = torch.zeros(block.rows.index.shape, dtype=torch.bool)
    for batch, row, cells in block.parts():
        hit[batch, row] = (cells & source[batch].unsqueeze(1)).any(2)
    return hit


def _cols_hit(block: Block, full: bool, source: Tensor) -> Tensor:
    """[B, C]: columns with a nonzero cell in a marked row."""
    if full or not source.any():
        return source.any(1, keepdim=True).expand(block.cols.index.shape)
    hit = torch.zeros(block.cols.index.shape, dtype=torch.bool)
    for batch, row, cells in block.parts():
        hit[batch] |= (cells & source[batch, row].unsqueeze(2)).any(1)
    return hit
