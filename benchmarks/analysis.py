"""Claim: analysing ResNet-50 takes under 2 s, trace included, and balancing it under 3 s, verify included; the cost
of both grows linearly with parameters and with depth.

Metric: seconds of CPU time on one thread (so that a busy machine disturbs little; more threads can only be faster),
each against one forward pass of the same model on the same input in the same process, best of ``--repeats`` (3);
curves on ReLU chains, also as milliseconds per layer and nanoseconds per weight, which stay level where the growth is
linear. Random weights, batch of one. Command: python benchmarks/analysis.py
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import vision  # noqa: F401  (before torchvision, see there)
from torchvision.models import resnet50

import equinorm

RESULTS = Path(__file__).parent / "results" / "analysis.json"
DEPTHS, WIDTHS = (10, 20, 40, 80, 160), (250, 500, 1000, 2000, 4000)


def chain(depth: int, width: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layer = nn.Linear(width, width)
        nn.init.kaiming_normal_(layer.weight)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]), torch.randn(1, width)


def best(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def measure(model: nn.Module, x: Tensor, repeats: int) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        forward = best(lambda: model(x), repeats)
    sym = equinorm.symmetries(model, x)
    copies = [copy.deepcopy(model) for _ in range(3 * repeats)]
    found = {
        "weights": sum(p.numel() for p in model.parameters()),
        "free_scales": sym.num_free,
        "forward": forward,
        "analysis": best(lambda: equinorm.symmetries(model, x), repeats),
        "solve_and_apply": best(
            lambda: equinorm.balance(copies.pop(), symmetries=sym, verify=False), repeats
        ),
        "balance": best(lambda: equinorm.balance(copies.pop(), x), repeats),
    }
    report = equinorm.balance(copies.pop(), symmetries=sym, verify=False)
    return found | {"cycles": report.cycles, "residual": report.residual}


def show(label: str, row: dict[str, float], unit: str, count: float) -> None:
    print(
        f"{label:22} {row['forward']:8.4f} {row['analysis']:9.3f} {row['analysis'] / row['forward']:7.1f}x"
        f" {row['solve_and_apply']:9.3f} {row['balance']:8.3f} {row['balance'] / row['forward']:7.1f}x"
        f" {row['cycles']:7} {row['balance'] / count:9.2f} {unit}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    print(
        f"{'CPU seconds':22} {'forward':>8} {'analysis':>9} {'ratio':>8} {'solve':>9} {'balance':>8} {'ratio':>8}"
        f" {'cycles':>7} {'per unit':>9}"
    )
    torch.manual_seed(0)
    model, x = resnet50(), torch.randn(1, 3, 224, 224)
    first = best(lambda: equinorm.symmetries(model, x), 1)
    row = measure(model, x, repeats) | {"first_analysis": first}
    print(f"ResNet-50, first analysis in the process (torch.export loads its code): {first:.3f}")
    show("ResNet-50", row, "ns per weight", row["weights"] / 1e9)
    results: dict[str, object] = {"resnet50": row}
    for name, values in (("depth", DEPTHS), ("width", WIDTHS)):
        rows = []
        for value in values:
            depth, width = (value, 200) if name == "depth" else (5, value)
            row = measure(*chain(depth, width), repeats if width < 2000 else 2) | {
                "depth": depth,
                "width": width,
            }
            unit, count = (
                ("ms per layer", depth / 1e3) if name == "depth" else ("ns per weight", row["weights"] / 1e9)
            )
            show(f"{depth} layers of {width}", row, unit, count)
            rows.append(row)
        results[name] = rows
    machine = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine} | results, indent=2) + "\n")
    print(f"wrote {RESULTS}")


if __name__ == "__main__":
    main()
