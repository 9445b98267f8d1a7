"""Resident memory: how much a process holds, the most it held, and how much the machine can still give.

On Linux from /proc; on CUDA from torch's allocator. Elsewhere nothing portable tells a peak, and ``meter`` says None.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MEMINFO = Path("/proc/meminfo")
CGROUPS = (  # limit and use, of version 2 and version 1
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


class Meter(Protocol):
    """Bytes of the memory that a benchmark runs in."""

    def now(self) -> int:
        """Held at this moment."""

    def reset_peak(self) -> None:
        """Forget the past."""

    def peak(self) -> int:
        """The most held since."""

    def available(self) -> int:
        """What could still be had without swapping or being killed."""


class Process:
    """This process's resident memory, as Linux accounts for it."""

    def now(self) -> int:
        return _field(STATUS, "VmRSS")

    def reset_peak(self) -> None:
        CLEAR.write_text("5")  # see proc(5): resets the high-water mark

    def peak(self) -> int:
        return _field(STATUS, "VmHWM")

    def available(self) -> int:
        free = _field(MEMINFO, "MemAvailable")
        for limit, use in CGROUPS:
            if limit.exists() and use.exists() and limit.read_text().strip() != "max":
                free = min(free, int(limit.read_text()) - int(use.read_text()))
        return free


class Cuda:
    """What torch has allocated on a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> int:
        return torch.cuda.memory_allocated(self._device)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)

    def available(self) -> int:
        return int(torch.cuda.mem_get_info(self._device)[0])


def meter(device: torch.device) -> Meter | None:
    """How to read the device's memory, or None where that cannot be done."""
    if device.type == "cuda":
        return Cuda(device)
    if device.type != "cpu" or not STATUS.exists():
        return None
    try:
        process = Process()
        process.reset_peak()
    except OSError:
        return None
    return process


def total_memory() -> int | None:
    """All of the machine's memory."""
    return _field(MEMINFO, "MemTotal") if MEMINFO.exists() else None


def _field(path: Path, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", path.read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"{path} has no {name}")
    return int(found[1]) * 1024
