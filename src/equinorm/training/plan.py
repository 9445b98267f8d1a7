"""The plan of a training step: compiled once from the symmetries, then run without decisions.

One step of Algorithm 2 of the paper is one cycle of Algorithm 1 from x = 0 (cycle.py), then one pass that scales
weights and optimizer state. Nothing is written before all scales are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from equinorm.symmetry import Symmetries
from equinorm.training.compiled import Find, Scale, bind_compiled_find, bind_compiled_scale
from equinorm.training.cycle import Cycle, Reduce, Stepping, table_of
from equinorm.training.finite import sum_of_norms
from equinorm.training.kernels import Chunked, Fused, Kernels
from equinorm.training.matrix import Entries, Held, Matrix, Shape, shape_of
from equinorm.training.scaling import Scaling, Work

Weights = Mapping[str, Tensor]
Targets = Sequence[tuple[Mapping[str, Tensor], int]]
Found = tuple[Find, list[Tensor]]
BindFind = Callable[[Sequence[Entries]], Find]
BindScale = Callable[[Work], Scale]


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
        self._bind_find: BindFind = bind_compiled_find(self._cycle.run) if compiled else self._bound_find
        self._bind_scale: BindScale = (
            bind_compiled_scale(self._scale_whole, self._cycle.start()) if compiled else self._bound_scale
        )
        self._finding: tuple[Weights, Found] | None = None
        self._scaling: tuple[Targets, Scale] | None = None

    def scales(self, tensors: Weights, others: Sequence[Tensor] = ()) -> Tensor | None:
        """The log-scales of one step from the weights, or None if a weight, or something other, is not finite.

        The same mapping as the last time must hold the same tensors.
        """
        if self._finding is None or self._finding[0] is not tensors:
            vectors = [m.entries(tensors[m.layout.name]).whole for m in self.matrices[self._counted :]]
            self._finding = tensors, (self._bind_find(self._entries(tensors)), vectors)
        find, vectors = self._finding[1]
        x, checked = find()
        self._kernels.release()
        rest = sum_of_norms([*vectors, *others])
        finite = math.isfinite(float(checked if rest is None else checked + rest))
        if self._reduce is not None:
            bad = torch.tensor([float(not finite)], dtype=x.dtype, device=x.device)
            self._reduce(bad)
            finite = not bool(bad)
        return x if finite else None

    def rescale(self, x: Tensor, targets: Targets, biases: bool) -> None:
        """Multiply tensors laid out like the parameters by the scales to an exponent: 1 weights, -1 gradients.

        The same targets as the last time must be the same tensors.
        """
        if self._scaling is None or self._scaling[0] is not targets:
            movable = self.matrices if biases else self.matrices[: self._counted]
            work = [
                (number, exponent, matrix.entries(tensors[matrix.layout.name]))
                for number, matrix in enumerate(movable)
                if matrix.is_free
                for tensors, exponent in targets
                if matrix.layout.name in tensors
            ]
            self._scaling = targets, self._bind_scale(work)
        self._scaling[1](x)

    def norm(self, tensors: Weights) -> float:
        """sum of c_k ||W_k||_p^p of the weights as they are."""
        return self._cycle.norm(self._entries(tensors))

    def residual(self, tensors: Weights) -> float:
        """max |R - L| / (R + L) over the scales with weights on both sides."""
        return self._cycle.residual(self._entries(tensors))

    def _entries(self, tensors: Weights) -> list[Entries]:
        return [m.entries(tensors[m.layout.name]) for m in self.matrices[: self._counted]]

    def _bound_find(self, entries: Sequence[Entries]) -> Find:
        return partial(self._cycle.run, entries)

    def _bound_scale(self, work: Work) -> Scale:
        return Scaling(self.matrices, work, self._places, self._split, self._table_of, self._dtype)

    def _scale_whole(self, x: Tensor, work: Work) -> None:
        """The scaling pass as one expression per tensor, for the compiler."""
        factors = {
            e: self._split(self._kernels.look_up(self._table_of(x, e), self._places))
            for e in {exponent for _, exponent, _ in work}
        }
        for number, exponent, entries in work:
            matrix, (lines, columns) = self.matrices[number], factors[exponent][number]
            entries.whole.mul_(lines.unsqueeze(1) * matrix.by_line(columns))

    def _table_of(self, x: Tensor, exponent: int) -> Tensor:
        return table_of(x, exponent, self._dtype, self._exact)

    def _split(self, together: Tensor) -> list[tuple[Tensor, Tensor]]:
        parts = torch.split(together, self._sizes)
        return list(zip(parts[::2], parts[1::2], strict=True))
