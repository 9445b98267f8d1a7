"""The plan of a training step: compiled once from the symmetries, then run without decisions.

One step of Algorithm 2 of the paper is one cycle of Algorithm 1 from x = 0 (cycle.py), then one pass that scales
weights and optimizer state. Nothing is written before all scales are known.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from equinorm.symmetry import Symmetries
from equinorm.training.cycle import LOG2, Cycle, Reduce, Stepping
from equinorm.training.kernels import Chunked, Fused, Kernels
from equinorm.training.matrix import Entries, Held, Matrix, Shape, shape_of

Work = list[tuple[int, int, Entries]]  # matrix, exponent, and what to scale by it


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
        found = sorted(shapes, key=lambda shape: not shape.counted)
        weights = [math.exp(log_weights.get(shape.name, 0.0)) for shape in found]
        self.matrices = [
            Matrix(s, held[s.name], w, dtype, device) for s, w in zip(found, weights, strict=True)
        ]
        self._counted = sum(shape.counted for shape in found)
        counted = self.matrices[: self._counted]
        kernels: Kernels = Fused(stepping.p, dtype) if compiled else Chunked(stepping.p, dtype, device)
        self._kernels, self._reduce = kernels, reduce
        self._cycle = Cycle(
            symmetries, counted, kernels, stepping, reduce, [m.shape.name in sharded for m in counted]
        )
        self._factors = _Factors(self.matrices, dtype, device, stepping.powers_of_two)
        self._views = _Views()
        self._find, self._scale = self._cycle.run, self._scale_all
        if compiled:
            self._find = torch.compile(self._find, dynamic=False)
            self._scale = torch.compile(self._scale, dynamic=False)

    def scales(self, tensors: Mapping[str, Tensor]) -> Tensor | None:
        """The log-scales of one step from the weights, or None if some weight is not finite."""
        x, checked = self._find(self._entries(tensors))
        vectors = [self._views.of(m, tensors).whole for m in self.matrices[self._counted :]]
        present = [vector for vector in vectors if vector.numel()]
        checks = torch.stack([checked, *(torch._foreach_norm(present) if present else [])]).double()
        bad = (~checks.isfinite()).any().double().reshape(1)
        if self._reduce is not None:
            self._reduce(bad)
        return None if bool(bad) else x

    def rescale(self, x: Tensor, targets: Sequence[tuple[Mapping[str, Tensor], int]], biases: bool) -> None:
        """Multiply tensors laid out like the parameters by the scales to an exponent: 1 weights, -1 gradients."""
        movable = self.matrices if biases else self.matrices[: self._counted]
        work: Work = [
            (number, exponent, self._views.of(matrix, tensors, slot))
            for number, matrix in enumerate(movable)
            if matrix.is_free
            for slot, (tensors, exponent) in enumerate(targets)
            if matrix.shape.name in tensors
        ]
        self._scale(x, work)

    def norm(self, tensors: Mapping[str, Tensor]) -> float:
        """sum of c_k ||W_k||_p^p of the weights as they are."""
        return self._cycle.norm(self._entries(tensors))

    def residual(self, tensors: Mapping[str, Tensor]) -> float:
        """max |R - L| / (R + L) over the scales with weights on both sides."""
        return self._cycle.residual(self._entries(tensors))

    def _entries(self, tensors: Mapping[str, Tensor]) -> list[Entries]:
        return [self._views.of(matrix, tensors) for matrix in self.matrices[: self._counted]]

    def _scale_all(self, x: Tensor, work: Work) -> None:
        factors = self._factors.at(x, {exponent for _, exponent, _ in work})
        vectors, by = [], []
        for number, exponent, entries in work:
            matrix, (lines, columns) = self.matrices[number], factors[exponent][number]
            if matrix.is_vector:
                vectors.append(entries.whole[:, 0])
                by.append(matrix.held_lines(lines))
            else:
                self._kernels.scale(matrix, entries, matrix.held_lines(lines), columns)
        if vectors:
            torch._foreach_mul_(vectors, by)


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

    def __init__(
        self, matrices: Sequence[Matrix], dtype: torch.dtype, device: torch.device, exact: bool
    ) -> None:
        sides = [side for matrix in matrices for side in (matrix.shape.line_side, matrix.shape.column_side)]
        self._ids = torch.cat(
            [side.ids.flatten() for side in sides] or [torch.zeros(0, dtype=torch.int64)]
        ).to(device)
        self._sign = torch.cat([side.sign.flatten() for side in sides] or [torch.zeros(0).double()]).to(
            device
        )
        self._shapes = [side.ids.shape for side in sides]
        self._dtype, self._exact = dtype, exact

    def at(self, x: Tensor, exponents: set[int]) -> dict[int, list[tuple[Tensor, Tensor]]]:
        """By exponent and matrix: the factor of each line (all batches in a row) and of each column by batch."""
        logs = x[self._ids] * self._sign
        found = {}
        for exponent in exponents:
            factors = torch.exp2((exponent / LOG2 * logs).round()) if self._exact else (exponent * logs).exp()
            parts = torch.split(factors.to(self._dtype), [shape.numel() for shape in self._shapes])
            found[exponent] = [
                (parts[i].flatten(), parts[i + 1].view(self._shapes[i + 1])) for i in range(0, len(parts), 2)
            ]
        return found
