"""How each parameter is used: which scale ids multiply and divide its entries, over all uses of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equinorm.scale_ids import WILD, ScaleIds
from equinorm.values import Weight, compact

Unite = Callable[[Tensor, Tensor, str], None]

ENTRYWISE_LIMIT = 2**24


@dataclass(frozen=True, eq=False)
class Use:
    """One view of a parameter, dimensions ordered by stride; its entries scale by plus over minus."""

    weight: Weight
    plus: Tensor
    minus: Tensor
    counted: bool

    @staticmethod
    def of(weight: Weight, plus: Tensor, minus: Tensor, counted: bool) -> Use:
        keep = [d for d, size in enumerate(weight.size) if size > 1]
        order = sorted(keep, key=lambda d: -weight.stride[d])

        def arrange(ids: Tensor) -> Tensor:
            ids = compact(ids)
            rest = [d for d in range(ids.dim()) if d not in keep]
            return ids.permute([*order, *rest]).reshape([ids.size(d) for d in order])

        view = replace(
            weight, size=tuple(weight.size[d] for d in order), stride=tuple(weight.stride[d] for d in order)
        )
        return Use(view, arrange(plus), arrange(minus), counted)

    @property
    def geometry(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        return self.weight.size, self.weight.stride, self.weight.offset


class Uses:
    """All uses so far. Two uses of the same entries must scale them alike."""

    def __init__(self, ids: ScaleIds, unite: Unite) -> None:
        self._ids = ids
        self._unite = unite
        self.by_parameter: dict[str, list[Use]] = {}
        self.linear: set[str] = set()  # parameters used as the matrix of a linear map

    def record(self, weight: Weight, plus: Tensor, minus: Tensor, counted: bool) -> None:
        if 0 in weight.size:
            return  # an empty parameter scales with anything
        use = Use.of(weight, plus, minus, counted)
        uses = self.by_parameter.setdefault(weight.parameter, [])
        for index, other in enumerate(uses):
            if other.geometry == use.geometry:
                self._agree(other, use)
                plus, minus = _informed(other.plus, use.plus), _informed(other.minus, use.minus)
                uses[index] = Use(other.weight, plus, minus, other.counted or counted)
                return
        uses.append(use)

    def _agree(self, a: Use, b: Use) -> None:
        """plus_a - minus_a = plus_b - minus_b for all entries, solved dimension by dimension."""
        reason = f"two uses of {a.weight.parameter} must scale it alike"
        parts, others = self._parts(a), self._parts(b)
        zero = torch.zeros((), dtype=torch.float64)
        for support in parts.keys() | others.keys():
            plus, minus = parts.get(support, (zero, zero))
            plus_b, minus_b = others.get(support, (zero, zero))
            single = not (minus.any() and plus.any()), not (minus_b.any() and plus_b.any())
            if all(single):
                self._unite(_signed(plus, minus), _signed(plus_b, minus_b), reason)
            else:
                self._unite(plus, plus_b, reason)
                self._unite(minus, minus_b, reason)

    def _parts(self, use: Use) -> dict[tuple[int, ...], tuple[Tensor, Tensor]]:
        """The ids by the dimensions along which they vary."""
        plus, minus = self._ids.resolve(use.plus), self._ids.resolve(use.minus)
        zero = torch.zeros((), dtype=torch.float64)
        parts: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        if plus.any():
            parts[_support(plus)] = (plus, zero)
        if minus.any():
            parts[_support(minus)] = (parts.get(_support(minus), (zero, zero))[0], minus)
        return parts

    def pin_overlapping(
        self, pin: Callable[[Tensor, str], None], shapes: Mapping[str, Sequence[int]]
    ) -> None:
        """Entries reached twice, through views of different shape or by one that overlaps itself.

        What reaches them is pinned, and the parameter counts once, as a whole.
        """
        for name, uses in self.by_parameter.items():
            if _overlap([use.weight for use in uses]):
                for use in uses:
                    pin(use.plus, f"{name} is used through views that overlap")
                    pin(use.minus, f"{name} is used through views that overlap")
                zero = torch.zeros([1] * len(shapes[name]), dtype=torch.float64)
                cause = next((ids for use in uses for ids in (use.plus, use.minus) if ids.any()), zero)
                plus = zero + cause.flatten()[cause.flatten() != 0][:1].sum()
                whole = Weight.whole(name, shapes[name])
                uses[:] = [Use.of(whole, plus, zero, any(use.counted for use in uses))]


def _informed(ids: Tensor, more: Tensor) -> Tensor:
    """The ids, with wildcards replaced by what another use of the same entries knows."""
    wild = ids == WILD
    return torch.where(wild, more, ids) if wild.any() else ids


def _signed(plus: Tensor, minus: Tensor) -> Tensor:
    """plus - minus where only one of them is not pinned (wildcards keep their sign)."""
    if plus.any():
        return plus
    return torch.where(minus == WILD, minus, -minus)


def _support(ids: Tensor) -> tuple[int, ...]:
    return tuple(d for d, size in enumerate(ids.shape) if size > 1)


def _span(weight: Weight) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(weight.size, weight.stride, strict=True))
    return weight.offset, weight.offset + last + 1


def _reaches_once(weight: Weight) -> bool:
    """Whether every step of a larger stride passes all that the smaller ones reach (enough, not necessary)."""
    reach = 0
    for size, stride in sorted(zip(weight.size, weight.stride, strict=True), key=lambda pair: pair[1]):
        if stride <= reach:
            return False
        reach += (size - 1) * stride
    return True


def _overlap(weights: list[Weight]) -> bool:
    spans = sorted(_span(weight) for weight in weights)
    apart = all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    if apart and all(map(_reaches_once, weights)):
        return False
    end = max(span[1] for span in spans)
    if end > ENTRYWISE_LIMIT:
        return True
    entries = torch.arange(end)
    seen = torch.zeros(end, dtype=torch.bool)
    for weight in weights:
        touched = entries.as_strided(weight.size, weight.stride, weight.offset).flatten()
        if seen[touched].any() or torch.bincount(touched).max() > 1:
            return True
        seen[touched] = True
    return False
