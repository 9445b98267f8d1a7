"""fig-sanity: the first two sanity checks of the paper's appendix, on a random ResNet-18 of type C."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

import equinorm
from equinorm.experiments.reproduce import pictures
from equinorm.experiments.reproduce.environment import environment
from equinorm.experiments.reproduce.experiment import Experiment, Findings, Request
from equinorm.experiments.reproduce.results import RUNS, Figure, Table
from equinorm.experiments.reproduce.summary import Summary
from equinorm.experiments.result import write_json
from equinorm.models import resnet18c
from equinorm.threads import single_thread

SOLVERS = {
    "cycle (Algorithm 1)": "cycle",
    "parallel approximation": "cycle-parallel",
    "multilevel (ours)": "multilevel",
}
"""The paper's Algorithm 1; its approximation for ResNet blocks (appendix "Skip-connection"); our default."""
SEEDS = range(3)
CYCLES = 400
"""Ours: the paper does not say how many cycles its figure shows. Every solver has converged by then."""
ROUNDING = 1e-13
SHOWN = (2, 10, 50, 100)  # even: our solver sweeps forth and back


@dataclass(frozen=True)
class Run:
    """One solver on one random network."""

    label: str
    seed: int
    cycles: tuple[int, ...]
    norms: tuple[float, ...]  # after that many cycles
    residual: float
    probabilities: float  # the largest change of a class probability

    def norm(self, cycle: int) -> float:
        """The norm after so many cycles."""
        return [norm for k, norm in zip(self.cycles, self.norms, strict=True) if k <= cycle][-1]


def balanced(model: nn.Module, images: Tensor, label: str, seed: int) -> Run:
    """Balance a copy of the model and compare its class probabilities with the model's own."""
    copied = copy.deepcopy(model)
    solver = SOLVERS[label]
    report = equinorm.balance(
        copied, images, solver=solver, cycles=None if solver == "multilevel" else CYCLES
    )
    with torch.no_grad():
        change = model(images).softmax(1) - copied(images).softmax(1)
    cycles, norms = zip(*((k, math.exp(log)) for k, _, log in report.history), strict=True)
    return Run(label, seed, cycles, norms, report.residual, float(change.abs().max()))


def find(request: Request) -> Findings:
    """Balance three random networks with each solver, without any training."""
    start = time.perf_counter()
    runs = []
    for seed in SEEDS:
        with torch.random.fork_rng(devices=[]), single_thread():
            torch.manual_seed(seed)
            model, images = resnet18c().eval(), torch.randn(2, 3, 224, 224)
            for label in SOLVERS:
                request.say(f"seed {seed}, {label}")
                runs.append(balanced(model, images, label, seed))
    names = []
    for run in runs:
        names.append(f"{SOLVERS[run.label]}-seed{run.seed}.json")
        write_json(request.folder / RUNS / names[-1], {**asdict(run), "environment": environment()})
    _draw(request, [run for run in runs if run.seed == SEEDS[0]])
    return Findings(
        headline(runs),
        table(runs),
        (
            Figure(
                "norm-per-cycle", "Cycles on a random ResNet-18 with learnt shortcuts, no training; seed 0."
            ),
        ),
        tuple(names),
        time.perf_counter() - start,
        notes=(
            f"He initialisation, {len(SEEDS)} seeds, float32, {CYCLES} cycles of the paper's two algorithms; "
            "multilevel stops at a residual of 1e-8.",
            "The norm is Σ‖W‖² of all weights; lower is better, and the minimum is unique.",
            "The paper prints no numbers for this figure.",
        ),
    )


def headline(runs: Sequence[Run]) -> str:
    """The first network under Algorithm 1, and the worst of everything that must not happen."""
    before, after = runs[0].norms[0], runs[0].norms[-1]
    worst = max(rise(run) for run in runs if SOLVERS[run.label] == "cycle")
    change = max(run.probabilities for run in runs)
    return (
        f"norm {before:.0f} → {after:.0f} ({after / before - 1:+.1%}); largest relative rise in a cycle of Algorithm "
        f"1: {worst:.0g}; probabilities change by at most {change:.0e}"
    )


def table(runs: Sequence[Run]) -> Table:
    """One row per quantity, one column per solver."""
    columns = [[run for run in runs if run.label == label] for label in SOLVERS]

    def norms(norm: Callable[[Run], float]) -> list[str]:
        return [Summary(tuple(map(norm, column))).short(1) for column in columns]

    rows = [
        ("norm before", *norms(lambda run: run.norms[0])),
        *((f"after {k} cycles", *norms(lambda run, k=k: run.norm(k))) for k in SHOWN),  # type: ignore[misc]
        ("at the end", *norms(lambda run: run.norms[-1])),
        ("largest relative rise in a cycle", *(f"{max(map(rise, column)):.0g}" for column in columns)),
        (
            "largest residual at the end",
            *(f"{max(run.residual for run in column):.0e}" for column in columns),
        ),
        (
            "largest change of a probability",
            *(f"{max(run.probabilities for run in column):.0e}" for column in columns),
        ),
    ]
    return Table((f"mean ± standard error, n = {len(columns[0])}", *SOLVERS), tuple(rows))


def rise(run: Run) -> float:
    """How much the norm rose in any one cycle, relatively; 0 if it never did beyond the rounding of a sum."""
    largest = max(after / before - 1 for before, after in pairwise(run.norms))
    return largest if largest > ROUNDING else 0.0


def _draw(request: Request, runs: Sequence[Run]) -> None:
    curves = [pictures.Curve(run.label, run.cycles, run.norms) for run in runs]
    pictures.lines(
        request.folder,
        "norm-per-cycle",
        "ENorm cycles on a random ResNet-18",
        curves,
        pictures.Axis("cycles", "symlog"),
        pictures.Axis("norm of the weights, Σ‖W‖²"),
    )


EXPERIMENT = Experiment(
    "fig-sanity",
    "Sanity checks on a random ResNet-18",
    'appendix "Sanity checks", checks 1 and 2',
    "A randomly initialised ResNet-18 outputs the same probabilities before and after balancing, and the norm of "
    "its weights falls with every cycle and converges.",
    find,
)
