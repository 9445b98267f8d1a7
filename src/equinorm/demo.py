"""``equinorm demo``: the paper's appendices "Illustration of the effect" and "Sanity checks", in seconds."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

import equinorm
from equinorm import plot
from equinorm.errors import EquinormError
from equinorm.models import resnet18c

PAPER, OURS = "the paper's cycle", "multilevel"
SOLVERS = {PAPER: "cycle", OURS: "multilevel"}
SHOWN_CYCLES = (1, 3, 10, 30, 100)


@dataclass(frozen=True, eq=False)
class Case:
    """A network to balance, and one input."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Result:
    """What balancing one network gave."""

    parameters: int
    free: int
    report: equinorm.Report
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    curves: dict[str, plot.Points]
    seconds: dict[str, float]


def unbalanced_resnet() -> nn.Module:
    """A random ResNet-18 of type C, each output channel of each convolution off by a factor e^(N(0,1)/2)."""
    model = resnet18c()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                module.weight *= torch.exp(0.5 * torch.randn(module.out_channels, 1, 1, 1))
    return model


def unbalanced_chain(layers: int = 20, width: int = 500) -> nn.Module:
    """The appendix's network: Xavier initialisation, layer 6 multiplied by 1.2 and layer 12 by 0.8."""
    model = nn.Sequential()
    for k in range(1, layers + 1):
        layer = nn.Linear(width, width)
        nn.init.xavier_normal_(layer.weight)
        with torch.no_grad():
            layer.weight *= {6: 1.2, 12: 0.8}.get(k, 1.0)
        model.add_module(f"fc{k}", layer)
        if k < layers:
            model.add_module(f"relu{k}", nn.ReLU())
    return model


CASES = (
    Case("ResNet-18, learnt shortcuts", unbalanced_resnet, (1, 3, 224, 224)),
    Case("20 layers of 500×500", unbalanced_chain, (8, 500)),
)
STEPS = 4  # per case: build and analyse, the paper's cycle, multilevel, compare


def run(folder: Path) -> None:
    """Balance both networks, print one table, write two pictures into ``folder``."""
    energy, sanity = folder / "energy.png", folder / "norm-per-cycle.png"
    plot.check_path(energy)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EquinormError(f"{folder}: cannot be made a folder ({error.strerror})") from error
    console = Console()
    columns = (TextColumn("{task.description:<54}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=STEPS * len(CASES) + 1)

        def step(text: str) -> None:
            progress.update(task, description=text, advance=1)

        results = {case.name: _balance(case, step) for case in CASES}
        step("drawing")
        chain = results[CASES[1].name]
        plot.energy(
            energy, chain.before, chain.after, "20 layers of 500×500, layer 6 × 1.2 and layer 12 × 0.8"
        )
        plot.cycles(sanity, {name: result.curves for name, result in results.items()})
    console.print(_table(results))
    console.print(f"wrote {energy} and {sanity}", soft_wrap=True)


def _balance(case: Case, step: Callable[[str], None]) -> Result:
    step(f"{case.name}: finding the symmetries")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = case.build().eval()
        example = torch.randn(case.shape)
    before = plot.channel_norms(model)
    symmetries = equinorm.symmetries(model, example)
    curves, seconds = {}, {}
    for name, solver in SOLVERS.items():
        step(f"{case.name}: {name}")
        start = time.perf_counter()
        trial = copy.deepcopy(model)
        report = equinorm.balance(trial, example, solver=solver, symmetries=symmetries, verify=False)
        seconds[name] = time.perf_counter() - start
        curves[name] = report.curve
    step(f"{case.name}: comparing outputs")
    report = equinorm.balance(model, example, symmetries=symmetries)
    count = sum(parameter.numel() for parameter in model.parameters())
    after = plot.channel_norms(model)
    return Result(count, symmetries.num_free, report, before, after, curves, seconds)


def _table(results: dict[str, Result]) -> Table:
    table = Table(title="equinorm: smaller weights, same function", title_justify="left", title_style="bold")
    table.add_column("")
    for name in results:
        table.add_column(name, justify="right")

    def row(label: str, text: Callable[[Result], str]) -> None:
        table.add_row(label, *(text(result) for result in results.values()))

    row("parameters", lambda r: f"{r.parameters:,}")
    row("free scales", lambda r: f"{r.free:,}")
    table.add_section()
    row("norm before", lambda r: f"{r.report.norm_before:,.1f}")
    for cycle in SHOWN_CYCLES:
        row(f"  after {cycle} cycle{'s' * (cycle > 1)}, paper | ours", lambda r, k=cycle: _both(r, k))
    row(
        "norm after",
        lambda r: f"{r.report.norm_after:,.1f} ({r.report.norm_after / r.report.norm_before - 1:+.1%})",
    )
    table.add_section()
    row(
        "cycles needed, paper | ours",
        lambda r: " | ".join(f"{curve[-1][0]:,}" for curve in r.curves.values()),
    )
    row("seconds, paper | ours", lambda r: " | ".join(f"{s:.1f}" for s in r.seconds.values()))
    row("certificate (residual)", lambda r: f"{r.report.residual:.1e}")
    row("largest change of an output", lambda r: f"{r.report.function_change or math.nan:.1e}")
    return table


def _both(result: Result, cycle: int) -> str:
    """The norm after so many cycles, for each solver that still had to go on."""
    norms = (dict(curve).get(cycle) for curve in result.curves.values())
    return " | ".join("done" if norm is None else f"{norm:,.1f}" for norm in norms)
