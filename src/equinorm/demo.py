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
from equinorm.threads import single_thread

PAPER, OURS = "the paper's cycle", "multilevel"
SOLVERS = {PAPER: "cycle", OURS: "multilevel"}
SHOWN_CYCLES = (2, 10, 50)
CAPTION = """a | b: the paper's cycle | the multilevel solver
residual: 0 only at the unique minimum; outputs: largest relative change"""


@dataclass(frozen=True, eq=False)
class Case:
    """A network to balance, and one input."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Trial:
    """One solver on one network."""

    curve: list[tuple[int, float]]  # (cycle, norm)
    residual: float
    seconds: float

    def norm(self, cycle: int) -> float:
        """The norm after so many cycles, or at the end if that came first."""
        return [norm for k, norm in self.curve if k <= cycle][-1]


@dataclass(frozen=True, eq=False)
class Result:
    """What balancing one network gave."""

    parameters: int
    free: int
    report: equinorm.Report
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    trials: dict[str, Trial]


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
    screen = Console(stderr=True)
    with (
        Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress,
        single_thread(),
    ):
        task = progress.add_task("starting", total=STEPS * len(CASES) + 1)

        def step(text: str) -> None:
            progress.update(task, description=text, advance=1)

        results = {case.name: _balance(case, step) for case in CASES}
        step("drawing")
        chain = results[CASES[1].name]
        plot.energy(
            energy, chain.before, chain.after, "20 layers of 500×500, layer 6 × 1.2 and layer 12 × 0.8"
        )
        curves = {name: {k: t.curve for k, t in result.trials.items()} for name, result in results.items()}
        plot.cycles(sanity, curves)
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
    trials = {}
    for name, solver in SOLVERS.items():
        step(f"{case.name}: {name}")
        trials[name] = _trial(copy.deepcopy(model), example, symmetries, solver)
    step(f"{case.name}: comparing outputs")
    report = equinorm.balance(model, example, symmetries=symmetries)
    count = sum(parameter.numel() for parameter in model.parameters())
    return Result(count, symmetries.num_free, report, before, plot.channel_norms(model), trials)


def _trial(model: nn.Module, example: Tensor, symmetries: equinorm.Symmetries, solver: str) -> Trial:
    start = time.perf_counter()
    report = equinorm.balance(model, example, solver=solver, symmetries=symmetries, verify=False)
    seconds = time.perf_counter() - start
    return Trial([(cycle, math.exp(energy)) for cycle, _, energy in report.history], report.residual, seconds)


def _table(results: dict[str, Result]) -> Table:
    table = Table(title="equinorm: smaller weights, same function", caption=CAPTION)
    table.title_justify = table.caption_justify = "left"
    table.add_column("")
    for name in results:
        table.add_column(name, justify="right")

    def row(label: str, text: Callable[[Result], str]) -> None:
        table.add_row(label, *map(text, results.values()))

    def both(label: str, text: Callable[[Trial], str]) -> None:
        row(label, lambda result: " | ".join(map(text, result.trials.values())))

    row("parameters", lambda r: f"{r.parameters:,}")
    row("free scales", lambda r: f"{r.free:,}")
    table.add_section()
    row("norm before", lambda r: f"{r.report.norm_before:,.1f}")
    for cycle in SHOWN_CYCLES:
        both(f"  after {cycle} cycles", lambda t, k=cycle: f"{t.norm(k):,.1f}")  # type: ignore[misc]
    row(
        "norm after",
        lambda r: f"{r.report.norm_after:,.1f} ({r.report.norm_after / r.report.norm_before - 1:+.1%})",
    )
    table.add_section()
    both("cycles needed", lambda t: f"{t.curve[-1][0]:,}")
    both("residual", lambda t: f"{t.residual:.0e}")
    both("seconds", lambda t: f"{t.seconds:.1f}")
    row("change of the outputs", lambda r: f"{r.report.function_change:.0e}")
    return table
