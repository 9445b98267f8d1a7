"""``python -m equinorm.bench.peak WIDTH``: balance one bfloat16 MLP; prints its peak of memory as JSON.

A process of its own: what earlier work left in the allocator's arenas would hide part of the peak.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import nn

import equinorm
from equinorm.bench.networks import count, square_mlp
from equinorm.bench.resident import Process

LAYERS = 15


def measure(width: int) -> dict[str, float]:
    """Resident memory while balancing, beyond what there was before."""
    torch.manual_seed(0)
    model = square_mlp(width, LAYERS, torch.bfloat16)
    found = equinorm.symmetries(model, torch.randn(1, width, dtype=torch.bfloat16))
    small = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    equinorm.balance(small, torch.randn(1, 4), verify=False)  # loads code
    memory, weights = Process(), count(model)
    memory.reset_peak()
    before, start = memory.now(), time.perf_counter()
    report = equinorm.balance(model, symmetries=found, verify=False)
    taken = time.perf_counter() - start
    return {
        "weights": weights,
        "width": width,
        "model_bytes": 2 * weights,
        "extra_bytes": memory.peak() - before,
        "matrices_and_one_tensor": 4 * weights + 2 * width * width,
        "seconds": taken,
        "cycles": report.cycles,
        "residual": report.residual,
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
