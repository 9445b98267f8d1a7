"""What ``balance`` did: norms, certificate, scales."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from equinorm.symmetry import Scaling, Symmetries
from equinorm.table import columns, places


class Scales(Mapping[str, tuple[Tensor, Tensor]]):
    """Parameter name → (multiplied, divided): weights before times the first over the second are those after.

    Both broadcast against the parameter. ``group(k)`` is the vector of group k of the symmetries.
    """

    def __init__(self, symmetries: Symmetries, log_scales: Tensor, biases: bool) -> None:
        self._symmetries = symmetries
        self._log_scales = log_scales
        self._scalings: dict[str, list[Scaling]] = {}
        for scaling in symmetries.scalings:
            if scaling.counted or biases:
                self._scalings.setdefault(scaling.parameter, []).append(scaling)

    def group(self, index: int) -> Tensor:
        """The scales d of one group."""
        group = self._symmetries.groups[index]
        return self._log_scales[group.start : group.start + group.size].exp()

    def __getitem__(self, name: str) -> tuple[Tensor, Tensor]:
        scalings = self._scalings[name]
        shape = self._symmetries.shapes[name]
        if len(scalings) == 1 and _is_whole(scalings[0], shape):
            return self._vector(scalings[0].plus, shape), self._vector(scalings[0].minus, shape)
        multiplied, divided = torch.ones(shape, dtype=torch.float64), torch.ones(shape, dtype=torch.float64)
        for scaling in scalings:
            scaling.view(multiplied).copy_(self._of(scaling.plus))
            scaling.view(divided).copy_(self._of(scaling.minus))
        return multiplied, divided

    def __iter__(self) -> Iterator[str]:
        return iter(self._scalings)

    def __len__(self) -> int:
        return len(self._scalings)

    def _of(self, ids: Tensor) -> Tensor:
        return (self._log_scales[ids.abs()] * ids.sign()).exp()

    def _vector(self, ids: Tensor, shape: torch.Size) -> Tensor:
        sizes, found = [], iter(ids.shape)
        for n in shape:
            sizes.append(next(found) if n > 1 else 1)
        return self._of(ids).view(sizes)


def _is_whole(scaling: Scaling, shape: torch.Size) -> bool:
    return scaling.size == tuple(n for n in shape if n > 1)


@dataclass(frozen=True, eq=False)
class Report:
    """The result of :func:`equinorm.balance`."""

    norm_before: float  # sum of c_k ||W_k||_p^p over the counted parameters (p = inf: the largest a_k |w|)
    norm_after: float
    residual: float  # max |R - L| / (R + L) over the live free scales, as solved in float64
    residual_stored: float  # the same for the weights as their own precision stores them
    converged: bool
    cycles: int
    status: str
    function_change: float | None  # of an output, relative to its largest entry; None if not verified
    still: int  # free scales that no minimum exists for: left at one
    capped: int  # scales held back where a weight or a bias would overflow
    blocked: int  # powers of two that some entry would not survive exactly
    p: float
    scales: Scales = field(repr=False)
    symmetries: Symmetries = field(repr=False)
    log_scales: Tensor = field(repr=False)
    history: tuple[tuple[int, float, float], ...] = field(repr=False)  # (cycles, residual, log of the norm)

    def __str__(self) -> str:
        ratio = self.norm_after / self.norm_before if self.norm_before else 1.0
        change = "not measured" if self.function_change is None else f"{self.function_change:.1e} (relative)"
        rows = [
            ("balance", f"p = {self.p:g}, {self.symmetries.num_free} free scales"),
            ("norm", f"{self.norm_before:.6g} → {self.norm_after:.6g} ({ratio - 1:+.2%})"),
            ("residual", f"{self.residual:.1e} as solved, {self.residual_stored:.1e} as stored"),
            ("solver", f"{self.status} after {self.cycles} cycles"),
            ("function change", change),
        ]
        for name, count in (("still", self.still), ("capped", self.capped), ("blocked", self.blocked)):
            if count:
                rows.append((name, f"{count} scales ({_MEANING[name]})"))
        lines = columns(rows)
        moved = [
            (float(self.scales.group(k).log().abs().max()), k) for k in range(len(self.symmetries.groups))
        ]
        most = [k for size, k in sorted(moved, reverse=True)[:5] if size > 0]
        if most:
            table = [("largest scales", "multiply", "divide")]
            for k in most:
                group, scales = self.symmetries.groups[k], self.scales.group(k)
                span = f"{float(scales.min()):.3g} … {float(scales.max()):.3g}"
                table.append((span, places(group, 1), places(group, -1)))
            lines += ["", *columns(table)]
        return "\n".join(lines)


_MEANING = {
    "still": "no minimum exists for them: dead channels, all-zero layers; left at one",
    "capped": "held back where a weight or bias would overflow",
    "blocked": "some entry would not survive a power of two exactly",
}
