"""Sums, extrema and windows: the ids that meet in one output entry must be equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from equinorm.rules.registry import pin_all, pinned_output, rule
from equinorm.values import Scaled, Value

if TYPE_CHECKING:
    from equinorm.analysis import Analysis

REDUCES = "sums or compares along dimensions: ids that meet must be equal"
WINDOWS = "windows over space: ids that meet must be equal"


@rule(REDUCES, "sum", "mean", "nansum", "amax", "amin", "max", "min", "median", "linalg_vector_norm", "norm", "std",
      "mode")  # fmt: skip
def reduce(a: Analysis, input: Value, *args: Any, **kwargs: Any) -> Any:
    """One scale along the reduced dimensions. (A norm is homogeneous of degree one, as a sum is.)"""
    if _rounds(a):
        return pin_all(a, (input, args, kwargs), f"{a.operator} rounds to integers")
    ids = a.ids_of(input)
    if any(named == 0 and not isinstance(named, bool) for named in args[:1]) and "norm" in a.operator:
        a.pin(input, "a norm of order zero counts entries")
        return pinned_output(a)
    dims, binary = _reduced_dims(a, ids.dim(), args, kwargs)
    if binary is not None:
        return Scaled(a.unite(ids, a.ids_of(binary), f"{a.operator} compares them"))
    common = a.uniform(ids, dims, f"{a.operator} runs over them")
    output = a.output if isinstance(a.output, Tensor) else a.output[0]
    kept = common if common.dim() == output.dim() else _without(common, dims)
    result = Scaled(kept.expand(output.shape))
    return result if isinstance(a.output, Tensor) else (result, *pinned_output(a)[1:])


def _rounds(a: Analysis) -> bool:
    output = a.output if isinstance(a.output, Tensor) else a.output[0]
    return not (output.is_floating_point() or output.is_complex())


def _reduced_dims(
    a: Analysis, rank: int, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[int], Any]:
    """The reduced dimensions by the operator's schema, or the other operand of a binary max or min."""
    assert a.schema is not None
    named = dict(zip([argument.name for argument in a.schema.arguments][1:], args, strict=False)) | kwargs
    if "other" in named:
        return [], named["other"]
    dims = named.get("dim")
    if dims is None or dims == []:
        return list(range(rank)), None
    return [d % max(rank, 1) for d in ([dims] if isinstance(dims, int) else dims)], None


def _without(ids: Tensor, dims: Sequence[int]) -> Tensor:
    for dim in sorted(dims, reverse=True):
        ids = ids.squeeze(dim)
    return ids


@rule(REDUCES, "cumsum", "sort", "topk", "kthvalue", "cummax", "cummin", "msort")
def along(a: Analysis, input: Value, *args: Any, **kwargs: Any) -> Any:
    """Running sums and orderings along one dimension keep its (single) scale."""
    assert a.schema is not None
    if _rounds(a):
        return pin_all(a, (input, args, kwargs), f"{a.operator} rounds to integers")
    named = dict(zip([argument.name for argument in a.schema.arguments][1:], args, strict=False)) | kwargs
    dim = named.get("dim", 0 if a.operator == "msort" else -1)
    common = a.uniform(a.ids_of(input), [dim], f"{a.operator} runs over them")
    if isinstance(a.output, Tensor):
        return Scaled(common.expand(a.output.shape))
    values = common if a.output[0].dim() == common.dim() else common.squeeze(dim)
    return Scaled(values.expand(a.output[0].shape)), *pinned_output(a)[1:]


SPATIAL = {
    1: "max_pool1d avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d upsample_linear1d max_pool1d_with_indices",
    2: "max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d max_pool2d_with_indices upsample_bilinear2d "
    "upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler_2d _adaptive_avg_pool2d "
    "fractional_max_pool2d max_unpool2d",
    3: "max_pool3d avg_pool3d adaptive_avg_pool3d adaptive_max_pool3d max_pool3d_with_indices upsample_trilinear3d "
    "_adaptive_avg_pool3d max_unpool3d",
}


def _window(spatial: int) -> Any:
    def window(a: Analysis, input: Value, *args: Any, **kwargs: Any) -> Any:
        """One scale per channel over the whole plane: coarser than windows, and it never matters."""
        a.pin([v for v in args if isinstance(v, Scaled)], "it says where to sample")
        common = a.uniform(a.ids_of(input), list(range(-spatial, 0)), f"{a.operator} runs over them")
        output = a.output if isinstance(a.output, Tensor) else a.output[0]
        result = Scaled(common.expand(output.shape))
        return result if isinstance(a.output, Tensor) else (result, *pinned_output(a)[1:])

    return window


for _spatial, _operators in SPATIAL.items():
    rule(WINDOWS, *_operators.split())(_window(_spatial))


@rule(WINDOWS, "grid_sampler")
def grid_sampler(a: Analysis, input: Value, grid: Value, *args: Any) -> Value:
    a.pin(grid, "it says where to sample")
    ids = a.ids_of(input)
    common = a.uniform(ids, list(range(2, ids.dim())), "grid_sampler runs over them")
    return Scaled(common.expand(a.output.shape))
