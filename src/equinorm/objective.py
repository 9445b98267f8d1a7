"""phi, the norm of the rescaled weights as a function of the log-scales, and both sides of every scale.

phi(x) = sum over W of c_W * sum over e of |w_e|^p exp(p (x[plus(e)] - x[minus(e)])), the paper's "Objective
function" in log-scales (x = log d), where it is convex. Everything here is a log of a sum of powers, an
*energy*, so that no power of a weight leaves the range of float64 (norms.py, block.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .block import Block, Side
from .cells import Cells, Layout, Visit, layout, read
from .norms import MaxNorm, Norm, norm_of
from .symmetry import Group, Scaling, Symmetries


class Balance(NamedTuple):
    """Energies of both sides of each scale of a group: L multiplied by d = e^x, R divided by it.

    ``within`` is the same for the cells that join two scales of the group (None without such cells); a cell
    with exponent 2x counts twice there, as its derivative does.
    """

    left: Tensor
    right: Tensor
    within: tuple[Tensor, Tensor] | None


@dataclass(frozen=True)
class _Meeting:
    """The lines of blocks that meet a group, and where in (L, R) each of their energies belongs."""

    lines: tuple[tuple[int, bool], ...]  # block number, and whether its rows (else its columns)
    index: Tensor

    def energies(self, blocks: Sequence[Block], x: Tensor, norm: Norm, size: int) -> tuple[Tensor, Tensor]:
        if not self.lines:
            nothing = torch.full((size,), -math.inf, dtype=torch.float64)
            return nothing, nothing
        found = [
            (blocks[i].row_energies(x) if is_rows else blocks[i].col_energies(x)).flatten()
            for i, is_rows in self.lines
        ]
        both = norm.gather(torch.cat(found), self.index, 2 * size)
        return both[:size], both[size:]


class Objective:
    """The reduced matrices of all counted weights; weights are read once, here."""

    def __init__(
        self,
        symmetries: Symmetries,
        tensors: Mapping[str, Tensor],
        p: float,
        log_weights: Mapping[str, float] | None = None,
        visitor: Callable[[Scaling, Layout], Visit | None] | None = None,
    ) -> None:
        """``log_weights``: log c_W by parameter (log a_W for p = inf), 0 if absent: "Asymmetric scaling".

        ``visitor`` may change every piece of a weight just before it is read (apply.py).
        """
        norm = norm_of(p)
        blocks, fixed = [], []
        for scaling in symmetries.scalings:
            if scaling.counted and 0 not in scaling.size:
                log_weight = (log_weights or {}).get(scaling.parameter, 0.0)
                found = _blocks(scaling, tensors[scaling.parameter], symmetries, norm, log_weight, visitor)
                for block in found:
                    constant = _constant(block)
                    if constant is not None:
                        fixed.append((block.parameter, constant))
                    if block.rows.group >= 0 or block.cols.group >= 0:
                        blocks.append(block)
        limits = [
            block
            for scaling in symmetries.scalings
            if not scaling.counted and 0 not in scaling.size
            for block in _blocks(scaling, tensors[scaling.parameter], symmetries, MaxNorm(), 0.0, visitor)
            if block.rows.group >= 0 or block.cols.group >= 0
        ]
        self._setup(symmetries.num_free, symmetries.groups, norm, tuple(blocks), tuple(fixed), tuple(limits))

    def _setup(
        self,
        num_free: int,
        groups: tuple[Group, ...],
        norm: Norm,
        blocks: tuple[Block, ...],
        fixed: tuple[tuple[str, float], ...],
        limits: tuple[Block, ...],
    ) -> None:
        self.num_free, self.groups, self.norm = num_free, groups, norm
        self.blocks = blocks
        self.fixed = fixed  # energies that no scale changes, by parameter
        self.limits = limits  # additive parameters: they do not count, but must stay finite
        self._outside = [self._meeting(g, internal=False) for g in range(len(groups))]
        self._within = [self._meeting(g, internal=True) for g in range(len(groups))]

    def restricted(self, labels: Tensor) -> Objective:
        """The same objective with only the cells whose two signed ids (-n … n) have the same label."""
        other = Objective.__new__(Objective)
        blocks = tuple(block.restricted(labels) for block in self.blocks)
        other._setup(self.num_free, self.groups, self.norm, blocks, self.fixed, self.limits)
        return other

    def start(self) -> Tensor:
        """The scales of the weights as they are: all one."""
        return torch.zeros(self.num_free + 1, dtype=torch.float64)

    def energy(self, x: Tensor) -> float:
        """log phi(x): the log of the sum of p-th powers, or of the largest entry."""
        parts = [block.energy(x) for block in self.blocks]
        parts += [torch.tensor(value, dtype=torch.float64) for _, value in self.fixed]
        return float(self.norm.join(torch.stack(parts), 0)) if parts else -math.inf

    def energies(self, x: Tensor) -> dict[str, float]:
        """log of c_W ||W||_p^p (of a_W max |W|) by parameter, rescaled by x."""
        parts: dict[str, list[float]] = {}
        for name, value in self.fixed:
            parts.setdefault(name, []).append(value)
        for block in self.blocks:
            parts.setdefault(block.parameter, []).append(float(block.energy(x)))
        return {k: float(self.norm.join(torch.tensor(v, dtype=torch.float64), 0)) for k, v in parts.items()}

    def value(self, x: Tensor) -> float:
        """phi(x), infinite where float64 has no number for it."""
        return float(torch.tensor(self.energy(x), dtype=torch.float64).exp())

    def balance(self, group: int, x: Tensor) -> Balance:
        """L and R of the paper's Algorithm 1 for a group's scales, as energies of the rescaled weights."""
        size = self.groups[group].size
        left, right = self._outside[group].energies(self.blocks, x, self.norm, size)
        inner = self._within[group]
        within = inner.energies(self.blocks, x, self.norm, size) if inner.lines else None
        return Balance(left, right, within)

    def imbalance(self, x: Tensor) -> Tensor:
        """log(R / L) of every variable (index 0 is pinned): 0 where both sides are empty."""
        out = torch.zeros_like(x)
        for number, group in enumerate(self.groups):
            left, right, within = self.balance(number, x)
            if within is not None:
                left = self.norm.join(torch.stack([left, within[0]]), 0)
                right = self.norm.join(torch.stack([right, within[1]]), 0)
            out[group.start : group.start + group.size] = torch.where(left == right, 0.0, right - left)
        return out

    def lines(self, group: int) -> tuple[tuple[int, bool], ...]:
        """The blocks that meet a group, each with whether by its rows."""
        return self._outside[group].lines + self._within[group].lines

    def _meeting(self, group: int, internal: bool) -> _Meeting:
        lines, index = [], []
        start, size = self.groups[group].start, self.groups[group].size
        for number, block in enumerate(self.blocks):
            if block.internal != internal:
                continue
            for is_rows, side in ((True, block.rows), (False, block.cols)):
                if side.group == group:
                    is_left = (side.sign > 0) == is_rows
                    lines.append((number, is_rows))
                    index.append((side.index - start + (0 if is_left else size)).flatten())
        return _Meeting(tuple(lines), torch.cat(index) if index else torch.empty(0, dtype=torch.int64))


def _blocks(
    scaling: Scaling,
    tensor: Tensor,
    symmetries: Symmetries,
    norm: Norm,
    log_weight: float,
    visitor: Callable[[Scaling, Layout], Visit | None] | None,
) -> list[Block]:
    """One scaling as blocks that each join one group (and sign) of rows to one of columns."""
    found = layout(scaling, tensor)
    cells = read(found, norm, scaling.parameter, visitor(scaling, found) if visitor else None)
    label = torch.zeros(symmetries.num_free + 1, dtype=torch.int64)
    for number, group in enumerate(symmetries.groups):
        label[group.start : group.start + group.size] = number + 1
    rows = cells.rows.sign() * label[cells.rows.abs()]
    cols = cells.cols.sign() * label[cells.cols.abs()]
    return [
        Block(
            norm,
            scaling.parameter,
            tensor.dtype,
            part.values,
            part.log_unit,
            part.largest,
            log_weight,
            _side(part.rows, label),
            _side(part.cols, label),
        )
        for part in _split(cells, rows, cols)
    ]


def _side(ids: Tensor, label: Tensor) -> Side:
    first = int(ids[0, 0])
    return Side(int(label[abs(first)]) - 1, -1 if first < 0 else 1, ids.abs())


def _split(cells: Cells, rows: Tensor, cols: Tensor) -> list[Cells]:
    """Cut into parts whose rows all have one label, and whose columns do (views where they lie in a row)."""
    kinds, of = torch.unique(torch.cat([rows, cols], 1), dim=0, return_inverse=True)
    parts = []
    for kind in range(kinds.shape[0]):
        batch = _places(of == kind)
        row_labels, col_labels = kinds[kind, : rows.shape[1]], kinds[kind, rows.shape[1] :]
        for a in row_labels.unique():
            row = _places(row_labels == a)
            for b in col_labels.unique():
                col = _places(col_labels == b)
                values = cells.values[batch][:, row][:, :, col]
                ids = cells.rows[batch][:, row], cells.cols[batch][:, col]
                parts.append(Cells(values, cells.log_unit, *ids, cells.largest))
    return parts


def _places(mask: Tensor) -> slice | Tensor:
    where = mask.nonzero().flatten()
    first, last = int(where[0]), int(where[-1])
    return slice(first, last + 1) if last - first + 1 == where.numel() else where


def _constant(block: Block) -> float | None:
    """The energy of cells that no scale changes, taken out of a block that has others."""
    if block.rows.group != block.cols.group or block.rows.sign != block.cols.sign:
        return None
    if block.rows.group < 0:
        return float(block.energy(torch.zeros(1, dtype=torch.float64)))
    batch, row, col = (block.rows.index.unsqueeze(2) == block.cols.index.unsqueeze(1)).nonzero(as_tuple=True)
    if not batch.numel():
        return None
    logs = block.values[batch, row, col].double().log() + block.log_unit
    block.values[batch, row, col] = 0
    block.forget()
    return float(block.norm.join(block.norm.exponent * logs, 0)) + block.log_weight
