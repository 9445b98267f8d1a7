"""The plan of a training step: compiled once from the symmetries, then run without decisions.

One step of Algorithm 2 of the paper is one cycle of Algorithm 1 from x = 0, then one pass that scales weights and
optimizer state. The cycle needs, group by group, the sums of powers over the lines of the weights that produce the
group and over the columns of those that consume it; which of these sums are still valid when a group's turn comes is
known beforehand, so a cycle is a fixed list of passes and updates. Nothing is written before all scales are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equinorm.symmetry import Symmetries
from equinorm.training.kernels import CompiledKernels, Kernels
from equinorm.training.matrix import Entries, Held, Matrix, Shape, shape_of

LOG2 = math.log(2.0)

Reduce = Callable[[Tensor], None]  # sum a vector over the processes that hold shards


@dataclass(frozen=True, eq=False)
class _Part:
    """Sums of one matrix that belong to one group: L where they grow with x, else R."""

    matrix: int
    over_columns: bool  # a sum per column (else per line)
    left: bool
    source: Tensor  # positions in the matrix's sums
    target: Tensor  # scales of the group


@dataclass(frozen=True, eq=False)
class _Visit:
    """One group's turn: the passes that must run first, then the update from its parts."""

    group: int
    passes: tuple[tuple[int, bool, bool], ...]  # matrix, over columns?, is the other side still unscaled?
    parts: tuple[_Part, ...]


@dataclass(frozen=True)
class Stepping:
    """How scales are found and how far they may go in one step."""

    p: float
    cycles: int
    limit: float  # on |x|
    powers_of_two: bool


def shapes_of(symmetries: Symmetries) -> list[Shape] | None:
    """Every scaling as matrices in memory order, or None if the model needs the plain engine."""
    shapes = []
    for scaling in symmetries.scalings:
        shape = shape_of(scaling)
        if shape is None or _is_internal(symmetries, shape):
            if scaling.plus.any() or scaling.minus.any() or scaling.counted:
                return None
        elif scaling.counted or scaling.plus.any():
            shapes.append(shape)
    return shapes


def _is_internal(symmetries: Symmetries, shape: Shape) -> bool:
    """Whether some weight maps a group to itself: the closed form is then no descent step for the group."""
    starts = torch.tensor([group.start for group in symmetries.groups] or [1])
    groups = [
        set(torch.unique(torch.bucketize(side.ids[side.ids > 0], starts, right=True)).tolist())
        for side in (shape.line_side, shape.column_side)
    ]
    return bool(groups[0] & groups[1])


class Plan:
    """The engine of ENorm for weights that lie in memory as matrices, whole or in shards of lines."""

    def __init__(
        self,
        symmetries: Symmetries,
        shapes: Sequence[Shape],
        held: Mapping[str, Held],
        log_weights: Mapping[str, float],
        stepping: Stepping,
        dtype: torch.dtype,
        device: torch.device,
        compiled: bool = False,
        reduce: Reduce | None = None,
        sharded: Collection[str] = (),
    ) -> None:
        counted = [shape for shape in shapes if shape.counted]
        self.additive = [
            Matrix(s, held[s.name], _room(s, dtype, device), 1.0) for s in shapes if not s.counted
        ]
        self._sums = torch.zeros(sum(map(Matrix.room, counted)), dtype=dtype, device=device)
        self.matrices, start = [], 0
        for shape in counted:
            room = self._sums[start : start + Matrix.room(shape)]
            weight = math.exp(log_weights.get(shape.name, 0.0))
            self.matrices.append(Matrix(shape, held[shape.name], room, weight))
            start += Matrix.room(shape)
        self._symmetries, self._stepping, self._reduce = symmetries, stepping, reduce
        self._sharded = [matrix.shape.name in sharded for matrix in self.matrices]
        self._kernels = (CompiledKernels if compiled else Kernels)(stepping.p, dtype, device)
        self._parts = [self._parts_of(g) for g in range(len(symmetries.groups))]
        self._visits = self._schedule(stepping.cycles)
        self._views = _Views()
        self._ones = torch.ones(max([m.all_line_sums.numel() for m in self.matrices], default=0), dtype=dtype)
        self._ones = self._ones.to(device)
        self._sides = _Factors([*self.matrices, *self.additive], dtype, device)

    def scales(self, tensors: Mapping[str, Tensor]) -> Tensor | None:
        """The log-scales of one step from the weights, or None if some weight is not finite."""
        entries = [self._views.of(matrix, tensors) for matrix in self.matrices]
        x = torch.zeros(self._symmetries.num_free + 1, dtype=torch.float64, device=self._sums.device)
        for visit in self._visits:
            self._run_passes(visit.passes, entries, x)
            self._update(visit, x)
        additive = [self._views.of(matrix, tensors).whole for matrix in self.additive]
        present = [part for part in additive if part.numel()]
        checks = [self._sums.abs().sum(), *(torch._foreach_norm(present) if present else [])]
        flag = (~torch.stack([check.double() for check in checks]).isfinite()).any().double().reshape(1)
        if self._reduce is not None:
            self._reduce(flag)
        return None if bool(flag) else x

    def rescale(self, x: Tensor, targets: Sequence[tuple[Mapping[str, Tensor], int]], biases: bool) -> None:
        """Multiply tensors laid out like the parameters by the scales to an exponent: 1 weights, -1 gradients."""
        factors = self._sides.at(x, {exponent for _, exponent in targets}, self._stepping.powers_of_two)
        work = []  # complete before the first write, so that an error leaves everything as it was
        for number, matrix in enumerate([*self.matrices, *(self.additive if biases else [])]):
            if not matrix.is_free:
                continue
            lines = {e: matrix.held_lines(factors[e][number][0]) for e in factors}
            found = [
                (self._views.of(matrix, tensors, slot), lines[e], factors[e][number][1])
                for slot, (tensors, e) in enumerate(targets)
                if matrix.shape.name in tensors
            ]
            if found:
                work.append((matrix, found))
        for matrix, found in work:
            self._kernels.scale(matrix, found)

    def norm(self, tensors: Mapping[str, Tensor]) -> float:
        """sum of c_k ||W_k||_p^p of the weights as they are."""
        self._all_sums(tensors)
        return float(sum(m.weight * float(m.all_line_sums.double().sum()) for m in self.matrices))

    def residual(self, tensors: Mapping[str, Tensor]) -> float:
        """max |R - L| / (R + L) over the scales with weights on both sides."""
        self._all_sums(tensors)
        worst = 0.0
        for group, parts in enumerate(self._parts):
            left, right = self._both_sides(group, parts)
            live = (left > 0) & (right > 0)
            if live.any():
                worst = max(worst, float(((right - left).abs() / (right + left))[live].max()))
        return worst

    def _all_sums(self, tensors: Mapping[str, Tensor]) -> None:
        entries = [self._views.of(matrix, tensors) for matrix in self.matrices]
        x = torch.zeros(self._symmetries.num_free + 1, dtype=torch.float64, device=self._sums.device)
        both = [(number, over, True) for number in range(len(self.matrices)) for over in (False, True)]
        self._run_passes(tuple(both), entries, x)

    def _run_passes(
        self, passes: tuple[tuple[int, bool, bool], ...], entries: list[Entries], x: Tensor
    ) -> None:
        p = self._stepping.p
        for number, over_columns, unscaled in passes:
            matrix = self.matrices[number]
            if over_columns:
                lines = matrix.held_lines(self._ones[: matrix.all_line_sums.numel()])
                if not unscaled:
                    logs = matrix.shape.line_side.logs(x).flatten()
                    lines = matrix.held_lines((p * logs).exp().to(self._sums.dtype))
                self._kernels.column_sums(matrix, entries[number], lines)
            else:
                matrix.all_line_sums.zero_()
                columns = (p * matrix.shape.column_side.logs(x)).exp().to(self._sums.dtype)
                self._kernels.line_sums(matrix, entries[number], columns)
        if self._reduce is not None and any(self._sharded[number] for number, _, _ in passes):
            found = [self.matrices[n].column_sums.view(-1) if over else self.matrices[n].all_line_sums
                     for n, over, _ in passes if self._sharded[n]]  # fmt: skip
            together = torch.cat(found)
            self._reduce(together)
            for own, summed in zip(found, torch.split(together, [own.numel() for own in found]), strict=True):
                own.copy_(summed)

    def _update(self, visit: _Visit, x: Tensor) -> None:
        """Equation 4 of the paper, d = sqrt(R / L) with p-norms; x = 0 where a side is empty (a dead channel)."""
        group = self._symmetries.groups[visit.group]
        left, right = self._both_sides(visit.group, visit.parts)
        step = (right.log() - left.log()) / (2 * self._stepping.p)
        if self._stepping.powers_of_two:
            step = (step / LOG2).round() * LOG2
        limit = self._stepping.limit
        x[group.start : group.start + group.size] = step.nan_to_num(0.0, 0.0, 0.0).clamp(-limit, limit)

    def _both_sides(self, group: int, parts: tuple[_Part, ...]) -> tuple[Tensor, Tensor]:
        """L and R of Algorithm 1, with the group's own scales at one."""
        size = self._symmetries.groups[group].size
        sides = self._sums.new_zeros(2, size, dtype=torch.float64)
        for part in parts:
            matrix = self.matrices[part.matrix]
            sums = matrix.column_sums.view(-1) if part.over_columns else matrix.all_line_sums
            sides[0 if part.left else 1].index_add_(
                0, part.target, sums[part.source].double(), alpha=matrix.weight
            )
        return sides[0], sides[1]

    def _parts_of(self, group: int) -> tuple[_Part, ...]:
        start, size = self._symmetries.groups[group].start, self._symmetries.groups[group].size
        device, parts = self._sums.device, []
        for number, matrix in enumerate(self.matrices):
            for over, side in ((False, matrix.shape.line_side), (True, matrix.shape.column_side)):
                ids, sign = side.ids.flatten(), side.sign.flatten()
                for left in (True, False):
                    source = (
                        ((ids >= start) & (ids < start + size) & ((sign > 0) == left)).nonzero().flatten()
                    )
                    if source.numel():
                        target = ids[source] - start
                        parts.append(_Part(number, over, left, source.to(device), target.to(device)))
        return tuple(parts)

    def _schedule(self, cycles: int) -> tuple[_Visit, ...]:
        valid: set[tuple[int, bool]] = set()
        scaled: set[tuple[int, bool]] = set()  # sides of matrices that have been scaled
        visits = []
        for _ in range(cycles):
            for group, parts in enumerate(self._parts):
                needed = dict.fromkeys((part.matrix, part.over_columns) for part in parts)
                passes = [
                    (m, over, (m, not over) not in scaled) for m, over in needed if (m, over) not in valid
                ]
                valid.update(needed)
                for number, over in needed:  # scaling one side outdates the sums over the other
                    scaled.add((number, over))
                    valid.discard((number, not over))
                visits.append(_Visit(group, tuple(passes), parts))
        return tuple(visits)


class _Views:
    """The chunks of every tensor, cut once and again only when its memory has moved.

    A slot tells the tensors of one parameter apart: the weight itself, and each that moves with it.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[int, Entries]] = {}

    def of(self, matrix: Matrix, tensors: Mapping[str, Tensor], slot: int = 0) -> Entries:
        tensor = tensors[matrix.shape.name]
        known = self._known.get((id(matrix), slot))
        if known is not None and known[0] == tensor.data_ptr():
            return known[1]
        entries = matrix.entries(tensor)
        self._known[id(matrix), slot] = tensor.data_ptr(), entries
        return entries


class _Factors:
    """exp(exponent * log-scale) of every line and column of all matrices, computed together."""

    def __init__(self, matrices: Sequence[Matrix], dtype: torch.dtype, device: torch.device) -> None:
        sides = [side for matrix in matrices for side in (matrix.shape.line_side, matrix.shape.column_side)]
        self._ids = torch.cat(
            [side.ids.flatten() for side in sides] or [torch.zeros(0, dtype=torch.int64)]
        ).to(device)
        self._sign = torch.cat([side.sign.flatten() for side in sides] or [torch.zeros(0).double()]).to(
            device
        )
        self._shapes = [side.ids.shape for side in sides]
        self._dtype = dtype

    def at(self, x: Tensor, exponents: set[int], exact: bool) -> dict[int, list[tuple[Tensor, Tensor]]]:
        """By exponent and matrix: the factor of each line (all batches in a row) and of each column by batch."""
        logs = x[self._ids] * self._sign
        found = {}
        for exponent in exponents:
            factors = torch.exp2((exponent / LOG2 * logs).round()) if exact else (exponent * logs).exp()
            parts = torch.split(factors.to(self._dtype), [shape.numel() for shape in self._shapes])
            found[exponent] = [
                (parts[i].flatten(), parts[i + 1].view(self._shapes[i + 1])) for i in range(0, len(parts), 2)
            ]
        return found


def _room(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(Matrix.room(shape), dtype=dtype, device=device)
