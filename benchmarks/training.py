"""Claim: a training step of ResNet-18-C at batch 32, 224 x 224, is at most 2 % slower with ENorm, 5 % with ENorm-Impl.

Metric: median seconds of forward, backward and SGD with momentum, with no normalisation, ENorm and ENorm-Impl,
interleaved in one run on the same batch; the normalisation's own share is timed inside the same steps; n = --repeats.
Command: python benchmarks/training.py [--threads 2] [--repeats 7] [--batch 32]; writes results/training.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import equinorm
from equinorm.models import resnet18c

OUTPUT = Path(__file__).parent / "results" / "training.json"
METHODS = ("none", "enorm", "enorm compiled", "enorm-impl")


class Run:
    """One method's model and optimizer, and the seconds that its steps and its normalisation took."""

    def __init__(self, method: str, size: int) -> None:
        torch.manual_seed(0)
        self.method, self.model = method, resnet18c(final_bn=True)
        example = torch.randn(2, 3, size, size)
        parameters = list(self.model.parameters())
        self.implicit = None
        if method == "enorm-impl":
            self.implicit = equinorm.ImplicitENorm(self.model, example, weight_decay=1e-4)
            parameters += list(self.implicit.parameters())
        self.optimizer = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, foreach=True)
        self.enorm = None
        if method.startswith("enorm") and self.implicit is None:
            self.enorm = equinorm.ENorm(
                self.model, self.optimizer, example, compile=method.endswith("compiled")
            )
        self.seconds: list[float] = []
        self.own: list[float] = []

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        start, own = time.perf_counter(), 0.0
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(x), y).backward()
        if self.implicit is not None:
            before = time.perf_counter()
            self.implicit().backward()
            own += time.perf_counter() - before
        self.optimizer.step()
        if self.enorm is not None:
            before = time.perf_counter()
            self.enorm.step()
            own += time.perf_counter() - before
        self.seconds.append(time.perf_counter() - start)
        self.own.append(own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    x = torch.randn(options.batch, 3, options.size, options.size)
    y = torch.randint(0, 1000, (options.batch,))
    runs = [Run(method, options.size) for method in METHODS]
    for _ in range(options.repeats + 1):
        for run in runs:
            run.step(x, y)
    rows = {}
    base = statistics.median(runs[0].seconds[1:])
    for run in runs:
        step, own = statistics.median(run.seconds[1:]), statistics.median(run.own[1:])
        rows[run.method] = {
            "step_seconds": step,
            "own_seconds": own,
            "own_share": own / base,
            "ratio": step / base,
        }
        print(
            f"{run.method:15s} step {step:.3f} s ({step / base:.3f}x)  of it normalisation {own / base:.2%} of a step"
        )
    settings = {
        "threads": options.threads,
        "batch": options.batch,
        "size": options.size,
        "torch": torch.__version__,
    }
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(
        json.dumps({"settings": settings, "repeats": options.repeats, "rows": rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
