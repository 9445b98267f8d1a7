"""Which batch still fits into memory: the peaks of smaller batches, extrapolated along a line.

Trying a batch that does not fit ends in the kernel's out-of-memory killer, not in an error; so nothing is tried that
the line does not allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from equinorm.bench.resident import Meter

SHARE = 0.85  # of what is available; the rest is for the line's error and for others
STEP = 8  # the largest batch is a multiple of this


@dataclass(frozen=True)
class Peak:
    """The most memory held while training with a batch."""

    batch: int
    bytes: int


def line(peaks: Sequence[Peak]) -> tuple[float, float]:
    """Bytes at batch 0 and bytes per example, through the two largest batches measured.

    A single peak counts as if all of it grew with the batch, which is too much and therefore safe.
    """
    if len(peaks) == 1:
        return 0.0, peaks[0].bytes / peaks[0].batch
    a, b = sorted(peaks, key=lambda peak: peak.batch)[-2:]
    slope = max(0.0, (b.bytes - a.bytes) / (b.batch - a.batch))
    return b.bytes - slope * b.batch, slope


def largest_batch(peaks: Sequence[Peak], limit: int) -> int | None:
    """The largest batch whose peak stays within the limit; None where memory does not grow with the batch."""
    start, slope = line(peaks)
    if slope <= 0:
        return None
    return max(0, int((limit - start) / slope) // STEP * STEP)


class Room:
    """Tells which batches may be tried."""

    def __init__(self, meter: Meter | None) -> None:
        self._meter = meter
        self.peaks: list[Peak] = []
        self._forget()

    def allows(self, batch: int) -> bool:
        """Whether it fits, by the line; yes where nothing tells."""
        largest = self.largest()
        return largest is None or batch <= largest

    def largest(self) -> int | None:
        """The largest batch for which there is room, by the line."""
        if self._meter is None or not self.peaks:
            return None
        return largest_batch(self.peaks, self._meter.now() + int(SHARE * self._meter.available()))

    def measured(self, batch: int) -> int | None:
        """Note the peak since the last call, which training with this batch reached."""
        if self._meter is None:
            return None
        self.peaks.append(Peak(batch, self._meter.peak()))
        self._forget()
        return self.peaks[-1].bytes

    def _forget(self) -> None:
        if self._meter is not None:
            self._meter.reset_peak()
