"""Symmetries of a model of which some parameters must not move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from equinorm.symmetry import Group, Pin, Scaling, Symmetries


def holding(symmetries: Symmetries, reasons: Mapping[str, str]) -> Symmetries:
    """Pin every scale that would move one of these parameters; ``reasons`` says why by name."""
    held = torch.zeros(symmetries.num_free + 1, dtype=torch.bool)
    pins = []
    for scaling in symmetries.scalings:
        reason = reasons.get(scaling.parameter)
        if reason is not None:
            touched = torch.unique(torch.cat([scaling.plus.flatten(), scaling.minus.flatten()]).abs())
            held[touched] = True
            if touched.any():
                pins.append(Pin(scaling.parameter, "", scaling.parameter.rpartition(".")[0], reason))
    held[0] = False
    if not pins:
        return symmetries
    free = ~held
    free[0] = False
    numbers = torch.where(free, free.long().cumsum(0), 0)
    groups = _groups(symmetries, numbers)
    before, after = (_linear(symmetries, found) for found in (symmetries.groups, groups))
    return replace(
        symmetries,
        num_free=int(free.sum()),
        groups=groups,
        coverage=symmetries.coverage * after / max(before, 1),
        scalings=tuple(_renumbered(scaling, numbers) for scaling in symmetries.scalings),
        pinned=(*pins, *symmetries.pinned),
    )


def _groups(symmetries: Symmetries, numbers: Tensor) -> tuple[Group, ...]:
    found = []
    for group in symmetries.groups:
        left = numbers[group.start : group.start + group.size]
        left = left[left > 0]
        if left.numel():
            found.append(replace(group, start=int(left[0]), size=left.numel()))
    return tuple(found)


def _linear(symmetries: Symmetries, groups: tuple[Group, ...]) -> int:
    """How many weights of linear maps these groups move."""
    counted = {scaling.parameter for scaling in symmetries.scalings if scaling.counted}
    moved = {member.parameter for group in groups for member in group.members} & counted
    return sum(len(symmetries.shapes[name]) > 1 for name in moved)


def _renumbered(scaling: Scaling, numbers: Tensor) -> Scaling:
    return replace(
        scaling,
        plus=scaling.plus.sign() * numbers[scaling.plus.abs()],
        minus=scaling.minus.sign() * numbers[scaling.minus.abs()],
    )
