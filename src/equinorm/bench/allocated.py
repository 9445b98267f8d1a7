"""Bytes of tensors, exactly: every allocation and release between two points, from torch's profiler.

Resident memory is what the machine sees, but it moves in pages and arenas and is too coarse to tell 1 byte per
parameter. What libraries below torch (oneDNN, cuDNN) keep for themselves is not seen here.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

T = TypeVar("T")


class Allocations(NamedTuple):
    """Relative to the start: what is left in the end, and the most in between."""

    kept: int
    peak: int


def allocations(run: Callable[[], T], device: torch.device) -> tuple[T, Allocations]:
    """What ``run`` returns, and what it allocated."""
    if device.type == "cuda":
        return _on_cuda(run, device)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces every start and stop
    gc.freeze()  # garbage from before must not be released inside
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            result = run()
            gc.collect()
    finally:
        gc.unfreeze()
    kept = peak = 0
    assert profiled.profiler is not None and profiled.profiler.kineto_results is not None
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        kept += event.nbytes()
        peak = max(peak, kept)
    return result, Allocations(kept, peak)


def _on_cuda(run: Callable[[], T], device: torch.device) -> tuple[T, Allocations]:
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = run()
    after, peak = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    return result, Allocations(after - before, peak - before)
