"""Writing at places: a tensor, other entries of which are overwritten or added to, by index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equinorm.rules.registry import is_number, pin_all, rule
from equinorm.scale_ids import WILD
from equinorm.values import Known, Scaled, Value

if TYPE_CHECKING:
    from equinorm.analysis import Analysis

FAMILY = (
    "writes at places: one scale along the indexed dimensions, for what is written and what it falls among"
)

BESIDE, WRITTEN = "entries are written beside them", "they are written into another tensor"
PRODUCTS = ("prod", "multiply")


def _united(a: Analysis, kept: Tensor, written: Tensor) -> Value:
    return Scaled(a.unite(kept, written, "they are written beside others").expand(a.output.shape))


def _written(a: Analysis, source: Any) -> Tensor:
    return Known(torch.as_tensor(source)).ids() if is_number(source) else a.ids_of(source)


@rule(FAMILY, "index_put")
def index_put(
    a: Analysis, input: Value, indices: list[Value | None], values: Value, accumulate: bool = False
) -> Value:
    """Indices that do not lead, or leave one out: one scale for everything."""
    kept, written = a.ids_of(input), a.ids_of(values)
    rest = kept.dim() - _indexed(a, kept.dim())
    kept = a.uniform(kept, range(kept.dim() - rest), BESIDE)
    lead = max(written.dim() - rest, 0)
    written = a.uniform(written, range(lead), WRITTEN)
    return _united(a, kept, written.reshape(written.shape[lead:]))


def _indexed(a: Analysis, rank: int) -> int:
    """How many leading dimensions the current operator's indices speak of: a mask of as many as it has."""
    indices = a.fakes[1]
    if any(places is None for places in indices):
        return rank
    return sum(places.dim() if places.dtype == torch.bool else 1 for places in indices)


@rule(FAMILY, "index_add", "index_copy", "index_fill", "index_reduce")
def index_write(
    a: Analysis, input: Value, dim: int, index: Value, source: Any, reduce: str = "sum", **options: Any
) -> Any:
    if reduce in PRODUCTS:
        return pin_all(a, (input, source), "products of entries")
    written = a.uniform(_written(a, source), [dim], WRITTEN)
    return _united(a, a.uniform(a.ids_of(input), [dim], BESIDE), written)


@rule(FAMILY, "scatter", "scatter_add", "scatter_reduce")
def scatter(
    a: Analysis, input: Value, dim: int, index: Value, source: Any, reduce: str = "sum", **options: Any
) -> Any:
    """What is written may be smaller than what it is written into: the rest keeps its scales."""
    if reduce in PRODUCTS:
        return pin_all(a, (input, source), "products of entries")
    size = a.fakes[2].shape
    written = _written(a, source)
    written = written[tuple(slice(n) for n in size)] if written.dim() else written.expand(size)
    written = a.uniform(written, [dim], WRITTEN)
    kept = a.uniform(a.ids_of(input), [dim], BESIDE)
    return _united(a, kept, _padded(written, kept.shape))


def _padded(ids: Tensor, size: Sequence[int]) -> Tensor:
    missing = [n - m for n, m in zip(size, ids.shape, strict=True)]
    if not any(missing):
        return ids
    return torch.constant_pad_nd(ids, [n for lack in reversed(missing) for n in (0, lack)], WILD)


@rule(FAMILY, "masked_scatter")
def masked_scatter(a: Analysis, input: Value, mask: Value, source: Value) -> Value:
    """Entries are taken in order, whatever their channel: one scale for everything."""
    kept, written = a.ids_of(input), a.ids_of(source)
    kept = a.uniform(kept, range(kept.dim()), BESIDE)
    return _united(a, kept, a.uniform(written, range(written.dim()), WRITTEN).reshape(()))
