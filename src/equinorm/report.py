"""What ``balance`` did: norms, certificate, scales."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from equinorm.symmetry import Scaling, Symmetries
from equinorm.table import columns, places

MOST = 709.0  # log of about the largest float64
ROWS = 5
NOTICEABLE = 5e-4  # of a log-scale: a scale that prints as other than 1


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

    log_norm_before: float
    log_norm_after: float
    residual: float  # max |R - L| / (R + L) over the live free scales, as solved in float64 (powers of two: as rounded)
    residual_stored: float  # the same for the weights as their own precision stores them
    converged: bool  # of the solver, before its scales were rounded to powers of two, if they were
    cycles: int
    status: str
    function_change: float | None  # of an output, relative to its largest entry; None if not verified, NaN if
    # no output had a finite entry to compare
    still: int  # free scales that no minimum exists for: left at one
    capped: int  # scales held back where a weight or a bias would overflow
    blocked: int  # powers of two that some entry would not survive exactly
    powers_of_two: bool
    p: float
    scales: Scales = field(repr=False)
    symmetries: Symmetries = field(repr=False)
    log_scales: Tensor = field(repr=False)
    history: tuple[tuple[int, float, float], ...] = field(repr=False)  # (cycles, residual, log of the norm)

    @property
    def norm_before(self) -> float:
        """The sum of c_k ||W_k||_p^p over the counted parameters (for p = inf the largest a_k |w|).

        Infinite where float64 has no number for it; ``log_norm_before`` has.
        """
        return _exp(self.log_norm_before)

    @property
    def norm_after(self) -> float:
        """The same for the weights as now stored."""
        return _exp(self.log_norm_after)

    def __str__(self) -> str:
        rows = [
            ("balance", f"p = {self.p:g}, {self.symmetries.num_free} free scales"),
            ("norm", self._norms()),
            ("residual", self._residuals()),
            ("solver", f"{self.cycles} cycles; {self.status}"),
            ("function change", self._change()),
        ]
        for name, count in (("still", self.still), ("capped", self.capped), ("blocked", self.blocked)):
            if count:
                rows.append((name, f"{count} scales ({_MEANING[name]})"))
        if self.still and self.log_norm_after > self.log_norm_before:
            rows.append(("why it rose", _ROSE))
        return "\n".join([*columns(rows), *self._largest_scales()])

    def _residuals(self) -> str:
        how = "in powers of two" if self.powers_of_two else "as solved"
        return f"{self.residual:.1e} {how}, {self.residual_stored:.1e} as stored"

    def _change(self) -> str:
        if self.function_change is None:
            return "not measured"
        if math.isnan(self.function_change):
            return "nothing to compare: no output is finite"
        return f"{self.function_change:.1e} (relative)"

    def _norms(self) -> str:
        before, after = self.log_norm_before, self.log_norm_after
        if before == -math.inf:
            return "0"
        change = round(math.expm1(after - before), 4) + 0.0
        return f"{_shown(before)} → {_shown(after)} ({change:+.2%})"

    def _largest_scales(self) -> list[str]:
        moved = []
        for k, group in enumerate(self.symmetries.groups):
            logs = self.log_scales[group.start : group.start + group.size]
            moved.append((float(logs.abs().max()), k))
        table = [("largest scales", "multiply", "divide")]
        for size, k in sorted(moved, reverse=True)[:ROWS]:
            if size > NOTICEABLE:
                group, scales = self.symmetries.groups[k], self.scales.group(k)
                span = f"{float(scales.min()):.3g} … {float(scales.max()):.3g}"
                table.append((span, places(group, 1), places(group, -1)))
        return ["", *columns(table)] if len(table) > 1 else []


def _exp(log: float) -> float:
    return math.exp(log) if log < MOST else math.inf


def _shown(log: float) -> str:
    """A norm that may leave the range of float64."""
    return f"{math.exp(log):.6g}" if abs(log) < MOST else f"10^{log / math.log(10):.2f}"


_ROSE = "weights between live and still scales count, but are not minimised; remove dead channels first"
_MEANING = {
    "still": "no minimum exists for them: dead channels, all-zero layers; left at one",
    "capped": "held back where a weight or bias would overflow",
    "blocked": "some entry would not survive a power of two exactly",
}
