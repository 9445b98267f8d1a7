"""What a solve returns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torch import Tensor


class Status(Enum):
    """How a solve ended; the value is the message."""

    CONVERGED = "converged: the residual is below the tolerance"
    APPROXIMATED = "converged to the paper's approximation; the residual is that of the true norm"
    CYCLES_DONE = "did the cycles that were asked for"
    NOT_CONVERGED = "not converged within the largest number of cycles; pass cycles= or a larger tol="
    STALLED = "stalled: no step lowers the norm in float64, with the residual still above the tolerance"
    HELD_BACK = "held back: scales would have to move so far that a weight or bias overflows"
    NOTHING_FREE = "nothing to rescale: no scale is free and has an attained minimum"


@dataclass(frozen=True, eq=False)
class Solution:
    """Log-scales, and how they were found. Tensors are indexed by variable; 0 is the pinned one."""

    log_scales: Tensor  # float64
    cycles: int
    residual: float
    status: Status
    history: tuple[tuple[int, float, float], ...]  # (cycle, residual, energy: log phi of the live cells)
    still: Tensor  # no minimum is attained for these scales: left at 1
    capped: Tensor  # held back so that no weight or bias overflows
    blocked: Tensor  # powers of two only: held back so that every value survives exactly
    exponents: Tensor | None = None  # the integers k of scales 2^k, after round_to_powers

    @property
    def converged(self) -> bool:
        """Whether the solver brought what it brings to zero below the tolerance."""
        return self.status in (Status.CONVERGED, Status.APPROXIMATED, Status.NOTHING_FREE)
