"""Claim: ``balance(verify=False)`` needs at most 4 bytes per weight beside the model, and one tensor.

Metric: the peak resident memory of a process that balances, less that of the same process just before, on
multilayer perceptrons in bfloat16 of up to 1 billion weights (no two of which share a pair of scales, so that
nothing reduces); sampled every 5 ms. n = 1 run per size, each in a process of its own, analysis not included.
Hardware: 2 CPU cores, 24 GB. Command: python benchmarks/memory.py [--millions 60 250 1000]
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from torch import nn

import equinorm

RESULTS = Path(__file__).parent / "results" / "memory.json"
LAYERS = 15
PAGE = resource.getpagesize()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


class Peak(threading.Thread):
    """The largest resident memory while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()
        self.start_bytes = self.bytes = resident()

    def run(self) -> None:
        while not self.done.wait(0.005):
            self.bytes = max(self.bytes, resident())

    def extra(self) -> int:
        self.done.set()
        self.join()
        return self.bytes - self.start_bytes


def network(width: int) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layer = nn.Linear(width, width, dtype=torch.bfloat16)
        nn.init.normal_(layer.weight, std=(2 / width) ** 0.5)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def measure(width: int) -> dict[str, float]:
    net, x = network(width), torch.randn(1, width, dtype=torch.bfloat16)
    sym = equinorm.symmetries(net, x)
    weights = sum(p.numel() for p in net.parameters())
    start = time.perf_counter()
    with torch.no_grad():
        net(x)
    forward = time.perf_counter() - start
    equinorm.balance(
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), torch.randn(1, 4)
    )  # loads code
    peak = Peak()
    peak.start()
    start = time.perf_counter()
    report = equinorm.balance(net, symmetries=sym, verify=False)
    seconds = time.perf_counter() - start
    extra = peak.extra()
    return {
        "weights": weights,
        "width": width,
        "model_bytes": 2 * weights,
        "extra_bytes": extra,
        "extra_bytes_per_weight": extra / weights,
        "matrices_and_one_tensor": 4 * weights + 2 * width * width,
        "peak_process_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "seconds": seconds,
        "forward_seconds": forward,
        "cycles": report.cycles,
        "residual": report.residual,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--millions", type=int, nargs="+", default=[60, 250, 1000])
    parser.add_argument("--width", type=int, help=argparse.SUPPRESS)  # the subprocess
    arguments = parser.parse_args()
    if arguments.width:
        print(json.dumps(measure(arguments.width)))
        return
    rows = []
    print(f"{'weights':>14} {'model':>9} {'extra':>9} {'per weight':>11} {'seconds':>8} {'cycles':>7}")
    for millions in arguments.millions:
        width = round((millions * 1e6 / LAYERS) ** 0.5)
        command = [sys.executable, __file__, "--width", str(width)]
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rows.append(row)
        print(
            f"{row['weights']:14,} {row['model_bytes'] / 2**30:6.2f} GB {row['extra_bytes'] / 2**30:6.2f} GB "
            f"{row['extra_bytes_per_weight']:7.2f} B {row['seconds']:10.1f} {row['cycles']:7}",
            flush=True,
        )
    machine = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": torch.get_num_threads(),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")
    print(f"wrote {RESULTS}")


if __name__ == "__main__":
    main()
