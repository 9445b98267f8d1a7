"""From scale ids to :class:`Symmetries`: number the free scales, group them, say what is pinned and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from equinorm.analysis import Analysis
from equinorm.scale_ids import WILD
from equinorm.symmetry import Group, Member, Pin, Scaling, Symmetries
from equinorm.uses import Use

LINEAR_LAYERS = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd)
OLD_WEIGHT_NORM = {"weight_g", "weight_v"}  # what torch.nn.utils.weight_norm makes of a layer's weight


def collect(analysis: Analysis, model: nn.Module, untraced: str | None) -> Symmetries:
    """Everything the analysis found about the model's parameters."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    analysis.uses.pin_overlapping(analysis.pin_ids, shapes)
    uses = [use for uses in analysis.uses.by_parameter.values() for use in uses]
    resolved = [(_resolve(analysis, use.plus), _resolve(analysis, use.minus)) for use in uses]
    numbers, sizes = _number(uses, resolved)
    scalings = tuple(
        Scaling(
            use.weight.parameter, use.weight.size, use.weight.stride, use.weight.offset,
            _renumber(plus, numbers), _renumber(minus, numbers), use.counted, _dims(use, shapes),
        )
        for use, (plus, minus) in zip(uses, resolved, strict=True)
    )  # fmt: skip
    groups = _groups(scalings, sizes)
    return Symmetries(
        num_free=sum(sizes),
        groups=groups,
        scalings=scalings,
        pinned=tuple(_pins(analysis, scalings, uses, shapes, untraced)),
        depth=dict(analysis.depth),
        shapes=shapes,
        coverage=_coverage(analysis, model, groups),
        batch_norm=analysis.batch_norm,
    )


def _resolve(analysis: Analysis, ids: Tensor) -> Tensor:
    resolved = analysis.ids.resolve(ids)
    return torch.where(resolved == WILD, 0.0, resolved).long()


def _number(uses: list[Use], resolved: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, list[int]]:
    """New numbers 1 … n for the free ids, those that act in the same places next to each other.

    Ids are older the closer they are to the input, so groups come in topological order. Returns the map from
    old to new numbers (0 for what is not free) and the groups' sizes.
    """
    count = 1 + max((int(ids.abs().max()) for pair in resolved for ids in pair if ids.numel()), default=0)
    counted, signature = torch.zeros(count, dtype=torch.bool), torch.zeros(count, dtype=torch.int64)
    draws = torch.Generator().manual_seed(0)
    for use, pair in zip(uses, resolved, strict=True):
        for ids in pair:
            for sign in (1, -1):
                places = torch.unique(ids[ids.sign() == sign].abs())
                signature[places] += torch.randint(2**62, (), generator=draws)
                if use.counted:
                    counted[places] = True
    free = counted.nonzero().flatten()
    _, group = torch.unique(signature[free], return_inverse=True)
    first = torch.full((int(group.max()) + 1 if free.numel() else 0,), count).scatter_reduce(
        0, group, free, "amin"
    )
    rank = first.argsort().argsort()[group]
    numbers = torch.zeros(count, dtype=torch.int64)
    numbers[free[rank.argsort(stable=True)]] = torch.arange(1, free.numel() + 1)
    return numbers, rank.bincount().tolist()


def _renumber(ids: Tensor, numbers: Tensor) -> Tensor:
    return ids.sign() * numbers[ids.abs()]


def _dims(use: Use, shapes: Mapping[str, torch.Size]) -> tuple[int, ...]:
    strides = torch.empty(shapes[use.weight.parameter], device="meta").stride()
    sizes = shapes[use.weight.parameter]
    return tuple(
        next(d for d, (s, n) in enumerate(zip(strides, sizes, strict=True)) if s <= stride and n > 1)
        for stride in use.weight.stride
    )


def _groups(scalings: tuple[Scaling, ...], sizes: list[int]) -> tuple[Group, ...]:
    edges = torch.tensor([1, *sizes]).cumsum(0)
    members: list[dict[Member, None]] = [{} for _ in sizes]
    for scaling in scalings:
        for ids, side in ((scaling.plus, 1), (scaling.minus, -1)):
            dim = max((scaling.dims[d] for d, n in enumerate(ids.shape) if n > 1), default=0)
            for sign in (1, -1):
                found = torch.unique(ids[ids.sign() == sign].abs())
                for group in torch.unique(torch.bucketize(found, edges, right=True) - 1).tolist():
                    members[group][Member(scaling.parameter, dim, sign * side)] = None
    return tuple(
        Group(start, size, tuple(found))
        for start, size, found in zip(edges[:-1].tolist(), sizes, members, strict=True)
    )


def _coverage(analysis: Analysis, model: nn.Module, groups: Iterable[Group]) -> float:
    """The share of weight tensors that have a free dimension, in any of the parameters that make them up.

    Weight tensors are those of linear and convolutional layers, and other matrices that the graph uses like them.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    tensors = {
        frozenset(names[parameter] for parameter in made_of)
        for module in model.modules()
        if isinstance(module, LINEAR_LAYERS)
        for made_of in _weight_tensors(module)
    }
    tensors |= {frozenset([name]) for name in analysis.uses.linear.difference(*tensors)}
    free = {member.parameter for group in groups for member in group.members}
    return sum(not free.isdisjoint(made_of) for made_of in tensors) / max(len(tensors), 1)


def _weight_tensors(layer: nn.Module) -> Iterator[list[nn.Parameter]]:
    """The parameters of each of a layer's weight tensors: one, or all that a parametrisation computes it from."""
    for name, parametrization in getattr(layer, "parametrizations", {}).items():
        if name != "bias":
            yield list(parametrization.parameters())
    own = {
        name: parameter for name, parameter in layer.named_parameters(recurse=False) if parameter.dim() > 1
    }
    if own.keys() >= OLD_WEIGHT_NORM:
        yield [own.pop(name) for name in sorted(OLD_WEIGHT_NORM)]
    yield from ([parameter] for parameter in own.values())


def _pins(
    analysis: Analysis,
    scalings: tuple[Scaling, ...],
    uses: list[Use],
    shapes: Mapping[str, torch.Size],
    untraced: str | None,
) -> Iterator[Pin]:
    if untraced is not None:
        yield Pin("the model in training mode", "", "", f"only evaluation mode could be analysed: {untraced}")
    for scaling, use in zip(scalings, uses, strict=True):
        if scaling.counted:
            yield from _pinned_sides(analysis, scaling, use)
        elif not scaling.plus.any() and not bool(_resolve(analysis, use.plus).any()):
            yield _cause(analysis, scaling.parameter, use.plus)
    for event in analysis.events:
        if not event.parameter:
            reason = f"{event.reason} ({event.count} scales)"
            yield Pin(event.node, event.op, event.module, reason)
    for name in shapes:
        if name not in analysis.uses.by_parameter:
            yield Pin(name, "", name.rpartition(".")[0], "the example inputs do not reach it")


def _pinned_sides(analysis: Analysis, scaling: Scaling, use: Use) -> Iterator[Pin]:
    sides = [(scaling.plus, use.plus, "outputs"), (scaling.minus, use.minus, "inputs")]
    if all(ids.numel() == 1 and not numbers.any() for numbers, ids, _ in sides):
        yield _cause(analysis, scaling.parameter, use.plus)
    for numbers, ids, side in sides:
        dims = [scaling.dims[d] for d, n in enumerate(ids.shape) if n > 1]
        if dims and not numbers.any():
            yield _cause(analysis, f"{scaling.parameter} dim {max(dims)} ({side})", ids)


def _cause(analysis: Analysis, what: str, ids: Tensor) -> Pin:
    causes = analysis.ids.causes(ids)
    causes = causes[causes > 0]
    if not causes.numel():
        return Pin(what, "", "", "it meets the model's input or a constant")
    event = analysis.events[int(causes.mode().values) - 1]
    return Pin(what, event.op, event.module, event.reason)
