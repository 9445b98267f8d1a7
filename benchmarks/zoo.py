"""Claim: every architecture that torch.export can trace is analysed, in a few times the seconds of a trace.

Metric: free scales, coverage, what is pinned, and seconds of CPU for the whole analysis against one forward pass of
the same input, on one thread; n = one run per model, random weights.
Command: python benchmarks/zoo.py [NAME ...] writes benchmarks/results/zoo.json (adding to what is there) and
docs/architectures.md from it.
"""

from __future__ import annotations

import json
import re
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from zoo import Entry, entries

import equinorm

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "benchmarks/results/zoo.json", ROOT / "docs/architectures.md"

INTRODUCTION = """# Architectures

Written by `python benchmarks/zoo.py`; do not edit. {count} architectures, all of them analysed without an error.

*Free scales* are the per-channel scales that leave the function unchanged in evaluation and in training mode, in
*groups* that act in the same places. *Coverage* is the share of the weights of linear and convolutional layers with at
least one free dimension. *Analysis* is the CPU time of `equinorm.symmetries` on one thread, both traces included;
*forward* is one forward pass of the same input. The last column says what most often pins.
"""


def measure(entry: Entry) -> dict[str, Any]:
    """One row: analyse a model once."""
    torch.manual_seed(0)
    model, inputs = entry.build()
    model.eval()
    forward = _seconds(lambda: model(inputs))
    found: list[equinorm.Symmetries] = []
    analysis = _seconds(lambda: found.append(equinorm.symmetries(model, inputs)))
    symmetries = found[0]
    return {
        "source": entry.source,
        "name": entry.name,
        "parameters": _parameters(model),
        "free": symmetries.num_free,
        "groups": len(symmetries.groups),
        "coverage": symmetries.coverage,
        "analysis": analysis,
        "forward": forward,
        "reasons": _reasons(symmetries),
    }


def _seconds(run: Any) -> float:
    start = time.process_time()
    with torch.no_grad():
        run()
    return time.process_time() - start


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _reasons(symmetries: equinorm.Symmetries) -> list[str]:
    """The three reasons that pin most sides of weights (or else most activations)."""
    sides = [pin.reason for pin in symmetries.pinned if " dim " in pin.what] or [
        p.reason for p in symmetries.pinned
    ]
    short = (
        re.sub(r" \(\d+ scales\)", "", re.sub(r"two uses of \S+", "two uses of one weight", r)) for r in sides
    )
    common = Counter(re.sub(r"^\S+\.\S+ acts", "a linear map acts", reason) for reason in short)
    return [reason for reason, _ in common.most_common(3)]


def page(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown, one table per source."""
    parts = [INTRODUCTION.format(count=len(rows))]
    for source in dict.fromkeys(row["source"] for row in rows):
        parts.append(f"\n## {source}\n")
        parts.append(
            "| model | parameters | free scales | groups | coverage | analysis s | forward s | pinned because |"
        )
        parts.append("|---|--:|--:|--:|--:|--:|--:|---|")
        for row in rows:
            if row["source"] == source:
                parts.append(_line(row))
    return "\n".join(parts) + "\n"


def _line(row: dict[str, Any]) -> str:
    cells = [
        row["name"], f"{row['parameters'] / 1e6:.2f} M", f"{row['free']:,}", row["groups"], f"{row['coverage']:.0%}",
        f"{row['analysis']:.1f}", f"{row['forward']:.2f}", "; ".join(row["reasons"]).replace("|", "\\|"),
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known = (
        {(row["source"], row["name"]): row for row in json.loads(RESULTS.read_text())}
        if RESULTS.exists()
        else {}
    )
    equinorm.symmetries(
        nn.Linear(2, 2), torch.randn(1, 2)
    )  # what the first trace imports is not a model's time
    wanted = [entry for entry in entries() if not sys.argv[1:] or entry.name in sys.argv[1:]]
    RESULTS.parent.mkdir(exist_ok=True)
    for number, entry in enumerate(wanted):
        row = known[entry.source, entry.name] = measure(entry)
        print(
            f"{number + 1}/{len(wanted)} {entry.name}: {row['free']} free, {row['analysis']:.1f} s",
            flush=True,
        )
        rows = [known[e.source, e.name] for e in entries() if (e.source, e.name) in known]
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
        PAGE.write_text(page(rows))


if __name__ == "__main__":
    main()
