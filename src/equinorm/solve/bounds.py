"""How far a scale may go before a bias or a weight is no longer finite in its own precision."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..block import Block, Side
from ..objective import Objective


def _limit(dtype: torch.dtype) -> float:
    """log of the largest magnitude that rounding keeps finite."""
    info = torch.finfo(dtype)
    return math.log(info.max) - 2 * info.eps


def bounds(objective: Objective) -> tuple[Tensor, Tensor]:
    """Lower and upper log-scales that keep additive parameters finite: they move, but do not count."""
    lower, upper = torch.full_like(objective.start(), -math.inf), torch.full_like(objective.start(), math.inf)
    lower[0] = upper[0] = 0.0
    still = objective.start()
    for block in objective.limits:
        limit = _limit(block.dtype)
        if block.cols.group < 0:
            _restrict(lower, upper, block.rows, 1, (limit - block.row_energies(still)).clamp(min=0.0))
        elif block.rows.group < 0:
            _restrict(lower, upper, block.cols, -1, (limit - block.col_energies(still)).clamp(min=0.0))
    return lower, upper


def _restrict(lower: Tensor, upper: Tensor, side: Side, direction: int, most: Tensor) -> None:
    """Require direction * sign * x <= most on one side of a block."""
    index, most = side.index.flatten(), most.flatten()
    if side.sign * direction > 0:
        upper.scatter_reduce_(0, index, most, "amin")
    else:
        lower.scatter_reduce_(0, index, -most, "amax")


def tightened(objective: Objective, x: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor] | None:
    """Bounds under which what overflows at x no longer does; None where nothing does.

    Reduced cells hold a norm, which is at least their largest entry: the test errs on the safe side.
    """
    tight = lower.clone(), upper.clone()
    found = False
    for block in objective.blocks + objective.limits:
        if _reach(block, x) > _limit(block.dtype):
            found |= _tighten(block.magnitudes(), x, *tight)
    return tight if found else None


def _reach(block: Block, x: Tensor) -> float:
    """An upper bound, without reading the block, of the log of its largest rescaled entry."""
    if block.peak == 0:
        return -math.inf
    spread = block.rows.logs(x).amax() - block.cols.logs(x).amin()
    return min(block.log_peak(), math.log(block.largest)) + float(spread)


def _tighten(block: Block, x: Tensor, lower: Tensor, upper: Tensor) -> bool:
    """Take the excess back from the rows' scales, and what those cannot give from the columns'.

    What is at the limit from the start, and no larger now, is no excess.
    """
    still, now = torch.zeros_like(x), x
    found = False
    for side, energies_at, direction in (
        (block.rows, block.row_energies, 1),
        (block.cols, block.col_energies, -1),
    ):
        excess = energies_at(now) - energies_at(still).clamp(min=_limit(block.dtype))
        if not (excess > 0).any():
            break
        found = True
        used = direction * side.logs(now)
        most = torch.where(excess > 0, (used - excess).clamp(min=0.0), math.inf)
        if side.group >= 0:
            _restrict(lower, upper, side, direction, most)
        now = torch.minimum(torch.maximum(now, lower), upper)
    return found
