"""Which tensors can move with a parameter: optimizer state, and copies that follow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equinorm.training.precision import DIGITS
from equinorm.training.shards import is_sharded


def obstacle(tensor: Tensor, parameter: Tensor) -> str | None:
    """Why a tensor cannot be scaled as a parameter is, or None if it can."""
    if tensor.shape != parameter.shape:
        return f"has shape {tuple(tensor.shape)}, not the parameter's {tuple(parameter.shape)}"
    if tensor.dtype not in DIGITS:
        return f"has type {tensor.dtype}, which holds no scaled values"
    if tensor.layout != torch.strided:
        return f"is stored as {tensor.layout}"
    if tensor.device != parameter.device:
        return f"is on {tensor.device}, the parameter on {parameter.device}"
    if _placement(tensor) != _placement(parameter):
        return "is not sharded as the parameter is"
    return None


def _placement(tensor: Any) -> object:
    return (tensor.device_mesh, tensor.placements) if is_sharded(tensor) else None
