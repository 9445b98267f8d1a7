"""Apply: multiply the parameters by the scales found, reading each of them once.

The rescaled entries are read while they are at hand, so the same pass gives the norm and the residual that
the stored weights really have.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

import torch
from torch import Tensor

from equinorm.cells import Layout, Visit
from equinorm.objective import Objective
from equinorm.symmetry import Scaling, Symmetries

SAFE_LOG = 300.0  # exp(±300) twice over stays in float64


def rescale(
    symmetries: Symmetries,
    tensors: Mapping[str, Tensor],
    log_scales: Tensor,
    p: float,
    log_weights: Mapping[str, float],
    biases: bool = True,
) -> Objective:
    """Equation 3 of the paper, W ← D_{k-1}^{-1} W D_k, for every parameter in place; with biases b ← b D_k.

    Products are formed in float64 and rounded once. Returns the objective of the weights as now stored.
    """

    def visitor(scaling: Scaling, layout: Layout) -> Visit | None:
        return _multiplier(layout, log_scales) if scaling.counted or biases else None

    with torch.no_grad(), interrupts_deferred():
        return Objective(symmetries, tensors, p, log_weights, visitor)


def _multiplier(layout: Layout, log_scales: Tensor) -> Visit | None:
    rows, cols = _signed(log_scales, layout.rows), _signed(log_scales, layout.cols)
    if not rows.any() and not cols.any():
        return None
    count, trailing = layout.cols.shape[1], layout.view.shape[layout.lead :]
    inner = len(trailing)
    while inner and trailing[:inner].numel() > count:
        inner -= 1
    shape = (*trailing[:inner], *[1] * (len(trailing) - inner))
    safe = bool(rows.abs().max() <= SAFE_LOG and cols.abs().max() <= SAFE_LOG)

    def multiply(piece: Tensor, first: int) -> None:
        lead = piece.shape[: piece.dim() - len(trailing)]
        lines = torch.arange(first, first + lead.numel())
        row, col = rows.flatten()[lines], cols[lines // layout.rows.shape[1]]
        if cols.shape[0] == 1:
            col = cols
        factor = row.exp().unsqueeze(1) * (-col).exp() if safe else (row.unsqueeze(1) - col).exp()
        piece.copy_(piece.double().mul_(factor.view(*lead, *shape)))

    return multiply


def _signed(log_scales: Tensor, ids: Tensor) -> Tensor:
    return log_scales[ids.abs()] * ids.sign()


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Let Ctrl-C wait until the weights are consistent again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[tuple[int, FrameType | None]] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: pending.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if pending and callable(previous):
        previous(*pending[0])
