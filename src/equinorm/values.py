"""What the analysis knows about a tensor of the traced graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equinorm.scale_ids import WILD


@dataclass(frozen=True, eq=False)
class Known:
    """A constant whose numbers are known: masks, index tables, zeros."""

    tensor: Tensor

    @property
    def rank(self) -> int:
        return self.tensor.dim()

    def ids(self) -> Tensor:
        """Constants are pinned; zeros (and infinities, which no scale changes) agree with anything."""
        if self.tensor.dtype.is_complex or self.tensor.layout is not torch.strided:
            return torch.zeros((), dtype=torch.float64).expand(self.tensor.shape)
        numbers = self.tensor.to("cpu", torch.float64)
        return torch.where((numbers == 0) | numbers.isinf(), WILD, 0.0)


@dataclass(frozen=True, eq=False)
class Weight:
    """A view of a parameter that no operator has consumed yet, in the strides of a contiguous parameter."""

    parameter: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    @property
    def rank(self) -> int:
        return len(self.size)

    @staticmethod
    def whole(parameter: str, size: Sequence[int]) -> Weight:
        stride = torch.empty(tuple(size), device="meta").stride()
        return Weight(parameter, tuple(size), stride)

    def viewed(self, template: Tensor) -> Weight:
        """The view of the parameter that ``template`` (made from :meth:`template`) has become."""
        return Weight(
            self.parameter,
            tuple(template.shape),
            template.stride(),
            self.offset + int(template.storage_offset()),
        )

    def template(self) -> Tensor:
        """A tensor without memory on which a view operator shows what it does to this view."""
        return torch.empty_strided(self.size, self.stride, device="meta")

    @property
    def is_repeated(self) -> bool:
        """Whether entries appear several times, as ``expand`` makes them."""
        return any(stride == 0 and n > 1 for n, stride in zip(self.size, self.stride, strict=True))

    def unrepeated(self) -> Weight:
        """The same view with repeated dimensions (of stride zero) narrowed to size one."""
        size = tuple(1 if stride == 0 else n for n, stride in zip(self.size, self.stride, strict=True))
        return Weight(self.parameter, size, self.stride, self.offset)

    def assign(self, record: Record, plus: Tensor, minus: Tensor) -> None:
        """Demand that the entries scale by plus over minus."""
        record(self, plus, minus)


Record = Callable[[Weight, Tensor, Tensor], None]  # how an analysis notes a demand on a parameter


@dataclass(frozen=True, eq=False)
class Derived:
    """A tensor computed from parameters alone that no operator has consumed yet (see ``derived``)."""

    size: tuple[int, ...]
    parameter: str  # the parameters, as messages call them
    assign: Callable[[Record, Tensor, Tensor], None]  # hand a demand down to the parameters

    @property
    def rank(self) -> int:
        return len(self.size)


@dataclass(frozen=True, eq=False)
class Scaled:
    """A tensor computed from the inputs, as the scale id of every entry (expanded where ids repeat)."""

    ids: Tensor

    @property
    def rank(self) -> int:
        return self.ids.dim()


@dataclass(frozen=True, eq=False)
class Fixed(Scaled):
    """A floating-point buffer: pinned whatever its numbers, and no function of the inputs."""


Value = Known | Weight | Derived | Scaled


def compact(ids: Tensor) -> Tensor:
    """The same ids with every repeated dimension narrowed to size one."""
    for dim in range(ids.dim()):
        if ids.stride(dim) == 0 and ids.size(dim) > 1:
            ids = ids.narrow(dim, 0, 1)
    return ids


def shrink(ids: Tensor) -> Tensor:
    """Expand again what an operator has copied out: dimensions along which the ids do not change."""
    small = compact(ids)
    if small.numel() > 4096:
        for dim in range(small.dim()):
            first = small.narrow(dim, 0, 1)
            if small.size(dim) > 1 and bool((small == first).all()):
                small = first
    return small.expand(ids.shape)
