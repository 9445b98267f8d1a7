"""Values of repeated runs → mean ± standard error, n; beside the paper's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from equinorm.errors import ArgumentError

DIVERGED = "diverged"
NONE = "—"


@dataclass(frozen=True)
class Summary:
    """The values of one experiment's runs that ended well, and how many diverged."""

    values: tuple[float, ...]
    diverged: int = 0

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, self.values)):
            raise ArgumentError(f"values {self.values}: a run that is not finite counts as diverged")

    @property
    def mean(self) -> float | None:
        """None where no run ended well."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def error(self) -> float | None:
        """The standard error of the mean, s / √n with n - 1 in s; None for fewer than two runs."""
        if len(self.values) < 2:
            return None
        return statistics.stdev(self.values) / math.sqrt(len(self.values))

    def short(self, digits: int) -> str:
        """``0.171 ± 0.002``."""
        if self.mean is None:
            return DIVERGED
        error = "" if self.error is None else f" ± {self.error:.{digits}f}"
        return f"{self.mean:.{digits}f}{error}"

    def text(self, digits: int) -> str:
        """``0.171 ± 0.002 (n = 5)``; runs that diverged are counted beside."""
        lost = f", {self.diverged} {DIVERGED}" if self.diverged and self.values else ""
        count = len(self.values) or self.diverged
        return self.short(digits) + (f" (n = {count}{lost})" if count else "")

    def difference(self, paper: Sequence[float], digits: int) -> str:
        """Ours less each of the paper's numbers."""
        if self.mean is None or not paper:
            return NONE
        return " / ".join(f"{self.mean - number:+.{digits}f}" for number in paper)


def numbers(paper: Sequence[float], digits: int) -> str:
    """The paper's numbers, more than one where the paper disagrees with itself."""
    return " / ".join(f"{number:.{digits}f}" for number in paper) or NONE
