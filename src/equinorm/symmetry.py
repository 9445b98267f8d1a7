"""What the analysis finds: the log-scale variables, and how each entry of each parameter uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Scaling:
    """How the scales multiply one strided view of one parameter.

    Sizes, strides and offset are those of a view of the parameter as if it were contiguous. The entry at an
    index e of that view is multiplied by ``exp(x[plus[e]] - x[minus[e]])``: the produced channel over the
    consumed one, which is Equation 3 of the paper, D_{k-1}^{-1} W_k D_k, for one entry. ``plus`` and
    ``minus`` hold signed variable numbers and broadcast to ``size``: 0 is pinned (x = 0), and -v stands for
    -x[v].
    """

    parameter: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    plus: Tensor  # int64
    minus: Tensor  # int64
    counted: bool  # part of the norm: multiplicative parameters count, additive ones only move
    dims: tuple[int, ...]  # the parameter's dimension that each dimension of the view walks along

    def view(self, tensor: Tensor) -> Tensor:
        """The entries that this scaling speaks of, as a view of the parameter ``tensor``."""
        if tensor.is_contiguous():
            return tensor.as_strided(self.size, self.stride, tensor.storage_offset() + self.offset)
        logical = torch.empty(tensor.shape, device="meta").stride()
        offset, rest = tensor.storage_offset(), self.offset
        for step, stride in zip(logical, tensor.stride(), strict=True):  # e.g. channels last
            offset, rest = offset + rest // step * stride, rest % step
        strides = [s // logical[d] * tensor.stride(d) for s, d in zip(self.stride, self.dims, strict=True)]
        return tensor.as_strided(self.size, strides, offset)


class Member(NamedTuple):
    """One place where a group's scales act: +1 multiplies the entries (producer), -1 divides (consumer)."""

    parameter: str
    dim: int
    sign: int


@dataclass(frozen=True)
class Group:
    """Scales that act in the same places: variables ``start`` … ``start + size - 1``."""

    start: int
    size: int
    members: tuple[Member, ...]

    @property
    def variables(self) -> range:
        return range(self.start, self.start + self.size)


@dataclass(frozen=True)
class Pin:
    """Why something cannot be rescaled."""

    what: str  # a parameter's name, or the activation's name in the traced graph
    op: str
    module: str
    reason: str


@dataclass(frozen=True, eq=False)
class Symmetries:
    """Every positive-rescaling symmetry found: variables 1 … num_free, in groups in topological order."""

    num_free: int
    groups: tuple[Group, ...]
    scalings: tuple[Scaling, ...]
    pinned: tuple[Pin, ...]
    depth: Mapping[str, int]  # k of each counted parameter: linear maps on the longest path, itself included
    shapes: Mapping[str, torch.Size] = field(repr=False)
    coverage: float = 0.0  # share of the linear and convolutional weights with at least one free dimension
    batch_norm: str = "preserve"

    def __str__(self) -> str:
        from equinorm.table import describe

        return describe(self)
