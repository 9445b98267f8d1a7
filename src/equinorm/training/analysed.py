"""The model that training normalises, its symmetries and its parameters, checked against each other."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from equinorm import request
from equinorm.errors import ArgumentError
from equinorm.find import symmetries as find_symmetries
from equinorm.symmetry import Symmetries
from equinorm.trace import ExampleInputs
from equinorm.training.shards import is_sharded


class Analysed(NamedTuple):
    """A model without its wrappers, and what is known of it."""

    model: nn.Module
    symmetries: Symmetries
    parameters: dict[str, nn.Parameter]


def analysed(
    model: nn.Module, example_inputs: ExampleInputs | None, symmetries: Symmetries | None, batch_norm: str
) -> Analysed:
    """Find the symmetries, or check those given; refuse parameters that scales cannot be written into."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    inner = unwrapped(model)
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in inner.modules()):
        raise ArgumentError(
            "model: FullyShardedDataParallel (FSDP1) flattens its parameters; shard it with "
            "torch.distributed.fsdp.fully_shard instead"
        )
    parameters = dict(inner.named_parameters())
    if symmetries is None:
        if example_inputs is None:
            raise ArgumentError("example_inputs: needed to find the symmetries")
        if any(is_sharded(parameter) for parameter in parameters.values()):
            raise ArgumentError(
                "model: it cannot be traced once it is sharded; pass symmetries=, found by equinorm.symmetries before "
                "fully_shard"
            )
        symmetries = find_symmetries(inner, example_inputs, batch_norm=batch_norm)
    elif not isinstance(symmetries, Symmetries):
        raise ArgumentError(f"symmetries: expected what equinorm.symmetries returns, got {symmetries!r}")
    elif symmetries.batch_norm != batch_norm:
        raise ArgumentError(
            f"symmetries: found with batch_norm={symmetries.batch_norm!r}, not {batch_norm!r}"
        )
    request.parameters(inner, symmetries)
    return Analysed(inner, symmetries, parameters)


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside torch.compile, DistributedDataParallel and averaging wrappers."""
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel, torch.optim.swa_utils.AveragedModel)
    while True:
        if isinstance(model, wrappers):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model
