"""Times that can be compared: rivals take turns, and every number is a median with its interval.

Within a round each rival runs once, in an order drawn anew; noise of the machine, and what the one before left in the
caches, then hits all alike. What is derived (a difference, a ratio) is derived inside a round, and its median is taken
over the rounds.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from equinorm.errors import ArgumentError

T = TypeVar("T")
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A median, and an interval that holds the true one with ``confidence``, whatever the distribution."""

    median: float
    low: float
    high: float
    confidence: float
    n: int


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The interval between the k-th smallest and the k-th largest value, for the largest k that is sure enough.

    The true median lies outside with probability 2 P(Binomial(n, 1/2) < k). Below six values even the whole range is
    not sure to 95 %; then it is the range, and ``confidence`` says how sure that is.
    """
    if not values:
        raise ArgumentError("values: no measurement to take a median of")
    n, ordered = len(values), sorted(values)
    outside = [2 * sum(math.comb(n, j) for j in range(k)) / 2**n for k in range(n // 2 + 2)]
    k = max((k for k in range(1, (n + 1) // 2 + 1) if 1 - outside[k] >= confidence), default=1)
    return Estimate(statistics.median(ordered), ordered[k - 1], ordered[n - k], max(0.0, 1 - outside[k]), n)


def differences(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """a - b by round."""
    return [x - y for x, y in zip(a, b, strict=True)]


def ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """a / b by round."""
    return [x / y for x, y in zip(a, b, strict=True)]


@dataclass(frozen=True)
class Rounds:
    """How often to measure: at most so many rounds or seconds, but never fewer than ``least`` rounds."""

    most: int = 15
    seconds: float = 60.0
    least: int = 3
    warm_up: int = 1  # rounds before the first, thrown away: they fill caches and compile


def interleaved(calls: Mapping[str, Callable[[], T]], rounds: Rounds) -> dict[str, list[T]]:
    """What each call returns, round by round; the orders are the same on every run."""
    names, orders = list(calls), random.Random(0)
    found: dict[str, list[T]] = {name: [] for name in names}
    for _ in range(rounds.warm_up):
        for call in calls.values():
            call()
    gc.collect()
    start = time.perf_counter()
    for done in range(rounds.most):
        if done >= rounds.least and (time.perf_counter() - start) * (done + 1) / done > rounds.seconds:
            break
        for name in orders.sample(names, len(names)):
            found[name].append(calls[name]())
    return found


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """How long a call takes, the work it leaves on the device included."""
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Wait for an accelerator; the CPU has nothing outstanding."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
