"""The machine and versions that a result came from."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from equinorm.experiments import provenance


def environment(made_with: Sequence[Mapping[str, str]] = ()) -> dict[str, str]:
    """What a reader needs to judge and repeat a result.

    ``made_with``: the versions and commit of every run; runs of earlier calls may have others than are here now.
    """
    now = {**provenance.versions(), "commit": provenance.commit() or "none"}
    used = made_with or (now,)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "machine": machine(),
        "system": platform.platform(terse=True),
        **{name: " and ".join(sorted({each[name] for each in used})) for name in now},
    }


def machine() -> str:
    """The GPUs if there are any, else the processor, with memory."""
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return f"{len(names)} × {names[0]}"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} CPU cores, {memory:.0f} GB ({_processor()})"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next((name for name in named if name != "unknown"), platform.machine())
