"""``equinorm bench convergence``: cycles and seconds to the minimum, the paper's cycle against multilevel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import torch

import equinorm
from equinorm.bench import pictures
from equinorm.bench.families import Case, hard_cases, random_cases
from equinorm.bench.output import Findings, Headline, Table, seconds, spread, times
from equinorm.bench.timing import Estimate, Rounds, estimate, interleaved, ratios
from equinorm.bench.trained import accuracy, trained_cases
from equinorm.errors import EquinormError
from equinorm.objective import Objective
from equinorm.solve import METHODS
from equinorm.solve.attained import attained
from equinorm.solve.bounds import bounds
from equinorm.solve.problem import Problem
from equinorm.threads import single_thread

CLAIM = """Cycles (a double sweep of multilevel is two) and seconds until the residual max |R - L| / (R + L) is
at most 1e-8, p = 2, from the same reduced matrices, on one thread as the library solves; one seed per row,
medians over rounds in which both solve it.
Beyond a hundred, cycles are counted to within 1 %. Seconds are those of the iterations alone: residuals, which
only the stopping rule needs, are not in them. A solver that is stopped by the limit on seconds counts with what
it has used, so that ratios are then lower bounds (≥). Trained: Adam on 1797 digits; their accuracy on these
images says that they have learnt."""

CYCLE, MULTILEVEL = "cycle", "multilevel"
CHECKS = 100  # residuals per so many cycles done: a thousand cycles are counted to within ten
ROUNDS = Rounds(most=5, seconds=30.0, least=2, warm_up=0)
POINTS = 80  # of a curve, in JSON and in the picture
WEAKEST = 3


@dataclass(frozen=True)
class Settings:
    """Which networks, and when to give up."""

    depths: tuple[int, ...] = (5, 21, 51, 101)
    width: int = 500
    hard: tuple[int, int] = (21, 100)  # depth and width
    trained: tuple[int, ...] = (3, 6, 12, 24)
    epochs: int = 30
    seconds: float = 60.0  # for the paper's cycle on one network
    tol: float = 1e-8
    rounds: Rounds = ROUNDS


FULL = Settings()
QUICK = Settings((5, 21), 100, (11, 40), (3, 6), 4, 2.0, rounds=Rounds(2, 1.0, 1, 0))


class Point(NamedTuple):
    """Where a solver stands."""

    cycles: int
    seconds: float
    residual: float


def run(settings: Settings, device: torch.device, say: Callable[[str], None]) -> Findings:
    """Solve every network twice. The solvers work on the CPU in one thread, whatever the device."""
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    with single_thread():
        for case in _cases(settings, notes):
            say(case.label)
            rows.append(measure(case, settings))
    return Findings(
        CLAIM,
        rows,
        [_table(rows)],
        headlines(rows),
        notes,
        partial(pictures.convergence, rows=rows, tol=settings.tol),
    )


def _cases(settings: Settings, notes: list[str]) -> Iterator[Case]:
    cases = chain(random_cases(settings.depths, settings.width), hard_cases(*settings.hard))
    yield from cases
    try:
        import sklearn  # type: ignore[import-untyped]  # noqa: F401
    except ImportError:
        notes.append("trained networks were left out: scikit-learn is not installed")
        return
    yield from trained_cases(settings.trained, settings.epochs)


def measure(case: Case, settings: Settings) -> dict[str, Any]:
    """Both solvers on one network."""
    torch.manual_seed(0)
    model = case.build()
    found = equinorm.symmetries(model, torch.zeros(2, case.width))
    objective = Objective(found, dict(model.named_parameters()), 2.0)
    ways = {
        MULTILEVEL: partial(curve, objective, MULTILEVEL, settings.tol, float("inf")),
        CYCLE: partial(curve, objective, CYCLE, settings.tol, settings.seconds),
    }
    found_curves = interleaved(ways, settings.rounds)
    curves = {name: each[0] for name, each in found_curves.items()}
    took = {name: [points[-1].seconds for points in each] for name, each in found_curves.items()}
    done = {name: points[-1].residual <= settings.tol for name, points in curves.items()}
    return {
        "network": case.label,
        "kind": case.kind,
        "free": found.num_free,
        "accuracy": accuracy(model) if case.kind == "trained" else None,
        "solvers": {
            name: points[-1]._asdict() | {"seconds": estimate(took[name]), "converged": done[name]}
            for name, points in curves.items()
        },
        "speedup": estimate(ratios(took[CYCLE], took[MULTILEVEL])) if done[MULTILEVEL] else None,
        "speedup_is_lower_bound": not done[CYCLE],
        "curves": {name: thinned(points) for name, points in curves.items()},
    }


def curve(objective: Objective, solver: str, tol: float, limit: float) -> list[Point]:
    """Every point of a solver's way, until the tolerance, its own largest number of cycles, or a limit on seconds."""
    found = attained(objective)
    problem = Problem(found.objective, found.live, *bounds(objective))
    if not problem.live.any():
        raise EquinormError("nothing to solve: no scale of this network is free and has a minimum")
    x = problem.objective.start()
    points = [Point(0, 0.0, problem.residual(x))]
    way, spent = METHODS[solver].run(problem, x, METHODS[solver].most), 0.0
    while points[-1].residual > tol and spent < limit:
        start = time.perf_counter()
        done = list(islice(way, max(1, points[-1].cycles // CHECKS)))
        spent += time.perf_counter() - start
        if not done:
            break
        points.append(Point(done[-1][0], spent, problem.residual(done[-1][1])))
    return points


def thinned(points: Sequence[Point], most: int = POINTS) -> list[Point]:
    """Evenly spaced on a log scale, the first and the last included."""
    if len(points) <= most:
        return list(points)
    last = len(points) - 1
    chosen = {round((last + 1) ** (k / (most - 1))) - 1 for k in range(most)}
    return [points[k] for k in sorted(chosen | {0, last})]


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    header = (
        "network",
        "free",
        "multilevel cycles",
        "seconds",
        "paper's cycles",
        "seconds",
        "ratio",
        "accuracy",
    )
    lines = []
    for row in rows:
        ours, paper = row["solvers"][MULTILEVEL], row["solvers"][CYCLE]
        lines.append(
            (
                row["network"],
                f"{row['free']:,}",
                f"{ours['cycles']}" + ("" if ours["converged"] else f" → {ours['residual']:.0e}"),
                seconds(ours["seconds"]),
                f"{paper['cycles']}" + ("" if paper["converged"] else f" → {paper['residual']:.0e}"),
                seconds(paper["seconds"]),
                speedup(row),
                "" if row["accuracy"] is None else f"{row['accuracy']:.0%}",
            )
        )
    return Table("to a residual of 1e-8 (→: where it stood when it was stopped)", header, lines)


def speedup(row: Mapping[str, Any]) -> str:
    """The ratio of seconds, as the lower bound that it may be."""
    found: Estimate | None = row["speedup"]
    return "" if found is None else ("≥ " if row["speedup_is_lower_bound"] else "") + spread(found, times)


def weakest(rows: Sequence[Mapping[str, Any]], number: int = WEAKEST) -> list[Mapping[str, Any]]:
    """The networks that take multilevel the most cycles; those it did not solve come first."""

    def effort(row: Mapping[str, Any]) -> tuple[bool, int]:
        ours = row["solvers"][MULTILEVEL]
        return not ours["converged"], ours["cycles"]

    return sorted(rows, key=effort, reverse=True)[:number]


def headlines(rows: Sequence[Mapping[str, Any]]) -> list[Headline]:
    """What goes into the README, with the targets of the issues."""
    lines = []
    for kind, most in (("random", 12), ("hard", 40), ("trained", 40)):
        chosen = [row for row in rows if row["kind"] == kind]
        if chosen:
            worst = weakest(chosen, 1)[0]
            ours = worst["solvers"][MULTILEVEL]
            met = ours["converged"] and ours["cycles"] <= most
            what = f"multilevel's most cycles on {len(chosen)} {kind} networks"
            lines.append(Headline(what, f"{ours['cycles']} ({worst['network']})", f"≤ {most}", met))
    for row in rows:
        if row["network"].startswith("random, 51"):
            what = "multilevel is faster than the paper's cycle, 51 layers"
            met = row["speedup"] is not None and row["speedup"].median >= 50
            lines.append(Headline(what, speedup(row), "≥ 50×", met))
    names = [f"{row['network']} ({row['solvers'][MULTILEVEL]['cycles']} cycles)" for row in weakest(rows)]
    slow = min((row for row in rows if row["speedup"]), key=lambda row: row["speedup"].median)
    lines.append(Headline("where multilevel is weakest", ", ".join(names)))
    lines.append(
        Headline("where it gains least on the paper's cycle", f"{slow['network']} ({speedup(slow)})")
    )
    return lines
