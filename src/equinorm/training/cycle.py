"""A cycle of Algorithm 1 as a fixed list of passes and updates.

Group by group it needs the sums of powers over the lines of the weights that produce the group and over the columns of
those that consume it. Which of these are still valid when a group's turn comes is known beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equinorm.symmetry import Symmetries
from equinorm.training.kernels import Kernels
from equinorm.training.matrix import Entries, Matrix, Shape

LOG2 = math.log(2.0)

Reduce = Callable[[Tensor], None]  # sum a vector over the processes that hold shards
Sums = dict[
    tuple[int, bool], Tensor
]  # by matrix, and whether over columns' entries: a sum per column, else per line


@dataclass(frozen=True)
class Stepping:
    """How scales are found and how far they may go in one step."""

    p: float
    cycles: int
    limit: float  # on |x|
    powers_of_two: bool
    unit: float = 0.0  # scales or their inverses are multiples of it; 0: any

    def rounded(self, x: Tensor) -> Tensor:
        """The nearest log-scales whose factors the weights can take: what is recorded is then what is applied.

        A scale closer to one than its type can tell would be recorded at every step and hardly ever move a weight.
        """
        if self.powers_of_two or not self.unit:
            return x
        return x.sign() * ((x.abs().exp() / self.unit).round() * self.unit).log()


def table_of(x: Tensor, exponent: int, dtype: torch.dtype, exact: bool) -> Tensor:
    """1, d and 1/d to an exponent in a row, from the log-scales x = (0, log d): every factor is one lookup."""
    logs = exponent * torch.cat([x, -x[1:]])
    return (torch.exp2((logs / LOG2).round()) if exact else logs.exp()).to(dtype)


@dataclass(frozen=True, eq=False)
class Part:
    """Sums of one matrix that belong to one group: L where they grow with x, else R."""

    matrix: int
    over_columns: bool
    left: bool
    source: Tensor | slice | None  # positions in the matrix's sums; None: all of them
    target: Tensor | None  # scales of the group; None: all of them in order, each met equally often


@dataclass(frozen=True, eq=False)
class Visit:
    """One group's turn: the passes that must run first, then the update from its parts."""

    group: int
    passes: tuple[tuple[int, bool, bool], ...]  # matrix, over columns?, is the other side still unscaled?
    parts: tuple[Part, ...]


class Cycle:
    """Finds the scales of one step from the weights; writes nothing."""

    def __init__(
        self,
        symmetries: Symmetries,
        shapes: Sequence[Shape],
        matrices: Sequence[Matrix],
        kernels: Kernels,
        stepping: Stepping,
        reduce: Reduce | None,
        sharded: Sequence[bool],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._groups, self._num_free = symmetries.groups, symmetries.num_free
        self._matrices, self._kernels, self._stepping = matrices, kernels, stepping
        self._reduce, self._sharded = reduce, sharded
        self._dtype, self._device = dtype, device
        self._parts = [_parts_of(group.start, group.size, shapes, device) for group in symmetries.groups]
        self._visits = _schedule(self._parts, stepping.cycles)

    def run(self, entries: Sequence[Entries]) -> tuple[Tensor, Tensor]:
        """The log-scales, and a number that is finite if all sums are."""
        x = self.start()
        table = self._ones()
        sums: Sums = {}
        seen: list[Tensor] = []
        for visit in self._visits:
            found = self._passes(visit.passes, entries, table)
            seen += found.values()
            sums.update(found)
            group = self._groups[visit.group]
            step = self._step(group.size, visit.parts, sums)
            x[group.start : group.start + group.size] = step
            d = step.exp()
            table[group.start : group.start + group.size] = d
            table[self._num_free + group.start : self._num_free + group.start + group.size] = d.reciprocal()
        checked = torch.cat(seen).sum(dtype=torch.float64) if seen else x.sum()
        return self._stepping.rounded(x), checked

    def norm(self, entries: Sequence[Entries]) -> float:
        """sum of c_k ||W_k||_p^p."""
        sums = self._all_sums(entries)
        return float(
            sum(m.weight * float(sums[n, False].double().sum()) for n, m in enumerate(self._matrices))
        )

    def residual(self, entries: Sequence[Entries]) -> float:
        """max |R - L| / (R + L) over the scales with weights on both sides."""
        sums, worst = self._all_sums(entries), 0.0
        for group, parts in zip(self._groups, self._parts, strict=True):
            left, right = self._both_sides(group.size, parts, sums)
            live = (left > 0) & (right > 0)
            if live.any():
                worst = max(worst, float(((right - left).abs() / (right + left))[live].max()))
        return worst

    def start(self) -> Tensor:
        """Log-scales of zero."""
        return self._zeros(self._num_free + 1)

    def _ones(self) -> Tensor:
        return torch.ones(2 * self._num_free + 1, dtype=self._dtype, device=self._device)

    def _all_sums(self, entries: Sequence[Entries]) -> Sums:
        both = [(number, over, True) for number in range(len(self._matrices)) for over in (False, True)]
        return self._passes(both, entries, self._ones())

    def _passes(
        self, passes: Sequence[tuple[int, bool, bool]], entries: Sequence[Entries], table: Tensor
    ) -> Sums:
        found: Sums = {}
        for number, over_columns, unscaled in passes:
            matrix = self._matrices[number]
            if over_columns:
                lines = None if unscaled else self._kernels.look_up(table, matrix.line_places)
                found[number, True] = self._kernels.column_sums(matrix, entries[number], lines)
            else:
                columns = None if unscaled else self._kernels.look_up(table, matrix.column_places)
                held = self._kernels.line_sums(matrix, entries[number], columns)
                found[number, False] = matrix.among_all_lines(held)
        if self._reduce is not None:
            _reduce_together([found[n, over] for n, over in found if self._sharded[n]], self._reduce)
        return found

    def _step(self, size: int, parts: tuple[Part, ...], sums: Sums) -> Tensor:
        """Equation 4 of the paper, d = sqrt(R / L) with p-norms; x = 0 where a side is empty (a dead channel)."""
        left, right = self._both_sides(size, parts, sums)
        step = (right / left).log() / (2 * self._stepping.p)
        if self._stepping.powers_of_two:
            step = (step / LOG2).round() * LOG2
        limit = self._stepping.limit
        return step.nan_to_num(0.0, 0.0, 0.0).clamp(-limit, limit)

    def _both_sides(self, size: int, parts: tuple[Part, ...], sums: Sums) -> tuple[Tensor, Tensor]:
        """L and R of Algorithm 1, with the group's own scales at one."""
        sides: list[Tensor | None] = [None, None]
        for part in parts:
            own = sums[part.matrix, part.over_columns]
            own = own if part.source is None else own[part.source]
            if part.target is not None:
                own = self._zeros(size).index_add_(0, part.target, own.double())
            else:
                own = own.double() if own.numel() == size else own.view(size, -1).sum(1, dtype=torch.float64)
            weight = self._matrices[part.matrix].weight
            own = own if weight == 1.0 else own * weight
            before = sides[not part.left]
            sides[not part.left] = own if before is None else before + own
        left, right = (self._zeros(size) if side is None else side for side in sides)
        return left, right

    def _zeros(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.float64, device=self._device)


def _reduce_together(vectors: list[Tensor], reduce: Reduce) -> None:
    if not vectors:
        return
    together = torch.cat(vectors)
    reduce(together)
    for own, summed in zip(vectors, torch.split(together, [own.numel() for own in vectors]), strict=True):
        own.copy_(summed)


def _parts_of(start: int, size: int, shapes: Sequence[Shape], device: torch.device) -> tuple[Part, ...]:
    parts = []
    for number, shape in enumerate(shapes):
        for over, side in ((False, shape.line_side), (True, shape.column_side)):
            ids, sign = side.ids.flatten(), side.sign.flatten()
            for left in (True, False):
                source = ((ids >= start) & (ids < start + size) & ((sign > 0) == left)).nonzero().flatten()
                if source.numel():
                    parts.append(
                        _part(number, over, left, source, ids.numel(), ids[source] - start, size, device)
                    )
    return tuple(parts)


def _part(
    number: int,
    over: bool,
    left: bool,
    source: Tensor,
    among: int,
    target: Tensor,
    size: int,
    device: torch.device,
) -> Part:
    first, count = int(source[0]), source.numel()
    in_a_row = bool((source == torch.arange(first, first + count)).all())
    runs = count % size == 0 and bool((target == torch.arange(size).repeat_interleave(count // size)).all())
    return Part(
        number,
        over,
        left,
        (None if count == among else slice(first, first + count)) if in_a_row else source.to(device),
        None if runs else target.to(device),
    )


def _schedule(parts_by_group: Sequence[tuple[Part, ...]], cycles: int) -> tuple[Visit, ...]:
    valid: set[tuple[int, bool]] = set()
    scaled: set[tuple[int, bool]] = set()  # sides of matrices that have been scaled
    visits = []
    for _ in range(cycles):
        for group, parts in enumerate(parts_by_group):
            needed = dict.fromkeys((part.matrix, part.over_columns) for part in parts)
            passes = [(m, over, (m, not over) not in scaled) for m, over in needed if (m, over) not in valid]
            valid.update(needed)
            for number, over in needed:  # scaling one side outdates the sums over the other
                scaled.add((number, over))
                valid.discard((number, not over))
            visits.append(Visit(group, tuple(passes), parts))
    return tuple(visits)
