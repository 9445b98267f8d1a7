"""One matrix of the objective: the magnitudes between two groups of scales, and the energies of its lines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .cells import CHUNK
from .norms import MaxNorm, Norm

TINY = 1e-280  # a sum of products above this lost nothing that matters to underflow


@dataclass(frozen=True, eq=False)
class Side:
    """The scales on one side of a block: sign * x[index], all of one group (-1: pinned, index 0)."""

    group: int
    sign: int
    index: Tensor  # [B, n]

    def logs(self, x: Tensor) -> Tensor:
        return self.sign * x[self.index]

    def label(self, labels: Tensor) -> Tensor:
        """The labels, given for the signed ids -n … n, of this side's ids."""
        return labels[labels.shape[0] // 2 + self.sign * self.index]


@dataclass(eq=False)
class Block:
    """Entries ``values[b, r, c] * exp(log_unit)`` scaled by exp(row's log-scale - column's log-scale).

    An *energy* is the log of a sum of p-th powers, c_W included (norms.py). ``links`` holds the labels of
    rows and columns when only cells whose labels agree take part.
    """

    norm: Norm
    parameter: str
    dtype: torch.dtype
    values: Tensor  # [B, R, C], unpowered
    log_unit: float
    largest: float  # no entry behind the cells, which may be p-norms of many, is larger
    log_weight: float  # log of c_W
    rows: Side
    cols: Side
    links: tuple[Tensor, Tensor] | None = None
    peak: float = field(init=False)
    full: bool = field(init=False)  # whether no cell is missing
    _memo: dict[int, tuple[Tensor, Tensor]] = field(init=False, repr=False)
    _empties: dict[int, Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """The values have changed: nothing known about them holds."""
        self.peak = max(float(part.amax()) for _, _, part in self._parts())
        self.full = self.links is None and all(float(part.amin()) > 0 for _, _, part in self._parts())
        self._memo = {}
        self._empties = {}

    @property
    def internal(self) -> bool:
        """Joins scales of the same group, which then have no closed-form update together."""
        return self.rows.group == self.cols.group >= 0

    def row_energies(self, x: Tensor) -> Tensor:
        """[B, R]: of every row of the scaled block."""
        own = self.norm.exponent * (self.rows.logs(x) + self.log_unit) + self.log_weight
        return own + self._lines(2, -self.cols.logs(x))

    def col_energies(self, x: Tensor) -> Tensor:
        """[B, C]: of every column of the scaled block."""
        own = self.norm.exponent * (self.log_unit - self.cols.logs(x)) + self.log_weight
        return own + self._lines(1, self.rows.logs(x))

    def energy(self, x: Tensor) -> Tensor:
        """Of the whole scaled block."""
        lines = self.col_energies(x) if self.cols.group >= 0 else self.row_energies(x)
        return self.norm.join(lines.flatten(), 0)

    def restricted(self, labels: Tensor) -> Block:
        """The same block with the cells only whose two ids have the same label."""
        rows, cols = self.rows.label(labels), self.cols.label(labels)
        same = bool((rows == rows[0, 0]).all()) and bool((cols == rows[0, 0]).all())
        return self if same else replace(self, links=(rows, cols))

    def magnitudes(self) -> Block:
        """The block with an upper bound of the largest entry of every cell instead of its norm.

        For small p a norm is far above that: n^(1/p) times as large for n equal entries.
        """
        values, unit = self.values, self.log_unit
        if self.log_peak() > (most := math.log(self.largest)):
            values = values.double().log_().add_(unit - most).clamp_(max=0.0).exp_()
            unit = most
        return replace(self, norm=MaxNorm(), log_weight=0.0, values=values, log_unit=unit)

    def log_peak(self) -> float:
        """log of the largest cell, the scales left aside."""
        return math.log(self.peak) + self.log_unit if self.peak > 0 else -math.inf

    def present(self, part: Tensor, batch: slice, row: slice) -> Tensor:
        """Which cells of a part are nonzero and take part."""
        found = part != 0
        if self.links is not None:
            found &= self.links[0][batch, row].unsqueeze(2) == self.links[1][batch].unsqueeze(1)
        return found

    def _parts(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """The values in pieces of about a chunk, with their ranges of batches and rows."""
        count, rows, cols = self.values.shape
        batch_step, row_step = max(1, CHUNK // (rows * cols)), max(1, CHUNK // cols)
        for start in range(0, count, batch_step):
            batch = slice(start, start + batch_step)
            for first in range(0, rows, row_step):
                row = slice(first, first + row_step)
                yield batch, row, self.values[batch, row]

    def parts(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Ranges of batches and rows, and which of their cells are nonzero and take part."""
        for batch, row, part in self._parts():
            yield batch, row, self.present(part, batch, row)

    def _lines(self, along: int, logs: Tensor) -> Tensor:
        """Energies of the lines along a dimension (2: rows, 1: columns) with their cells' log-scales added.

        The last answer is kept: sweeps, the norm and the residual ask the same question again.
        """
        if along in self._memo and torch.equal(self._memo[along][0], logs):
            return self._memo[along][1]
        answer = self._fast(along, logs)
        self._memo[along] = (logs, answer)
        return answer

    def _fast(self, along: int, logs: Tensor) -> Tensor:
        """Matrix-vector products relative to the largest value and scale; exact logs where they underflow."""
        if self.peak == 0:
            return torch.full(self._shape(along), -math.inf, dtype=torch.float64)
        top = logs.amax(1, keepdim=True)
        weights = torch.exp(self.norm.exponent * (logs - top))
        total = torch.zeros(self._shape(along), dtype=torch.float64)
        for batch, row, part in self._parts():
            entries = part.double().div_(self.peak) if part.dtype != torch.float64 else part / self.peak
            if self.links is not None:
                entries *= self.present(part, batch, row)
            powers = self.norm.power(entries)
            if along == 2:
                total[batch, row] = self.norm.contract(powers, weights[batch])
            else:
                partial = self.norm.contract(powers.mT, weights[batch, row])
                total[batch] = self.norm.add(total[batch], partial)
        answer = torch.log(total) + self.norm.exponent * (top + math.log(self.peak))
        lost = (total < TINY) & ~self._empty(along)
        if lost.any():
            answer[lost] = self._exact(along, lost, logs)
        return answer

    def _exact(self, along: int, which: Tensor, logs: Tensor) -> Tensor:
        """Some lines' energies by logarithms alone, where powers would leave the range of float64."""
        batch, line = which.nonzero(as_tuple=True)
        step = max(1, CHUNK // self.values.shape[along])
        answer = []
        for b, k in zip(torch.split(batch, step), torch.split(line, step), strict=True):
            lines = self.values[b, k] if along == 2 else self.values[b, :, k]
            entries = lines.double().log_().add_(logs[b])
            if self.links is not None:
                own, other = self.links if along == 2 else self.links[::-1]
                entries[other[b] != own[b, k].unsqueeze(1)] = -math.inf
            answer.append(self.norm.join(entries.mul_(self.norm.exponent), 1))
        return torch.cat(answer)

    def _empty(self, along: int) -> Tensor:
        """Which lines have no cell at all: their energy is -inf, and not for want of range."""
        if along not in self._empties:
            found = torch.zeros(self._shape(along), dtype=torch.bool)
            for batch, row, cells in self.parts():
                if along == 2:
                    found[batch, row] = cells.any(2)
                else:
                    found[batch] |= cells.any(1)
            self._empties[along] = ~found
        return self._empties[along]

    def _shape(self, along: int) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[3 - along]
