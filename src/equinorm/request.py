"""What ``balance`` was asked for, and whether it can be done: everything is checked before anything moves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equinorm.errors import ArgumentError
from equinorm.find import BATCH_NORM_POLICIES
from equinorm.scalars import is_real, is_whole
from equinorm.solve import METHODS
from equinorm.symmetry import Symmetries

SCALES = ("real", "pow2")


@dataclass(frozen=True)
class Request:
    """The arguments of ``balance`` that are plain values."""

    p: float
    solver: str
    cycles: int | None
    tol: float
    scales: str
    batch_norm: str
    biases: bool
    verify: bool

    @property
    def preserves(self) -> bool:
        """Whether the function must not change."""
        return self.biases and self.batch_norm == "preserve"

    def __post_init__(self) -> None:
        if not is_real(self.p) or not self.p > 0:
            raise ArgumentError(f"p: expected a positive number or float('inf'), got {self.p!r}")
        for name, value, known in (
            ("solver", self.solver, tuple(METHODS)),
            ("scales", self.scales, SCALES),
            ("batch_norm", self.batch_norm, BATCH_NORM_POLICIES),
        ):
            if value not in known:
                raise ArgumentError(f"{name}: expected one of {', '.join(map(repr, known))}, got {value!r}")
        if self.cycles is not None and (not is_whole(self.cycles) or self.cycles < 0):
            raise ArgumentError(f"cycles: expected a whole number or None, got {self.cycles!r}")
        if not is_real(self.tol) or not 0 < self.tol < math.inf:
            raise ArgumentError(f"tol: expected a positive number, got {self.tol!r}")
        for name, flag in (("biases", self.biases), ("verify", self.verify)):
            if not isinstance(flag, bool):
                raise ArgumentError(f"{name}: expected True or False, got {flag!r}")


def parameters(model: nn.Module, symmetries: Symmetries) -> dict[str, Tensor]:
    """The parameters that the symmetries speak of, checked against the model."""
    present = dict(model.named_parameters())
    if set(present) != set(symmetries.shapes):
        odd = sorted(set(present) ^ set(symmetries.shapes))
        raise ArgumentError(f"symmetries: found on another model; parameter {odd[0]} is only in one of them")
    for name, shape in symmetries.shapes.items():
        if present[name].shape != shape:
            raise ArgumentError(
                f"symmetries: found on another model; parameter {name} had shape {tuple(shape)}, "
                f"now it has {tuple(present[name].shape)}"
            )
    used = {scaling.parameter for scaling in symmetries.scalings}
    found = {name: parameter.detach() for name, parameter in present.items() if name in used}
    for name, tensor in found.items():
        _check_kind(name, tensor)
    # of a sharded parameter (DTensor), what this process holds
    _check_memory({name: getattr(tensor, "_local_tensor", tensor) for name, tensor in found.items()})
    return found


def _check_kind(name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise ArgumentError(f"parameter {name} has type {tensor.dtype}; only real weights can be balanced")
    if tensor.device.type == "meta":
        raise ArgumentError(
            f"parameter {name} is on the meta device and has no values; load the weights first"
        )
    if tensor.layout != torch.strided:
        raise ArgumentError(
            f"parameter {name} is stored as {tensor.layout}; convert it with .to_dense() first"
        )


def _check_memory(tensors: Mapping[str, Tensor]) -> None:
    """Entries in shared memory would be scaled twice."""
    sharing: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        if any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)):
            raise ArgumentError(f"parameter {name} repeats entries of its memory; replace it by its .clone()")
        sharing.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
    for names in sharing.values():
        if len(names) > 1:
            _check_disjoint({name: tensors[name] for name in names})


def _check_disjoint(tensors: Mapping[str, Tensor]) -> None:
    """Views of one flat buffer are welcome as long as no entry belongs to two of them."""
    sizes = {tensor.element_size() for tensor in tensors.values()}
    storage = next(iter(tensors.values())).untyped_storage()
    taken = torch.zeros(storage.nbytes() // min(sizes), dtype=torch.bool)
    for name, tensor in tensors.items():
        mine = taken.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if len(sizes) > 1 or mine.any():
            raise ArgumentError(
                f"parameter {name} shares memory with another without being the same parameter; tie them "
                "(assign one nn.Parameter to both) or replace one by its .clone()"
            )
        mine.fill_(True)
