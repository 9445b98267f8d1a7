"""Comparisons and signs: their results do not change with positive scales that agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from equinorm.rules.registry import EVALUATED_LIMIT, is_number, pinned_output, rule
from equinorm.scale_ids import WILD
from equinorm.values import Known, Scaled, Value

if TYPE_CHECKING:
    from equinorm.analysis import Analysis

FAMILY = "compares: unchanged by scales that agree"


@rule(FAMILY, "sign", "sgn", "isnan", "isinf", "isfinite", "logical_not", "signbit", "size", "sym_size", "ones_like",
      "empty_like", "full_like",
      "new_full", "rand_like", "randn_like", "new_ones", "new_empty", "_assert_tensor_metadata")  # fmt: skip
def unchanged(a: Analysis, *args: Any, **kwargs: Any) -> Any:
    return pinned_output(a)


@rule(FAMILY, "zeros_like", "new_zeros")
def zeros(a: Analysis, *args: Any, **kwargs: Any) -> Value:
    """Known numbers, which an operator may write to in place; too many of them are wildcards only."""
    if a.output.numel() > EVALUATED_LIMIT:
        return Scaled(torch.full((), WILD, dtype=torch.float64).expand(a.output.shape))
    device = "cpu" if a.output.device.type == "meta" else a.output.device
    return Known(torch.zeros(a.output.shape, dtype=a.output.dtype, device=device))


@rule(FAMILY, "gt", "ge", "lt", "le", "eq", "ne")
def compare(a: Analysis, input: Value, other: Value) -> Any:
    if is_number(other):
        if other != 0:
            a.pin(input, "it is compared with a constant")
    else:
        a.unite(a.ids_of(input), a.ids_of(other), "they are compared")
    return pinned_output(a)


@rule(FAMILY, "argmax", "argmin", "argsort")
def order(a: Analysis, input: Value, dim: int | None = None, *args: Any, **kwargs: Any) -> Any:
    ids = a.ids_of(input)
    a.uniform(ids, list(range(ids.dim())) if dim is None else [dim], f"{a.operator} compares them")
    return pinned_output(a)
