"""Tensors computed from parameters alone: masked, concatenated or merged weights, ``W * g``, ``W + B @ A``.

How such a tensor scales is not asked where it is made but where it is used. Its consumer says that entry e must
scale by plus over minus, and each operator hands that demand down to its operands, until it meets parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equinorm.scale_ids import WILD
from equinorm.values import Derived, Record, Weight, compact

if TYPE_CHECKING:
    from equinorm.analysis import Analysis

Parametric = Weight | Derived
PARAMETRIC = (Weight, Derived)

PLACES_LIMIT = 2**20


def broadcast(a: Analysis, value: Parametric, size: Sequence[int]) -> Parametric:
    """The value repeated to a larger size: repeated entries need one scale."""
    if isinstance(value, Weight) and value.is_repeated:
        value = value.unrepeated()
    if tuple(value.size) == tuple(size):
        return value

    def assign(record: Record, plus: Tensor, minus: Tensor) -> None:
        value.assign(record, _narrowed(a, plus, size, value), _narrowed(a, minus, size, value))

    return Derived(tuple(size), value.parameter, assign)


def _narrowed(a: Analysis, ids: Tensor, size: Sequence[int], value: Parametric) -> Tensor:
    """Ids of a broadcast result, one for every entry of the operand."""
    ids = ids.expand(tuple(size))
    lead = len(size) - value.rank
    repeated = [d for d in range(len(size)) if d < lead or value.size[d - lead] == 1]
    return a.uniform(ids, repeated, f"{value.parameter} is repeated along them").reshape(
        [1 if d in repeated else size[d] for d in range(lead, len(size))]
    )


def total(a: Analysis, x: Parametric, y: Parametric, size: Sequence[int]) -> Derived:
    """The sum of two: both scale as it does."""
    terms = [broadcast(a, x, size), broadcast(a, y, size)]

    def assign(record: Record, plus: Tensor, minus: Tensor) -> None:
        for term in terms:
            term.assign(record, plus, minus)

    return Derived(tuple(size), f"{x.parameter} + {y.parameter}", assign)


def times(a: Analysis, x: Parametric, y: Parametric, size: Sequence[int]) -> Derived:
    """The product of two, entry by entry: what one gains the other may lose, channel by channel of the smaller."""
    small, large = sorted((x, y), key=lambda value: torch.Size(value.size).numel())
    lead = len(size) - small.rank
    reached = {d for d in range(lead, len(size)) if small.size[d - lead] > 1}
    channels = min(reached, default=-1)
    factor, rest = broadcast(a, small, size), broadcast(a, large, size)

    def assign(record: Record, plus: Tensor, minus: Tensor) -> None:
        record = a.counting(record)
        between = a.fresh([n if d == channels else 1 for d, n in enumerate(size)])
        if _varying(plus) <= reached:
            factor.assign(record if len(reached) > 1 else a.multiply, plus, between)
            rest.assign(record, between, minus)
        elif _varying(minus) <= reached:
            factor.assign(record if len(reached) > 1 else a.multiply, between, minus)
            rest.assign(record, plus, between)
        else:
            a.pin(small, "it multiplies entries of different scale")
            rest.assign(record, plus, minus)

    return Derived(tuple(size), f"{x.parameter} * {y.parameter}", assign)


def contracted(a: Analysis, x: Parametric, lx: str, y: Parametric, ly: str, lo: str) -> Derived:
    """``B @ A``: the scales of what is summed cancel between the two."""
    sizes = dict(zip(lx + ly, (*x.size, *y.size), strict=True))
    inner = "".join(label for label in lx if label in ly)

    def reach(ids: Tensor, labels: str) -> Tensor:
        missing = [d for d, label in enumerate(lo) if label not in labels]
        common = a.uniform(ids, missing, f"they meet in a product of {x.parameter} and {y.parameter}")
        kept = "".join(label for label in lo if label in labels)
        return _labelled(common.reshape([common.size(lo.index(label)) for label in kept]), kept, labels)

    def assign(record: Record, plus: Tensor, minus: Tensor) -> None:
        between = a.fresh([sizes[label] for label in inner])
        straight = _labels(plus, lo) <= set(lx) and _labels(minus, lo) <= set(ly)
        crossed = _labels(plus, lo) <= set(ly) and _labels(minus, lo) <= set(lx) and not straight
        (first, lf), (second, ls) = ((y, ly), (x, lx)) if crossed else ((x, lx), (y, ly))
        first.assign(a.counting(record), reach(plus, lf), _labelled(between, inner, lf))
        second.assign(a.counting(record), _labelled(between, inner, ls), reach(minus, ls))

    return Derived(tuple(sizes[label] for label in lo), f"{x.parameter} @ {y.parameter}", assign)


def _labels(ids: Tensor, labels: str) -> set[str]:
    return {labels[d] for d in _varying(ids)}


def _labelled(ids: Tensor, labels: str, target: str) -> Tensor:
    """Dimensions in the order of ``target``, of size one where ``labels`` lacks them."""
    ids = ids.permute([labels.index(label) for label in target if label in labels])
    for position, label in enumerate(target):
        if label not in labels:
            ids = ids.unsqueeze(position)
    return ids


def _varying(ids: Tensor) -> set[int]:
    return {d for d, n in enumerate(compact(ids).shape) if n > 1}


def concatenated(values: Sequence[Parametric], dim: int, size: Sequence[int]) -> Derived:
    """Parts side by side: each takes its share of the demand."""

    def assign(record: Record, plus: Tensor, minus: Tensor) -> None:
        start = 0
        for value in values:
            part = value.size[dim]
            share = [ids.narrow(dim, start, part) if ids.size(dim) > 1 else ids for ids in (plus, minus)]
            value.assign(record, *share)
            start += part

    return Derived(tuple(size), ", ".join(value.parameter for value in values), assign)


def moved(a: Analysis, value: Parametric, move: Callable[[Tensor], Any]) -> Any:
    """What an operator that moves data makes of the value: one result or several; None if it is too large."""
    if isinstance(value, Weight):
        template = value.template()
        result = move(template)
        parts = [result] if isinstance(result, Tensor) else list(result)
        if all(part.untyped_storage()._cdata == template.untyped_storage()._cdata for part in parts):
            views = [value.viewed(part) for part in parts]
            return views[0] if isinstance(result, Tensor) else views
    reordered = _reordered(value, move)
    if reordered is not None:
        return reordered
    if torch.Size(value.size).numel() > PLACES_LIMIT:
        return None
    result = move(torch.arange(torch.Size(value.size).numel(), dtype=torch.float64).view(value.size))
    if isinstance(result, Tensor):
        return _elsewhere(a, value, result.long())
    return [_elsewhere(a, value, part.long()) for part in result]


def _reordered(value: Parametric, move: Callable[[Tensor], Any]) -> Derived | None:
    """Where the operator only orders dimensions anew (or adds and drops some of size one), so does the demand."""
    template = torch.empty(value.size, device="meta")
    result = move(template)
    if not isinstance(result, Tensor) or result.untyped_storage()._cdata != template.untyped_storage()._cdata:
        return None
    steps = {
        (n, stride): d
        for d, (n, stride) in enumerate(zip(result.shape, result.stride(), strict=True))
        if n > 1
    }
    source = list(zip(value.size, template.stride(), strict=True))
    if result.numel() != template.numel() or {step for step in source if step[0] > 1} != steps.keys():
        return None

    def back(ids: Tensor) -> Tensor:
        ids = ids.expand(result.shape)
        order = [steps[step] for step in source if step[0] > 1]
        others = [d for d in range(ids.dim()) if d not in order]  # of size one
        return ids.permute(*order, *others).reshape(value.size)

    def assign(record: Record, plus: Tensor, minus: Tensor) -> None:
        value.assign(record, back(plus), back(minus))

    return Derived(tuple(result.shape), value.parameter, assign)


def _elsewhere(a: Analysis, value: Parametric, places: Tensor) -> Derived:
    """Entries of the value by their places in it, which may be left out or come several times."""

    def pulled_back(ids: Tensor) -> Tensor:
        flat, at = ids.expand(places.shape).flatten(), places.flatten()
        taken = torch.full([torch.Size(value.size).numel()], WILD, dtype=torch.float64)
        taken[at] = flat
        a.unite(taken[at], flat, f"entries of {value.parameter} are used several times")
        return _uniform_where_it_can_be(taken.view(value.size))

    def assign(record: Record, plus: Tensor, minus: Tensor) -> None:
        value.assign(record, pulled_back(plus), pulled_back(minus))

    return Derived(tuple(places.shape), value.parameter, assign)


def _uniform_where_it_can_be(ids: Tensor) -> Tensor:
    """Dimensions along which the ids do not change, wildcards aside, narrowed to size one."""
    for dim in range(ids.dim()):
        least = ids.amin(dim, keepdim=True)  # the wildcard is the largest
        if bool(((ids == least) | (ids == WILD)).all()):
            ids = least
    return ids
