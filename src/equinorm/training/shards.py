"""Parameters sharded on dimension 0 (FSDP2's DTensors): the local part, and sums over the processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from equinorm.errors import ArgumentError
from equinorm.training.cycle import Reduce
from equinorm.training.matrix import Held


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds, without its autograd history."""
    inner = getattr(tensor, "_local_tensor", None)
    return (inner if isinstance(inner, Tensor) else tensor).detach()


def locals_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The local parts by name."""
    return {name: local(tensor) for name, tensor in tensors.items()}


def is_sharded(tensor: Tensor) -> bool:
    """Whether this is a DTensor."""
    return hasattr(tensor, "placements") and hasattr(tensor, "device_mesh")


def held_of(name: str, tensor: Tensor) -> Held:
    """Which entries, counted in memory order over the whole parameter, lie in the local part."""
    if not is_sharded(tensor):
        return Held(0, tensor.numel())
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _mesh_dim(name, tensor)
    placed: Any = tensor
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, placed.device_mesh, placed.placements)
    row = tensor[0].numel() if tensor.dim() and tensor.shape[0] else 1
    first = offset[0] * row if offset else 0
    return Held(first, first + torch.Size(shape).numel())


def reducer(parameters: Iterable[tuple[str, Tensor]]) -> Reduce | None:
    """How to sum over the processes that share these parameters, or None if none is sharded."""
    groups = {}
    for name, tensor in parameters:
        if is_sharded(tensor):
            placed: Any = tensor
            group = placed.device_mesh.get_group(_mesh_dim(name, tensor))
            groups[tuple(torch.distributed.get_process_group_ranks(group))] = group
    if not groups:
        return None
    if len(groups) > 1:
        raise ArgumentError("model: its parameters are sharded over several device meshes; ENorm needs one")
    (group,) = groups.values()

    def reduce(vector: Tensor) -> None:
        torch.distributed.all_reduce(vector, group=group)

    return reduce


def _mesh_dim(name: str, tensor: Any) -> int:
    sharded = [d for d, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    if len(sharded) != 1 or not tensor.placements[sharded[0]].is_shard(0):
        raise ArgumentError(
            f"parameter {name} is placed as {tuple(tensor.placements)}; ENorm needs shards of dimension 0 "
            "(fully_shard's default)"
        )
    return sharded[0]
