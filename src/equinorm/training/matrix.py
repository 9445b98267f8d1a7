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
import torch.nn.functional as F
from torch import Tensor

from equinorm.errors import ArgumentError, EquinormError
from equinorm.symmetry import Scaling

CHUNK = 1 << 17  # entries that pass through the scratch buffer at a time: 512 KB stay in a core's cache


@dataclass(frozen=True, eq=False)
class Side:
    """The log-scale of every line or column: sign * x[id]; the ids repeat where a kernel shares them."""

    ids: Tensor  # int64, [batch, n]
    sign: Tensor  # float64: 1 multiplies, -1 divides

    def logs(self, x: Tensor) -> Tensor:
        return x[self.ids] * self.sign

    def to(self, device: torch.device) -> Side:
        return Side(self.ids.to(device), self.sign.to(device))


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
        step = max(1, CHUNK // max(whole.shape[1], 1))
        stops = range(0, whole.shape[0], step)
        self.chunks = [(slice(a, min(a + step, whole.shape[0])), whole[a : a + step]) for a in stops]


@dataclass(frozen=True)
class Held:
    """The part of a parameter's entries, in memory order, that this process holds."""

    first: int
    last: int


class Matrix:
    """A weight's matrices in a plan, and which of their lines are held here."""

    def __init__(
        self, shape: Shape, held: Held, weight: float, dtype: torch.dtype, device: torch.device
    ) -> None:
        """``weight`` is c_W; sums are formed in ``dtype``."""
        self.shape, self.weight, self.device = shape, weight, device
        self._count = shape.batch * shape.lines
        for edge in (held.first - shape.offset, held.last - shape.offset):
            if edge % shape.columns and 0 < edge < self._count * shape.columns:
                raise ArgumentError(
                    f"parameter {shape.name}: its shards cut through entries that one scale moves together; shard it "
                    "on another dimension, or keep it whole"
                )
        self._first = min(max(math.ceil((held.first - shape.offset) / shape.columns), 0), self._count)
        self._last = min(max((held.last - shape.offset) // shape.columns, self._first), self._count)
        self._start = shape.offset + self._first * shape.columns - held.first
        batch_of_line = torch.arange(self._first, self._last, device=device) // max(shape.lines, 1)
        self.batch_of_line = batch_of_line if shape.batch > 1 else None
        self.is_free = bool(shape.line_side.ids.any() or shape.column_side.ids.any())
        columns_fixed = not shape.column_side.ids.any()
        self.is_vector = shape.columns == 1 and columns_fixed  # such as a bias: only its lines are scaled
        self._lines, self._columns = (side.to(device) for side in (shape.line_side, shape.column_side))
        self._ones = torch.ones(self._count, dtype=dtype, device=device)

    def entries(self, local: Tensor) -> Entries:
        """The held lines of a tensor laid out like the parameter's local part."""
        count = self._last - self._first
        if not local.is_contiguous():
            raise EquinormError(
                f"parameter {self.shape.name}, its optimizer state or a copy that follows it is not contiguous in "
                "memory, as it was when ENorm was made. Make a new ENorm"
            )
        flat = local.view(-1)[self._start : self._start + count * self.shape.columns]
        return Entries(flat.view(count, self.shape.columns))

    def held_lines(self, per_line: Tensor) -> Tensor:
        """The part for the held lines of a vector over all lines."""
        return per_line[self._first : self._last]

    def among_all_lines(self, held: Tensor) -> Tensor:
        """The held lines' values in a vector over all lines, zero elsewhere."""
        if self._last - self._first == self._count:
            return held
        return F.pad(held, (self._first, self._count - self._last))

    def line_weights(self, x: Tensor | None, p: float) -> Tensor:
        """What a line's scale does to the p-th powers of its entries."""
        if x is None:
            return self._ones
        return (p * self._lines.logs(x)).exp().flatten().to(self._ones.dtype)

    def column_weights(self, x: Tensor, p: float) -> Tensor:
        """The same for every column, by batch."""
        return (p * self._columns.logs(x)).exp().to(self._ones.dtype)
