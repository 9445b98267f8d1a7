"""Whether tensors hold NaN or infinity, with one look at the device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def sum_of_norms(tensors: Sequence[Tensor]) -> Tensor | None:
    """A number that is finite if all entries are; None if there are none."""
    held = [tensor for tensor in tensors if tensor.numel()]
    if not held:
        return None
    norms = torch._foreach_norm(held)
    if len({norm.dtype for norm in norms}) > 1:
        norms = tuple(norm.double() for norm in norms)
    return torch.stack(norms).sum(dtype=torch.float64)


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether no entry is NaN or infinite."""
    total = sum_of_norms(tensors)
    return total is None or math.isfinite(float(total))
