"""Claim: "multilevel" needs at most 40 cycles on every torchvision classifier, as it is and without batch norm.

Metric: cycles (a double sweep is two) to a residual of 1e-8, p = 2, fresh random weights; seconds of the analysis and
of the solve, on one thread; n = one seed per row.
Command: python benchmarks/cycles.py [NAME ...]; writes results/cycles.json.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import vision  # noqa: F401  (makes torchvision importable beside a CPU-only torch)
from torchvision import models

import equinorm
from equinorm.objective import Objective
from equinorm.solve import solve

OUTPUT = Path(__file__).parent / "results" / "cycles.json"
LIMIT = 40


def without_batch_norm(model: nn.Module) -> nn.Module:
    """The model with every batch norm replaced by the identity."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, nn.Identity())
    return model


def row(name: str, model: nn.Module) -> dict[str, object]:
    size = 299 if name.startswith("inception") else 224
    start = time.perf_counter()
    found = equinorm.symmetries(model, torch.randn(2, 3, size, size))
    analysed = time.perf_counter()
    solution = solve(Objective(found, dict(model.named_parameters()), 2.0))
    done = time.perf_counter()
    return {
        "free": found.num_free,
        "coverage": found.coverage,
        "cycles": solution.cycles,
        "residual": solution.residual,
        "analysis_seconds": analysed - start,
        "solve_seconds": done - analysed,
    }


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = sys.argv[1:] or models.list_models(module=models)
    rows: dict[str, dict[str, object]] = {}
    for name in names:
        torch.manual_seed(0)
        rows[name] = row(name, models.get_model(name))
        torch.manual_seed(0)
        model = models.get_model(name)
        if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
            rows[f"{name} without batch norm"] = row(name, without_batch_norm(model))
        for key in (name, f"{name} without batch norm"):
            if key in rows:
                found = rows[key]
                print(
                    f"{key:45s} {found['cycles']:>4} cycles  analysis {found['analysis_seconds']:.1f} s",
                    flush=True,
                )
    worst = max(rows, key=lambda key: int(str(rows[key]["cycles"])))
    print(f"{len(rows)} rows; at most {rows[worst]['cycles']} cycles ({worst}); target {LIMIT}")
    if not sys.argv[1:]:
        OUTPUT.parent.mkdir(exist_ok=True)
        OUTPUT.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
