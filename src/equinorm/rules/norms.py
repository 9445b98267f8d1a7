"""Normalisations: the input is pinned (its scale would meet an epsilon), the affine output is free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equinorm.derived import PARAMETRIC, moved
from equinorm.rules.elementwise import add, mul
from equinorm.rules.registry import pinned_output, rule
from equinorm.values import Scaled, Value

if TYPE_CHECKING:
    from equinorm.analysis import Analysis

FAMILY = "normalises: the input is pinned, the affine output gets fresh ids"


@rule(FAMILY, "batch_norm", "instance_norm", "_native_batch_norm_legit_functional",
      "_native_batch_norm_legit_no_training", "_native_batch_norm_legit", "native_batch_norm")  # fmt: skip
def batch_norm(a: Analysis, input: Value, weight: Value | None, bias: Value | None, *args: Any) -> Any:
    """Policy "preserve" pins its input; policy "ignore" runs as if the layer were not there (paper: ENorm + BN)."""
    if a.batch_norm == "ignore" and "batch_norm" in a.operator:
        a.pin([weight, bias], "batch norm is ignored, as the paper's ENorm + BN does")
        return _first(a, a.ids_of(input))
    a.pin(input, f"it enters {a.operator}")
    return _affine(a, _per_channel(a, weight), _per_channel(a, bias))


@rule(FAMILY, "group_norm")
def group_norm(
    a: Analysis, input: Value, groups: int, weight: Value | None = None, bias: Value | None = None, *args: Any
) -> Any:
    a.pin(input, "it enters group_norm")
    return _affine(a, _per_channel(a, weight), _per_channel(a, bias))


@rule(FAMILY, "native_group_norm")
def native_group_norm(a: Analysis, input: Value, weight: Value | None, bias: Value | None, *args: Any) -> Any:
    return group_norm(a, input, 0, weight, bias)


@rule(FAMILY, "layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm")
def layer_norm(
    a: Analysis,
    input: Value,
    shape: Sequence[int],
    weight: Value | None = None,
    bias: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    a.pin(input, f"it enters {a.operator}")
    return _affine(a, weight, None if isinstance(bias, float) else bias)  # rms_norm has its epsilon there


def _rank(a: Analysis) -> int:
    output = a.output if isinstance(a.output, Tensor) else a.output[0]
    return int(output.dim())


def _per_channel(a: Analysis, parameter: Value | None) -> Value | None:
    """A vector over the channels, dimension one, as it broadcasts against the output."""
    rank = _rank(a)
    if isinstance(parameter, PARAMETRIC):
        return moved(a, parameter, lambda vector: vector.view([-1, *[1] * (rank - 2)]))  # type: ignore[no-any-return]
    return (
        Scaled(parameter.ids.reshape([-1, *[1] * (rank - 2)])) if isinstance(parameter, Scaled) else parameter
    )


def _affine(a: Analysis, weight: Value | None, bias: Value | None) -> Any:
    """``normalised * weight + bias``: the normalised values are pinned, the weight scales the result."""
    output = a.output if isinstance(a.output, Tensor) else a.output[0]
    result: Any = Scaled(torch.zeros((), dtype=torch.float64).expand(output.shape))
    if weight is not None:
        result = mul(a, result, weight)
    if bias is not None:
        result = add(a, result, bias)
    return _first(a, result.ids)


def _first(a: Analysis, ids: Tensor) -> Any:
    """Native kernels return statistics beside the output."""
    if isinstance(a.output, Tensor):
        return Scaled(ids)
    return (Scaled(ids), *pinned_output(a)[1:])


@rule(FAMILY, "_weight_norm", "_weight_norm_interface")
def weight_norm(a: Analysis, direction: Value, magnitude: Value, dim: int = 0) -> Any:
    """``g * v / |v|``: the magnitude scales the output channels; the direction, and with it the input, is pinned."""
    a.pin(direction, "the direction of a weight-normalised layer: its norm is divided out")
    output = a.output if isinstance(a.output, Tensor) else a.output[0]
    ids = torch.zeros((), dtype=torch.float64).expand(output.shape)
    return _first(a, a.ids_of(mul(a, Scaled(ids), magnitude)))
