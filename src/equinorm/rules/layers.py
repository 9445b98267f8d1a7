"""Linear layers: fresh ids on the output channels, their inverse on the input channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equinorm.derived import PARAMETRIC, moved
from equinorm.rules.contract import contract
from equinorm.rules.elementwise import add
from equinorm.rules.movement import look_up
from equinorm.rules.registry import pinned_output, rule
from equinorm.values import Scaled, Value

if TYPE_CHECKING:
    from equinorm.analysis import Analysis

FAMILY = "linear layer: fresh ids on the outputs, consumed ids on the inputs"


@rule(FAMILY, "linear")
def linear(a: Analysis, input: Value, weight: Value, bias: Value | None = None) -> Any:
    tokens, rows = "abcdefgh"[: input.rank - 1], "o"[: weight.rank - 1]
    ids = contract(a, input, tokens + "i", weight, rows + "i", tokens + rows)
    return _biased(a, ids, bias)


def _biased(a: Analysis, ids: Tensor, bias: Value | None) -> Any:
    result = Scaled(ids.expand(a.output.shape))
    return result if bias is None else add(a, result, bias)


@rule(FAMILY, "bilinear")
def bilinear(a: Analysis, input1: Value, input2: Value, weight: Value, bias: Value | None = None) -> Any:
    """Linear in each input: the second is pinned, the first is scaled as by a linear layer."""
    a.pin(input2, "the second input of a bilinear map")
    tokens = "abcdefgh"[: a.output.dim() - 1]
    return _biased(a, contract(a, input1, tokens + "i", weight, "oij", tokens + "o"), bias)


@rule(FAMILY, "conv1d", "conv2d", "conv3d")
def conv(
    a: Analysis,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """A weight (groups·o, i, kernel…): every group is a linear map of its own on its channels."""
    return _convolve(a, input, weight, "goi", bias, groups)


@rule(FAMILY, "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(
    a: Analysis,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """The same with a weight (groups·i, o, kernel…)."""
    return _convolve(a, input, weight, "gio", bias, groups)


@rule(FAMILY, "convolution", "_convolution")
def convolution(
    a: Analysis,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *flags: Any,
) -> Any:
    if transposed:
        return conv_transpose(a, input, weight, bias, groups=groups)
    return conv(a, input, weight, bias, groups=groups)


def _convolve(a: Analysis, input: Value, weight: Value, labels: str, bias: Value | None, groups: int) -> Any:
    spatial = weight.rank - 2
    ids = a.ids_of(input)
    positions = [d for d in range(ids.dim()) if d != ids.dim() - spatial - 1]
    channels = a.uniform(ids, positions, "a convolution acts on all positions alike").flatten()
    by_group = Scaled(torch.unflatten(channels, 0, (groups, -1)))
    maps = contract(a, by_group, "gi", _by_group(a, weight, groups), labels + "xyz"[:spatial], "go")
    ids = maps.expand(groups, a.output.size(-spatial - 1) // groups).reshape([-1, *[1] * spatial])
    return _biased(a, ids, None if bias is None else _as_channels(a, bias, spatial))


def _by_group(a: Analysis, weight: Value, groups: int) -> Value:
    """The weight with its leading dimension split into (groups, channels of a group)."""
    if isinstance(weight, PARAMETRIC):
        split = moved(a, weight, lambda matrix: torch.unflatten(matrix, 0, (groups, -1)))
        if split is not None:
            return split  # type: ignore[no-any-return]
    return Scaled(torch.unflatten(a.ids_of(weight), 0, (groups, -1)))


def _as_channels(a: Analysis, bias: Value, spatial: int) -> Value:
    if isinstance(bias, PARAMETRIC):
        return moved(a, bias, lambda vector: vector.view([-1, *[1] * spatial]))  # type: ignore[no-any-return]
    return Scaled(a.ids_of(bias).reshape([-1, *[1] * spatial]))


@rule(FAMILY, "embedding")
def embedding(a: Analysis, weight: Value, indices: Value, *args: Any, **kwargs: Any) -> Value:
    return look_up(a, weight)


@rule(FAMILY, "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(a: Analysis, weight: Value, indices: Value, *args: Any, **kwargs: Any) -> Any:
    """Sums, means or maxima of rows."""
    a.pin([v for v in (*args, *kwargs.values()) if isinstance(v, Scaled)], "it weighs the rows")
    rest = pinned_output(a)
    return (look_up(a, weight), *rest[1:])
