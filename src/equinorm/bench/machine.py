"""The machine: what it is, which versions run on it, and how fast its memory is."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import torch

import equinorm
from equinorm.bench.resident import total_memory
from equinorm.bench.timing import seconds_of

READ, SCALE = "read", "scale in place"  # plain passes
BUFFER = 1 << 26  # float32 entries, 256 MB: larger than any cache


@dataclass(frozen=True)
class Machine:
    """Written into every result."""

    device: str
    cpu: str
    cores: int
    threads: int
    memory_bytes: int | None
    system: str
    python: str
    torch: str
    equinorm: str
    commit: str | None
    date: str
    load: float | None  # the average of the last minute when the run began: of a quiet machine near zero

    def line(self) -> str:
        """For people."""
        gigabytes = f", {self.memory_bytes / 2**30:.0f} GB" if self.memory_bytes else ""
        where = f"{self.cpu}, {self.cores} cores, {self.threads} threads{gigabytes}"
        device = "" if self.device == "cpu" else f"{self.device} beside "
        commit = f" ({self.commit})" if self.commit else ""
        load = "" if self.load is None else f"; load at the start {self.load:.2f}"
        return (
            f"{device}{where}; {self.system}; Python {self.python}, torch {self.torch}, equinorm {self.equinorm}"
            f"{commit}; {self.date}{load}"
        )


def this_machine(device: torch.device) -> Machine:
    """The machine as it is now."""
    return Machine(
        torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        _cpu(),
        os.cpu_count() or 1,
        torch.get_num_threads(),
        total_memory(),
        f"{platform.system()} {platform.release()}",
        platform.python_version(),
        torch.__version__,
        equinorm.__version__,
        _commit(),
        datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def _cpu() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of a checkout, with + if files differ from it; None where equinorm is installed from a package."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        git = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--exclude=*"]
        return subprocess.run(git, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


class Bandwidth:
    """Passes over a buffer larger than any cache; each call takes part in a benchmark's rounds."""

    def __init__(self, device: torch.device, entries: int = BUFFER) -> None:
        self._device = device
        self._source = torch.ones(entries, device=device)
        self._target = torch.zeros(entries, device=device)

    def passes(self) -> dict[str, tuple[Callable[[], float], int]]:
        """By name: a call that returns its seconds, and the bytes that it moves."""
        entries = self._source.numel()
        kinds: dict[str, tuple[Callable[[], object], int]] = {
            READ: (lambda: torch.linalg.vector_norm(self._source), 4 * entries),
            "copy": (lambda: self._target.copy_(self._source), 8 * entries),
            SCALE: (lambda: self._target.mul_(1.0), 8 * entries),
        }
        return {name: (partial(self._cold, call), size) for name, (call, size) in kinds.items()}

    def clear_caches(self) -> None:
        """Leave nothing of what comes next in the caches, as a backward pass of many activations does."""
        torch.linalg.vector_norm(self._source)

    def _cold(self, call: Callable[[], object]) -> float:
        self.clear_caches()
        return seconds_of(call, self._device)
