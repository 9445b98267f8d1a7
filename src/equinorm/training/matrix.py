"""One weight in the order of its memory, and the two passes that a training step makes over it.

The entries scaled by x[p] and by x[q] form a batch of matrices (batch, lines, columns): a linear layer (1, out, in),
a convolution (1, out, in · kernel), a grouped one (groups, out, in · kernel), a vector (1, n, 1). Either side may be
the producing or the consuming one; its sign says which. Only the lines that this process holds are here: all of
them, or a shard.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equinorm.errors import ArgumentError, EquinormError
from equinorm.symmetry import Scaling

CHUNK = 1 << 17  # entries that pass through the scratch buffer at a time: 512 KB stay in a core's cache
SMALL = 1 << 12  # entries for which a compiled kernel's call costs more than its loop


@dataclass(frozen=True, eq=False)
class Side:
    """The log-scale of every line or column: sign * x[id]; the ids repeat where a kernel shares them."""

    ids: Tensor  # int64, [batch, n]
    sign: Tensor  # float64: 1 multiplies, -1 divides

    def logs(self, x: Tensor) -> Tensor:
        return x[self.ids] * self.sign


@dataclass(frozen=True, eq=False)
class Shape:
    """How a scaling's entries lie in memory, over the whole parameter."""

    name: str
    counted: bool
    batch: int
    lines: int
    columns: int
    offset: int
    line_side: Side
    column_side: Side


def shape_of(scaling: Scaling) -> Shape | None:
    """The scaling as a batch of matrices in memory order, or None if it is no such thing (a transposed slice)."""
    kinds = [(_varies(scaling.plus, d), _varies(scaling.minus, d)) for d in range(len(scaling.size))]
    if not _is_dense(scaling):
        return None
    start = 0
    while start < len(kinds) and kinds[start] == (True, True):
        start += 1
    if (True, True) in kinds[start:]:
        return None
    split = start
    while split < len(kinds) and kinds[split] == kinds[start]:
        split += 1
    outer, inner = _roles(kinds[start:split]), _roles(kinds[split:])
    if (outer[0] and (outer[1] or inner[0])) or (inner[1] and (outer[1] or inner[0])):
        return None
    produced = outer[0] or (not outer[1] and not inner[0])  # whether lines are the producing side
    sizes = tuple(
        math.prod(part) for part in (scaling.size[:start], scaling.size[start:split], scaling.size[split:])
    )
    return Shape(
        scaling.parameter,
        scaling.counted,
        sizes[0],
        sizes[1],
        sizes[2],
        scaling.offset,
        _side(scaling, produced, sizes, along=1),
        _side(scaling, not produced, sizes, along=2),
    )


def _varies(ids: Tensor, dim: int) -> bool:
    return ids.size(dim) > 1 and bool((ids != ids.narrow(dim, 0, 1)).any())


def _roles(kinds: list[tuple[bool, bool]]) -> tuple[bool, bool]:
    return any(plus for plus, _ in kinds), any(minus for _, minus in kinds)


def _is_dense(scaling: Scaling) -> bool:
    return scaling.stride == torch.empty(scaling.size, device="meta").stride()


def _side(scaling: Scaling, produced: bool, sizes: tuple[int, ...], along: int) -> Side:
    ids = scaling.plus if produced else scaling.minus
    ids = ids.expand(scaling.size).reshape(sizes)
    ids = ids[:, :, 0] if along == 1 else ids[:, 0, :]
    return Side(ids.abs().contiguous(), ids.sign().double() * (1 if produced else -1))


class Entries:
    """A tensor's held lines (lines, columns), and the same in chunks that fit the cache."""

    def __init__(self, whole: Tensor) -> None:
        self.whole = whole
        self.is_small = whole.numel() < SMALL
        step = max(1, CHUNK // max(whole.shape[1], 1))
        stops = range(0, whole.shape[0], step)
        self.chunks = [(slice(a, min(a + step, whole.shape[0])), whole[a : a + step]) for a in stops]


@dataclass(frozen=True)
class Held:
    """The part of a parameter's entries, in memory order, that this process holds."""

    first: int
    last: int


class Matrix:
    """A weight's matrices in a plan: the lines held here, and where the sums over lines and columns go."""

    def __init__(self, shape: Shape, held: Held, sums: Tensor, weight: float) -> None:
        """``sums`` has room for a sum per line (over all processes) and per column; ``weight`` is c_W."""
        self.shape = shape
        self.weight = weight
        count = shape.batch * shape.lines
        for edge in (held.first - shape.offset, held.last - shape.offset):
            if edge % shape.columns and 0 < edge < count * shape.columns:
                raise ArgumentError(
                    f"parameter {shape.name}: its shards cut through entries that one scale moves together; shard it "
                    "on another dimension, or keep it whole"
                )
        self.first = min(max(math.ceil((held.first - shape.offset) / shape.columns), 0), count)
        self.last = min(max((held.last - shape.offset) // shape.columns, self.first), count)
        self._start = shape.offset + self.first * shape.columns - held.first
        batch_of_line = torch.arange(self.first, self.last, device=sums.device) // max(shape.lines, 1)
        self.batch_of_line = batch_of_line if shape.batch > 1 else None
        self.is_free = bool(shape.line_side.ids.any() or shape.column_side.ids.any())
        self.all_line_sums = sums[:count]
        self.line_sums = sums[self.first : count][: self.last - self.first]
        self.column_sums = sums[count : count + shape.batch * shape.columns].view(shape.batch, shape.columns)

    @staticmethod
    def room(shape: Shape) -> int:
        """How many sums a matrix needs."""
        return shape.batch * (shape.lines + shape.columns)

    def entries(self, local: Tensor) -> Entries:
        """The held lines of a tensor laid out like the parameter's local part."""
        count = self.last - self.first
        if not local.is_contiguous():
            raise EquinormError(
                f"parameter {self.shape.name}, its optimizer state or a copy that follows it is not contiguous in "
                "memory, as it was when ENorm was made. Make a new ENorm"
            )
        flat = local.view(-1)[self._start : self._start + count * self.shape.columns]
        return Entries(flat.view(count, self.shape.columns))

    def held_lines(self, per_line: Tensor) -> Tensor:
        """The part for the held lines of a vector over all lines."""
        return per_line[self.first : self.last]
