"""Claim: ENorm.step() costs about as much as an optimizer's step, and far less than Algorithm 1 written plainly.

Metric: median milliseconds of one call, interleaved in one run, as ratios to SGD(momentum=0.9, foreach=True) on the
same parameters; n = --repeats. The limit is the memory traffic (read each weight; read and write weight and momentum:
20 bytes per float32 parameter) at the bandwidth that a copy of 256 MB reaches here.
Command: python benchmarks/step.py [--threads 2] [--repeats 31] [--no-compile]; writes results/step.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import equinorm
from equinorm import models

TRAFFIC = 20  # bytes per float32 parameter: weight read; weight and momentum read and written


def nets() -> dict[str, tuple[nn.Module, Tensor]]:
    """The paper's networks, and MLPs of growing size."""
    found: dict[str, tuple[nn.Module, Tensor]] = {
        "ResNet-18-C": (models.resnet18c(), torch.randn(1, 3, 64, 64)),
        "MNIST auto-encoder": (models.mnist_autoencoder(), torch.randn(1, 784)),
        "CIFAR-10 FC, 11 layers": (models.cifar10_fc(11), torch.randn(1, 3072)),
        "CIFAR-NV": (models.cifar_nv(), torch.randn(1, 3, 28, 28)),
    }
    for width in (160, 500, 1600, 5000):
        layers = [part for _ in range(4) for part in (nn.Linear(width, width), nn.ReLU())]
        found[f"MLP, 4 layers of {width}"] = nn.Sequential(*layers), torch.randn(1, width)
    return found


def plain_algorithm(
    model: nn.Module, sym: equinorm.Symmetries, optimizer: torch.optim.Optimizer
) -> Callable[[], None]:
    """Algorithms 1 and 2 of the paper layer by layer, with torch operators: norms, then scale weights and momentum."""
    parameters = dict(model.named_parameters())

    def norms(members: list[tuple[Tensor, int]]) -> Tensor:
        return sum(w.transpose(0, d).flatten(1).square().sum(1) for w, d in members if w.dim() > 1)  # type: ignore[return-value]

    def scale(tensor: Tensor, dim: int, by: Tensor) -> None:
        tensor.mul_(by.view([-1 if k == dim else 1 for k in range(tensor.dim())]))

    @torch.no_grad()
    def step() -> None:
        for group in sym.groups:
            produced = [(parameters[m.parameter], m.dim) for m in group.members if m.sign > 0]
            consumed = [(parameters[m.parameter], m.dim) for m in group.members if m.sign < 0]
            by = (norms(consumed) / norms(produced)).pow(0.25)
            for members, factor in ((produced, by), (consumed, 1 / by)):
                for parameter, dim in members:
                    scale(parameter, dim, factor)
                    scale(optimizer.state[parameter]["momentum_buffer"], dim, 1 / factor)

    return step


def bandwidth() -> float:
    """Bytes per second of a large copy (read and write)."""
    source = torch.randn(1 << 26)
    target = torch.empty_like(source)
    seconds = [timed(lambda: target.copy_(source)) for _ in range(9)]
    return 8 * source.numel() / statistics.median(seconds)


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(model: nn.Module, x: Tensor, repeats: int, compiled: bool) -> dict[str, float]:
    """Milliseconds by method."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9, foreach=True)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * 1e-3
    optimizer.step()
    sym = equinorm.symmetries(model, x)
    calls: dict[str, Callable[[], object]] = {"sgd": optimizer.step}
    calls["plain"] = plain_algorithm(model, sym, optimizer)
    calls["enorm"] = equinorm.ENorm(model, optimizer, symmetries=sym).step
    if compiled:
        calls["enorm compiled"] = equinorm.ENorm(model, optimizer, symmetries=sym, compile=True).step
    for call in calls.values():
        call(), call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            seconds[name].append(timed(call))
    return {name: 1e3 * statistics.median(found) for name, found in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--no-compile", dest="compiled", action="store_false")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "step.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    speed = bandwidth()
    rows = []
    print(f"{options.threads} threads, copies at {speed / 1e9:.0f} GB/s; ratios to SGD's step")
    for name, (model, x) in nets().items():
        found = measure(model, x, options.repeats, options.compiled)
        count = sum(p.numel() for p in model.parameters())
        limit = 1e3 * TRAFFIC * count / speed
        rows.append({"network": name, "parameters": count, "milliseconds": found, "limit": limit})
        ratios = "  ".join(
            f"{key} {value / found['sgd']:.2f}" for key, value in found.items() if key != "sgd"
        )
        print(
            f"{name:26s} {count:>10,}  sgd {found['sgd']:.2f} ms  {ratios}  limit {limit / found['sgd']:.2f}",
            flush=True,
        )
    machine = {
        "threads": options.threads,
        "bandwidth": speed,
        "torch": torch.__version__,
        "cpu": platform.processor(),
    }
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(
        json.dumps({"machine": machine, "repeats": options.repeats, "rows": rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
