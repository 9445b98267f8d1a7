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
from equinorm.training.compiled import Find, Scale, Work, compiled_find, compiled_scale
from equinorm.training.cycle import Cycle, Reduce, Stepping, table_of
from equinorm.training.kernels import Chunked, Fused, Kernels
from equinorm.training.matrix import Entries, Held, Matrix, Shape, shape_of


def shapes_of(symmetries: Symmetries, parameters: Mapping[str, Tensor]) -> list[Shape] | None:
    """Every scaling as matrices in memory order, or None if the model needs the plain engine."""
    shapes = []
    for scaling in symmetries.scalings:
        shape = shape_of(scaling, parameters[scaling.parameter])
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
            Matrix(s, held[s.name], w, symmetries.num_free, dtype, device)
            for s, w in zip(found, weights, strict=True)
        ]
        self._counted = sum(shape.counted for shape in found)
        counted = self.matrices[: self._counted]
        kernels: Kernels = Fused(stepping.p, dtype) if compiled else Chunked(stepping.p, dtype, device)
        self._kernels, self._reduce = kernels, reduce
        in_shards = [m.layout.name in sharded for m in counted]
        self._cycle = Cycle(
            symmetries, found[: self._counted], counted, kernels, stepping, reduce, in_shards, dtype, device
        )
        self._dtype, self._exact = dtype, stepping.powers_of_two
        places = [places for m in self.matrices for places in (m.line_places, m.column_places)]
        self._places = torch.cat(places or [torch.zeros(0, dtype=torch.int32, device=device)])
        self._sizes = [each.numel() for each in places]
        for matrix, own in zip(self.matrices, self._split(self._places), strict=True):
            matrix.line_places, matrix.column_places = own  # views of one memory
        self._views = _Views()
        self._find: Find = self._cycle.run
        self._scale: Scale = self._scale_all
        if compiled:
            self._find, self._scale = compiled_find(self._find), compiled_scale(self._scale)

    def scales(self, tensors: Mapping[str, Tensor]) -> Tensor | None:
        """The log-scales of one step from the weights, or None if some weight is not finite."""
        x, checked = self._find(self._entries(tensors))
        vectors = [self._views.of(m, tensors).whole for m in self.matrices[self._counted :]]
        norms = torch._foreach_norm([vector for vector in vectors if vector.numel()] or [checked])
        finite = math.isfinite(float(checked + torch.stack(norms).sum()))
        if self._reduce is not None:
            bad = torch.tensor([float(not finite)], dtype=x.dtype, device=x.device)
            self._reduce(bad)
            finite = not bool(bad)
        return x if finite else None

    def rescale(self, x: Tensor, targets: Sequence[tuple[Mapping[str, Tensor], int]], biases: bool) -> None:
        """Multiply tensors laid out like the parameters by the scales to an exponent: 1 weights, -1 gradients."""
        movable = self.matrices if biases else self.matrices[: self._counted]
        work = [
            (number, exponent, self._views.of(matrix, tensors, slot))
            for number, matrix in enumerate(movable)
            if matrix.is_free
            for slot, (tensors, exponent) in enumerate(targets)
            if matrix.layout.name in tensors
        ]
        self._scale(x, work)
        self._kernels.release()

    def norm(self, tensors: Mapping[str, Tensor]) -> float:
        """sum of c_k ||W_k||_p^p of the weights as they are."""
        return self._cycle.norm(self._entries(tensors))

    def residual(self, tensors: Mapping[str, Tensor]) -> float:
        """max |R - L| / (R + L) over the scales with weights on both sides."""
        return self._cycle.residual(self._entries(tensors))

    def _entries(self, tensors: Mapping[str, Tensor]) -> list[Entries]:
        return [self._views.of(matrix, tensors) for matrix in self.matrices[: self._counted]]

    def _scale_all(self, x: Tensor, work: Work) -> None:
        factors = {exponent: self._factors(x, exponent) for exponent in {e for _, e, _ in work}}
        vectors, by = [], []
        for number, exponent, entries in work:
            matrix, (lines, columns) = self.matrices[number], factors[exponent][number]
            if matrix.is_vector:
                vectors.append(entries.whole[:, 0])
                by.append(lines)
            else:
                self._kernels.scale(matrix, entries, lines, columns)
        if vectors:
            torch._foreach_mul_(vectors, by)

    def _factors(self, x: Tensor, exponent: int) -> list[tuple[Tensor, Tensor]]:
        """By matrix, the factors of its held lines and of its columns, all looked up together."""
        table = table_of(x, exponent, self._dtype, self._exact)
        return self._split(self._kernels.look_up(table, self._places))

    def _split(self, together: Tensor) -> list[tuple[Tensor, Tensor]]:
        parts = torch.split(together, self._sizes)
        return list(zip(parts[::2], parts[1::2], strict=True))


class _Views:
    """The chunks of every tensor, cut once and again only when its memory has moved.

    A slot tells the tensors of one parameter apart: the weight itself, and each that moves with it.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[int, Entries]] = {}

    def of(self, matrix: Matrix, tensors: Mapping[str, Tensor], slot: int = 0) -> Entries:
        tensor = tensors[matrix.layout.name]
        known = self._known.get((id(matrix), slot))
        if known is not None and known[0] == tensor.data_ptr():
            return known[1]
        entries = matrix.entries(tensor)
        self._known[id(matrix), slot] = tensor.data_ptr(), entries
        return entries
