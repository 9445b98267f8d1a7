"""Data movement: run the operator itself on the ids. Exact, whatever it does with its input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equinorm.derived import PARAMETRIC, concatenated, moved
from equinorm.rules.registry import pin_unknown, pinned_output, rule
from equinorm.scale_ids import WILD
from equinorm.values import Derived, Known, Scaled, Value, Weight, shrink

if TYPE_CHECKING:
    from equinorm.analysis import Analysis

FAMILY = "moves data: the ids move with it"

VIEWS = (
    "flatten unflatten permute transpose t swapaxes swapdims numpy_T mT "
    "movedim moveaxis unsqueeze squeeze expand expand_as broadcast_to slice select narrow split split_with_sizes "
    "tensor_split hsplit vsplit chunk unsafe_chunk unsafe_split unbind diagonal unfold view_copy"
).split()
COPIES = (
    "repeat tile roll flip fliplr flipud rot90 stack hstack vstack dstack concat concatenate "
    "pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle slice_scatter select_scatter "
    "diagonal_scatter upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
    "_upsample_nearest_exact2d _upsample_nearest_exact3d reflection_pad1d reflection_pad2d reflection_pad3d "
    "replication_pad1d replication_pad2d replication_pad3d space_to_depth block_diag meshgrid"
).split()
SAME = "clone contiguous detach alias lift_fresh lift_fresh_copy lift positive".split()


@rule(FAMILY, *VIEWS, *COPIES)
def move(a: Analysis, *args: Any, **kwargs: Any) -> Any:
    if args and isinstance(args[0], PARAMETRIC):
        plain = not any(
            isinstance(v, (Known, Weight, Derived, Scaled)) for v in pytree.tree_leaves((args[1:], kwargs))
        )
        views = moved(a, args[0], lambda ids: a.apply(ids, *args[1:], **kwargs)) if plain else None
        if views is not None:
            return views
    return _run_on_ids(a, args, kwargs)


@rule(FAMILY, "view", "_unsafe_view", "reshape", "view_as", "reshape_as")
def reshape(a: Analysis, input: Value, *args: Any, **kwargs: Any) -> Any:
    """Ids may lie in memory unlike the numbers that they describe, so they are reshaped, not viewed."""
    if a.output.dtype != a.fakes[0].dtype:
        a.pin(input, "its bits are read as another type")
        return pinned_output(a)
    if isinstance(input, PARAMETRIC):
        shaped = moved(a, input, lambda ids: ids.reshape(a.output.shape))
        if shaped is not None:
            return shaped
    return Scaled(shrink(a.ids_of(input).reshape(a.output.shape)))


def _ids_or_places(a: Analysis, value: Any, is_data: bool) -> Any:
    """Ids of data; whole numbers beside it say where to cut or how often to repeat."""
    if isinstance(value, Known) and not is_data and not value.tensor.is_floating_point():
        return value.tensor.cpu()
    return a.ids_of(value) if isinstance(value, (Known, Weight, Derived, Scaled)) else value


def _run_on_ids(a: Analysis, args: Any, kwargs: Any) -> Any:
    ids = pytree.tree_map(lambda v: _ids_or_places(a, v, v is args[0]), (args, kwargs))
    result = a.apply(*ids[0], **ids[1])
    return pytree.tree_map(lambda v: Scaled(shrink(v)), result)


@rule(FAMILY, *SAME)
def keep(a: Analysis, input: Value, *args: Any, **kwargs: Any) -> Value:
    return input


@rule(FAMILY, "to", "_to_copy", "type_as", "to_copy")
def cast(a: Analysis, input: Value, *args: Any, **kwargs: Any) -> Any:
    """A cast to another floating-point type; to integers it rounds, which no scale survives."""
    if a.output.is_floating_point() or a.output.is_complex():
        return input
    a.pin(input, "it is cast to integers")
    return pinned_output(a)


@rule(FAMILY, "cat")
def cat(a: Analysis, tensors: list[Value], dim: int = 0) -> Value:
    """Concatenation, on ids narrowed along every other dimension where all of them repeat."""
    if all(isinstance(tensor, PARAMETRIC) and tensor.rank == a.output.dim() for tensor in tensors):
        return concatenated(tensors, dim % a.output.dim(), a.output.shape)  # type: ignore[arg-type]
    parts = [a.ids_of(tensor) for tensor in tensors]
    parts = [part for part in parts if part.dim() == a.output.dim()]
    dim %= a.output.dim()
    for other in range(a.output.dim()):
        if other != dim and all(part.stride(other) == 0 or part.size(other) == 1 for part in parts):
            parts = [part.narrow(other, 0, 1) for part in parts]
    return Scaled(shrink(torch.cat(parts, dim).expand(a.output.shape)))


@rule(FAMILY, "constant_pad_nd")
def constant_pad(a: Analysis, input: Value, pad: list[int], value: float = 0.0) -> Any:
    """Padding with zeros (or infinities) agrees with every scale; with another constant it pins."""
    if value not in (0.0, float("inf"), float("-inf")):
        a.pin(input, f"it is padded with {value}")
        return pinned_output(a)
    return Scaled(shrink(torch.constant_pad_nd(a.ids_of(input), pad, WILD)))


@rule(FAMILY, "pad")
def pad(a: Analysis, input: Value, pad: list[int], mode: str = "constant", value: float | None = None) -> Any:
    if mode == "constant":
        return constant_pad(a, input, pad, value or 0.0)
    return _run_on_ids(a, (input, pad, mode), {})


@rule(FAMILY, "im2col")
def im2col(a: Analysis, input: Value, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Value:
    vertical, horizontal = padding
    ids = torch.constant_pad_nd(a.ids_of(input), [horizontal, horizontal, vertical, vertical], WILD)
    return Scaled(shrink(torch.ops.aten.im2col(ids, kernel_size, dilation, [0, 0], stride)))


@rule(FAMILY, "col2im")
def col2im(a: Analysis, input: Value, output_size: Any, kernel_size: Sequence[int], *args: Any) -> Value:
    """Overlapping windows are summed: one scale per channel over all of them."""
    ids = torch.unflatten(a.ids_of(input), -2, (-1, kernel_size[0] * kernel_size[1]))
    common = a.uniform(ids, [-2, -1], "overlapping windows are summed")
    return Scaled(common.expand(a.output.shape))


@rule(FAMILY, "repeat_interleave")
def repeat_interleave(a: Analysis, input: Value, *args: Any, **kwargs: Any) -> Any:
    if not args or not isinstance(args[0], int):
        return pin_unknown(a, (input, *args))
    return _run_on_ids(a, (input, *args), {k: v for k, v in kwargs.items() if k != "output_size"})


@rule(FAMILY, "tril", "triu")
def triangle(a: Analysis, input: Value, diagonal: int = 0) -> Value:
    if isinstance(input, PARAMETRIC):
        return input
    kept = a.apply(torch.ones(a.output.shape[-2:]), diagonal)
    return Scaled(torch.where(kept != 0, a.ids_of(input), WILD))


@rule(FAMILY, "masked_fill", "fill", "zero")
def fill(a: Analysis, input: Value, *args: Any, **kwargs: Any) -> Any:
    """Filling with zeros or infinities keeps the scales; with another constant it pins."""
    mask = args[0] if len(args) > 1 else None
    value = args[-1] if args else 0
    numbers = torch.as_tensor(value.tensor if isinstance(value, Known) else value if _plain(value) else 1.0)
    if bool(((numbers == 0) | numbers.isinf()).all()):
        if isinstance(input, PARAMETRIC) and mask is not None and tuple(input.size) == tuple(a.output.shape):
            return input
        ids = torch.full((), WILD).double() if mask is None else a.ids_of(input)
        return Scaled(ids.expand(a.output.shape))
    if mask is not None:
        a.pin(input, "some entries are replaced by a constant")
    a.pin(value, "it fills another tensor")
    return pinned_output(a)


def _plain(value: Any) -> bool:
    return isinstance(value, (int, float))


@rule(FAMILY, "copy")
def copy(a: Analysis, input: Value, source: Value, non_blocking: bool = False) -> Any:
    return cast(a, Scaled(a.ids_of(source).expand(a.output.shape)))


def look_up(a: Analysis, table: Value) -> Value:
    """Rows of a table looked up by index: a parameter gives its columns scales of their own."""
    output = a.output if isinstance(a.output, Tensor) else a.output[0]
    if isinstance(table, PARAMETRIC):
        plus = a.produced(table, [1, *table.size[1:]])
        a.multiply(table, plus, torch.zeros([1] * plus.dim(), dtype=torch.float64))
        return Scaled(plus[0].expand(output.shape))
    common = a.uniform(a.ids_of(table), [0], "rows of a table are looked up")
    return Scaled(common.select(0, 0).expand(output.shape))


@rule(FAMILY, "index")
def index(a: Analysis, input: Value, indices: list[Value | None]) -> Value:
    """Known index tables move ids exactly; computed indices need one scale along the indexed dimensions."""
    if isinstance(input, Weight) and len(indices) == 1 and len(input.size) > 1:
        return look_up(a, input)
    dims = [dim for dim, places in enumerate(indices) if isinstance(places, Scaled)]
    return Scaled(shrink(a.apply(_one_scale_along(a, input, dims), [_places(i) for i in indices])))


@rule(FAMILY, "index_select", "gather")
def index_along(a: Analysis, input: Value, dim: int, index: Value, **kwargs: Any) -> Value:
    if isinstance(input, Weight) and a.operator == "index_select" and dim == 0 and len(input.size) > 1:
        return look_up(a, input)
    dims = [dim] if isinstance(index, Scaled) else []
    return Scaled(shrink(a.apply(_one_scale_along(a, input, dims), dim, _places(index))))


@rule(FAMILY, "take_along_dim")
def take_along(a: Analysis, input: Value, index: Value, dim: int | None = None) -> Value:
    every = range(a.ids_of(input).dim())
    dims = ([dim] if dim is not None else every) if isinstance(index, Scaled) else []
    return Scaled(shrink(a.apply(_one_scale_along(a, input, dims), _places(index), dim)))


def _one_scale_along(a: Analysis, input: Value, dims: Sequence[int]) -> Tensor:
    ids = a.ids_of(input)
    return a.uniform(ids, dims, "it is indexed by a tensor that depends on the input").expand(ids.shape)


def _places(index: Any) -> Any:
    if isinstance(index, Known):
        return index.tensor.cpu()
    return torch.zeros(index.ids.shape, dtype=torch.int64) if isinstance(index, Scaled) else index
