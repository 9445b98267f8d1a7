"""One weight in the order of its memory, and the two passes that a training step makes over it.

The entries scaled by x[p] and by x[q] form a batch of matrices (batch, lines, columns): a linear layer (1, out, in),
a convolution (1, out, in · kernel), a grouped one (groups, out, in · kernel), a vector (1, n, 1). Either side may be
the producing or the consuming one; its sign says which. Only the lines that this process holds are here: all of
them, or a shard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from equinorm.errors import ArgumentError, EquinormError
from equinorm.symmetry import Scaling

PLUS, MINUS = 0, 1
CHUNK = 1 << 19  # entries that pass through the scratch buffer at a time: 2 MB stay in the cores' caches


@dataclass(frozen=True, eq=False)
class Side:
    """The log-scale of every line or column: sign * x[id]; the ids repeat where a kernel shares them."""

    ids: Tensor  # int64, [batch, n]
    sign: Tensor  # float64: 1 multiplies, -1 divides

    def logs(self, x: Tensor) -> Tensor:
        return x[self.ids] * self.sign

    def places(self, num_free: int) -> Tensor:
        """Where its factors stand in a table 1, d, 1/d (:func:`~equinorm.training.cycle.table_of`), all in a row."""
        return torch.where(self.sign < 0, self.ids + num_free, self.ids).flatten().int()


@dataclass(frozen=True, eq=False)
class Layout:
    """How a scaling's entries lie in memory, over the whole parameter."""

    name: str
    counted: bool
    batch: int
    lines: int
    columns: int
    offset: int
    order: tuple[int, ...] | None  # of the parameter's dimensions in memory, where it is not their own

    def flat(self, tensor: Tensor) -> Tensor | None:
        """A tensor laid out like the parameter as one row, or None if it is laid out otherwise."""
        ordered = tensor if self.order is None else tensor.permute(self.order)
        return ordered.view(-1) if ordered.is_contiguous() else None


@dataclass(frozen=True, eq=False)
class Shape(Layout):
    """A layout, and the log-scales of its lines and columns."""

    line_side: Side
    column_side: Side

    @property
    def layout(self) -> Layout:
        """Without the log-scales, which take 16 bytes per line and column."""
        return Layout(*(getattr(self, each.name) for each in fields(Layout)))


def shape_of(scaling: Scaling, parameter: Tensor | None = None) -> Shape | None:
    """The scaling as a batch of matrices in memory order, or None if it is no such thing (a transposed slice).

    ``parameter``: to look up the order of its dimensions in memory, such as channels last.
    """
    if parameter is not None and not parameter.is_contiguous():
        order = tuple(sorted(range(parameter.dim()), key=parameter.stride, reverse=True))
        covered = _is_dense(scaling) and math.prod(scaling.size) == parameter.numel()
        if not covered or not parameter.permute(order).is_contiguous():
            return None
        shape = shape_of(_permuted(scaling, order))
        return None if shape is None else replace(shape, order=order)
    kinds = [(_varies(scaling.plus, d), _varies(scaling.minus, d)) for d in range(len(scaling.size))]
    cuts = _cuts(kinds)
    if cuts is None or not _is_dense(scaling):
        return None
    start, split, produced = cuts
    batch, lines, columns = (
        math.prod(part) for part in (scaling.size[:start], scaling.size[start:split], scaling.size[split:])
    )
    sides = scaling.plus, scaling.minus
    return Shape(
        scaling.parameter,
        scaling.counted,
        batch,
        lines,
        columns,
        scaling.offset,
        None,
        _side(sides[not produced], scaling.size, start, split, 1 if produced else -1, along_lines=True),
        _side(sides[produced], scaling.size, start, split, -1 if produced else 1, along_lines=False),
    )


def _permuted(scaling: Scaling, order: tuple[int, ...]) -> Scaling:
    """The scaling of a whole parameter, of one with its dimensions in another order."""
    walk = sorted(range(len(scaling.size)), key=lambda d: order.index(scaling.dims[d]))
    size = tuple(scaling.size[d] for d in walk)
    plus, minus = scaling.plus.permute(walk), scaling.minus.permute(walk)
    return replace(
        scaling, size=size, stride=torch.empty(size, device="meta").stride(), plus=plus, minus=minus
    )


def _cuts(kinds: list[tuple[bool, bool]]) -> tuple[int, int, bool] | None:
    """Where lines and where columns begin, and whether lines are the producing side.

    ``kinds`` says of every dimension whether the produced and whether the consumed scale varies along it. Before the
    lines, anything may vary; lines and columns are of different sides.
    """
    if not any(plus or minus for plus, minus in kinds):
        return 0, min(1, len(kinds)), True  # nothing varies: lines as shards of dimension 0 would cut it
    for start in range(len(kinds) + 1):
        split = start
        while split < len(kinds) and kinds[split] == kinds[start]:
            split += 1
        lines, columns = _roles(kinds[start:split]), _roles(kinds[split:])
        produced = lines[0] or (not lines[1] and not columns[0])
        if not (lines[PLUS if not produced else MINUS] or columns[PLUS if produced else MINUS]):
            return start, split, produced
    return None


def _varies(ids: Tensor, dim: int) -> bool:
    return ids.size(dim) > 1 and bool((ids != ids.narrow(dim, 0, 1)).any())


def _roles(kinds: list[tuple[bool, bool]]) -> tuple[bool, bool]:
    return any(plus for plus, _ in kinds), any(minus for _, minus in kinds)


def _is_dense(scaling: Scaling) -> bool:
    return scaling.stride == torch.empty(scaling.size, device="meta").stride()


def _side(ids: Tensor, size: Sequence[int], start: int, split: int, sign: int, along_lines: bool) -> Side:
    """Of the scaling's ids, those of the lines or of the columns, by batch."""
    for dim in range(split, len(size)) if along_lines else range(start, split):
        ids = ids.narrow(dim, 0, 1)
    own = range(start, split) if along_lines else range(split, len(size))
    sizes = [n if dim < start or dim in own else 1 for dim, n in enumerate(size)]
    ids = ids.expand(sizes).reshape(math.prod(sizes[:start]), math.prod(sizes[start:]))
    return Side(ids.abs(), ids.sign().double() * sign)


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
    """A weight's matrices in a plan, and which of their lines are held here.

    What belongs to its lines or columns is one vector, all batches in a row.
    """

    def __init__(
        self, shape: Shape, held: Held, weight: float, num_free: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """``weight`` is c_W; sums are formed in ``dtype``."""
        self.layout, self.weight, self.dtype, self.device = shape.layout, weight, dtype, device
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
        self.line_places = shape.line_side.places(num_free)[self._first : self._last].to(device)
        self.column_places = shape.column_side.places(num_free).to(device)

    def entries(self, local: Tensor) -> Entries:
        """The held lines of a tensor laid out like the parameter's local part."""
        count, flat = self._last - self._first, self.layout.flat(local)
        if flat is None:
            raise EquinormError(
                f"parameter {self.layout.name}, its optimizer state or a copy that follows it does not lie in memory "
                "as the parameter did when ENorm was made. Make a new ENorm"
            )
        held = flat[self._start : self._start + count * self.layout.columns]
        return Entries(held.view(count, self.layout.columns))

    def among_all_lines(self, held: Tensor) -> Tensor:
        """The held lines' values in a vector over all lines, zero elsewhere."""
        return held if self.holds_all else F.pad(held, (self._first, self._count - self._last))

    def by_line(self, per_column: Tensor, part: slice = slice(None)) -> Tensor:
        """A vector over columns as it meets the held lines of a part."""
        if self.batch_of_line is None:
            return per_column
        return per_column.view(self.layout.batch, -1)[self.batch_of_line[part]]

    @property
    def holds_all(self) -> bool:
        """Whether no line is on another process."""
        return self._last - self._first == self._count
