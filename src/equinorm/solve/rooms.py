"""How many powers of two every weight and bias survives exactly, from its bits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..cells import CHUNK, Layout, folded, layout, pieces
from ..symmetry import Scaling

ANY = 20_000  # more than any difference of exponents in float64


@dataclass(frozen=True, eq=False)
class Room:
    """Entries of cell (b, r, c) survive times 2^d exactly for low <= d <= high, d = k[rows] - k[cols]."""

    low: Tensor  # [B, R, C] int16
    high: Tensor
    rows: Tensor  # [B, R] signed ids
    cols: Tensor  # [B, C]

    def parts(self) -> Iterator[tuple[slice, slice]]:
        """Ranges of batches and rows of about a chunk of cells."""
        count, rows, cols = self.low.shape
        batch_step, row_step = max(1, CHUNK // (rows * cols)), max(1, CHUNK // cols)
        for start in range(0, count, batch_step):
            for first in range(0, rows, row_step):
                yield slice(start, start + batch_step), slice(first, first + row_step)


def rooms(scalings: Sequence[Scaling], tensors: Mapping[str, Tensor]) -> list[Room]:
    """One pass over everything that scales touch, counted or not."""
    return [
        _room(layout(scaling, tensors[scaling.parameter]))
        for scaling in scalings
        if 0 not in scaling.size and (scaling.plus.any() or scaling.minus.any())
    ]


def _room(found: Layout) -> Room:
    shape = (*found.rows.shape, found.cols.shape[1])
    low = torch.empty(math.prod(shape), dtype=torch.int16)
    high = torch.empty_like(low)
    start = 0
    for piece in pieces(found.view, found.outer):
        numbering = piece.dim() - (found.view.dim() - found.outer)
        space = folded(piece, numbering, partial(_survives, cells=numbering), lambda parts: parts.amax(0))
        part = slice(start, start + space.shape[1])
        low[part], high[part] = space[0], -space[1]
        start = part.stop
    low, high = low.view(shape), high.view(shape)
    same = found.rows.unsqueeze(2) == found.cols.unsqueeze(1)  # such entries never move
    return Room(low.masked_fill_(same, -ANY), high.masked_fill_(same, ANY), found.rows, found.cols)


def _survives(entries: Tensor, cells: int) -> Tensor:
    """[2, cells]: the least and minus the largest exponent at which no entry overflows or loses bits."""
    info = torch.finfo(entries.dtype)
    lowest = math.frexp(info.smallest_normal)[1] - 1 + math.frexp(info.eps)[1] - 1
    highest = math.frexp(info.max)[1] - 1
    mantissa, exponent = torch.frexp(entries.reshape(math.prod(entries.shape[:cells]), -1).double())
    bits = (mantissa * 2.0**53).abs().long()  # an integer of 53 bits
    trailing = torch.frexp((bits & -bits).double()).exponent - 1
    top = exponent - 1
    bottom = top - 52 + trailing
    empty = bits == 0
    least, most = (lowest - bottom).masked_fill(empty, -ANY), (highest - top).masked_fill(empty, ANY)
    return torch.stack([least.amax(1), -most.amin(1)])


def signed(k: Tensor, ids: Tensor) -> Tensor:
    return ids.sign() * k[ids.abs()]


def feasible(found: list[Room], k: Tensor, fallback: Tensor) -> Tensor:
    """k, with the exponents that do not survive set to those of a feasible fallback, until all do."""
    while True:
        bad = torch.zeros_like(k, dtype=torch.bool)
        for room in found:
            rows, cols = signed(k, room.rows), signed(k, room.cols)
            for batch, row in room.parts():
                change = rows[batch, row].unsqueeze(2) - cols[batch].unsqueeze(1)
                lost = (change < room.low[batch, row]) | (change > room.high[batch, row])
                bad[room.rows[batch, row][lost.any(2)].abs()] = True
                bad[room.cols[batch][lost.any(1)].abs()] = True
        if not bad.any():
            return k
        k = torch.where(bad, fallback, k)


def interval(found: list[Room], k: Tensor, variables: range) -> tuple[Tensor, Tensor]:
    """Exponents that each of some variables may take while all others stay."""
    low, high = torch.full_like(k, -ANY), torch.full_like(k, ANY)
    for room in found:
        for ids, other, along in ((room.rows, room.cols, 2), (room.cols, room.rows, 1)):
            ours = ((ids.abs() >= variables.start) & (ids.abs() < variables.stop)).any(0).nonzero().flatten()
            if not ours.numel():
                continue
            least = room.low.index_select(3 - along, ours).long()
            most = room.high.index_select(3 - along, ours).long()
            offset = signed(k, other).unsqueeze(3 - along)
            if along == 2:
                least, most = (least + offset).amax(2), (most + offset).amin(2)
            else:
                least, most = (offset - most).amax(1), (offset - least).amin(1)
            _narrow(low, high, ids[:, ours], least, most)
    return low, high


def _narrow(low: Tensor, high: Tensor, ids: Tensor, least: Tensor, most: Tensor) -> None:
    """Require least <= sign * k <= most."""
    negative = ids < 0
    least, most = torch.where(negative, -most, least), torch.where(negative, -least, most)
    low.scatter_reduce_(0, ids.abs().flatten(), least.flatten(), "amax")
    high.scatter_reduce_(0, ids.abs().flatten(), most.flatten(), "amin")
