"""``sweep``: choose each method's learning rate (and groups) on held-out examples, then train the best with N seeds.

As the paper does: "We select the learning rate in …", "Cross validation is used to pick an initial learning rate",
"For GN, we cross-validate the number of groups", "All results are the average test accuracies over 5 training runs".
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from equinorm.errors import ArgumentError
from equinorm.experiments.grid import Grid, Point
from equinorm.experiments.methods import METHODS
from equinorm.experiments.ranges import RULES, check
from equinorm.experiments.recipes import RECIPES, Settings, known, settings
from equinorm.experiments.result import Result, write_json
from equinorm.experiments.storage import open_storage
from equinorm.table import columns

Run = Callable[[Settings, Path], Result]


@dataclass(frozen=True)
class Summary:
    """What a sweep found for one method.

    Attributes:
        method: its name.
        chosen: the settings that were best on the held-out examples; None if every one diverged.
        search: every point of the grid with its value on the held-out examples, best first; None if it diverged.
        finals: the headline metric of every seed that did not diverge, in their order.
        diverged: how many seeds did.
        mean, error: of ``finals``; the standard error needs two.
    """

    method: str
    chosen: Point | None
    search: list[tuple[Point, float | None]]
    finals: list[float]
    diverged: int
    mean: float | None
    error: float | None


class Contest:
    """One method's part of a sweep: the search, then the seeds."""

    def __init__(self, plan: Plan, method: str, storage: Any, run: Run) -> None:
        self._plan, self._method, self._storage, self._run = plan, method, storage, run
        space = plan.space(method)
        varied = {name: values for name, values in space.items() if len(values) > 1}
        self._fixed = {name: values[0] for name, values in space.items() if len(values) == 1}
        held_out = {"validation": RECIPES[plan.recipe].held_out, "seed": plan.seeds[0]}
        fixed = {**held_out, **plan.overrides, **self._fixed}
        self._search = self._grid("search", varied, fixed, "validation") if varied else None
        self._seeds: Grid | None = None

    def advance(self) -> bool:
        """Run one training; False if others are running what is left, or nothing is."""
        if self._search is not None and not self._search.finished():
            return self._search.advance()
        if self._chosen() is None:
            return False
        return not self._seed_grid().finished() and self._seed_grid().advance()

    def finished(self) -> bool:
        """Whether every seed was trained, or there is nothing to train."""
        if self._search is not None and not self._search.finished():
            return False
        return self._chosen() is None or self._seed_grid().finished()

    def summary(self) -> Summary:
        """What was found."""
        chosen = self._chosen()
        runs = self._seed_grid().values() if chosen is not None else []
        values = [value for _, value in sorted(runs, key=lambda run: run[0]["seed"])]
        finals = [value for value in values if value is not None]
        return Summary(
            method=self._method,
            chosen=None if chosen is None else {**self._fixed, **chosen},
            search=self._search.values() if self._search else [],
            finals=finals,
            diverged=len(values) - len(finals),
            mean=statistics.fmean(finals) if finals else None,
            error=statistics.stdev(finals) / math.sqrt(len(finals)) if len(finals) > 1 else None,
        )

    def _chosen(self) -> Point | None:
        if self._search is None:
            return {}
        point, value = self._search.values()[0]
        return None if value is None else point

    def _seed_grid(self) -> Grid:
        if self._seeds is None:
            chosen = {**self._fixed, **(self._chosen() or {})}
            self._seeds = self._grid(
                "seeds", {"seed": self._plan.seeds}, {**self._plan.overrides, **chosen}, "final"
            )
        return self._seeds

    def _grid(self, stage: str, space: Mapping[str, Sequence[Any]], fixed: Point, value: str) -> Grid:
        """The study of a stage; ``value`` names the field of the result that counts."""
        recipe = self._plan.recipe

        def evaluate(point: Point) -> float | None:
            chosen = settings(recipe, self._method, **{**fixed, **point})
            result = self._run(chosen, self._plan.folder / run_name(chosen, (*self._plan.searched, "seed")))
            found: float | None = getattr(result, value)
            return found

        about = {"recipe": recipe, "method": self._method, "stage": stage, "fixed": fixed}
        key = json.dumps([about, {k: list(v) for k, v in space.items()}, self._plan.data], sort_keys=True)
        digest = hashlib.blake2b(key.encode(), digest_size=6).hexdigest()
        maximize = RECIPES[recipe].task.higher_is_better
        return Grid(
            self._storage, f"{recipe} {self._method} {stage} {digest}", space, maximize, evaluate, about
        )


@dataclass(frozen=True)
class Plan:
    """What a sweep is about; workers with equal plans share their work.

    Attributes:
        recipe: its name.
        folder: where runs go.
        seeds: of the final runs.
        overrides: settings of every run.
        grids: values to search instead of the recipe's and the method's.
        data: the data set's fingerprint.
    """

    recipe: str
    folder: Path
    seeds: tuple[int, ...]
    overrides: Point
    grids: Mapping[str, Sequence[Any]]
    data: str

    @property
    def searched(self) -> tuple[str, ...]:
        """The settings that name a run's folder."""
        return tuple(dict.fromkeys(("lr", "groups", "weight_decay", "validation", *self.grids)))

    def space(self, method: str) -> dict[str, Sequence[Any]]:
        """The grid of a method."""
        recipe, row = RECIPES[self.recipe], METHODS[method]
        space: dict[str, Sequence[Any]] = {"lr": recipe.learning_rates, **row.grids}
        if row.norm == "gn":
            space["groups"] = recipe.groups
        applies = asdict(settings(self.recipe, method))
        space.update({name: values for name, values in self.grids.items() if applies[name] is not None})
        return {name: values for name, values in space.items() if values and name not in self.overrides}


def run_name(run: Settings, names: Sequence[str]) -> str:
    """A folder's name: the method, and the values of some settings."""
    values = asdict(run)
    return f"{run.method}/" + ",".join(f"{n}={values[n]}" for n in names if values[n] is not None)


def sweep(
    recipe: str,
    methods: Sequence[str],
    folder: Path,
    run: Run,
    *,
    storage: str | None = None,
    seeds: int = 5,
    overrides: Mapping[str, Any] | None = None,
    grids: Mapping[str, Sequence[Any]] | None = None,
    data: str = "",
    heartbeat: int = 60,
    say: Callable[[str], None] = lambda text: None,
) -> list[Summary]:
    """Take part in a sweep until it is over; every worker returns the same summaries.

    Args:
        recipe: its name.
        methods: to compare.
        folder: gets a folder per run, and sweep.json.
        run: trains settings in a folder.
        storage: a journal file or a database's URL, see ``open_storage``; by default study.log in the folder.
        seeds: trainings of the best settings.
        overrides: settings of every run, as for ``settings``; the seeds count from its ``seed``.
        grids: values to search, by setting, instead of the recipe's.
        data: anything that tells apart sweeps on different data.
        heartbeat: seconds between signs of life; a worker is taken for dead after twice as long.
        say: told what the worker waits for.
    """
    overrides = dict(overrides or {})
    first = overrides.pop("seed", 0)
    plan = Plan(recipe, folder, tuple(range(first, first + seeds)), overrides, dict(grids or {}), data)
    _check(plan, methods, heartbeat)
    opened = open_storage(storage or str(folder / "study.log"), heartbeat)
    contests = [Contest(plan, method, opened, run) for method in methods]
    waiting = False
    while left := [contest for contest in contests if not contest.finished()]:
        if any(contest.advance() for contest in left):
            waiting = False
            continue
        if not waiting:
            say(f"waiting for other workers (a dead one is noticed within {3 * heartbeat} s)")
        waiting = True
        time.sleep(min(5.0, heartbeat / 4))
    summaries = [contest.summary() for contest in contests]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "sweep.json", {"recipe": recipe, "methods": [asdict(s) for s in summaries]})
    return summaries


def _check(plan: Plan, methods: Sequence[str], heartbeat: int) -> None:
    """Refuse a sweep that cannot run, before anything is written."""
    if "WORLD_SIZE" in os.environ:
        raise ArgumentError("sweep: not under torchrun; start the same command several times instead")
    if not plan.seeds or heartbeat < 1:
        raise ArgumentError("sweep: at least one seed and a heartbeat of one second are needed")
    known("recipe", plan.recipe, RECIPES)
    if not methods or len(set(methods)) < len(methods):
        raise ArgumentError(f"methods: name each once, of {', '.join(METHODS)}")
    for name, values in plan.grids.items():
        known("setting", name, RULES)
        for value in values:
            check({name: value})
    for method in methods:
        known("method", method, METHODS)
    spaces = {method: plan.space(method) for method in methods}
    of_no_method = {
        name: values for name, values in plan.grids.items() if name not in set().union(*spaces.values())
    }
    for method, space in spaces.items():
        first = {name: values[0] for name, values in {**space, **of_no_method}.items()}
        settings(plan.recipe, method, **{**plan.overrides, **first})  # says what does not apply


def table(recipe: str, summaries: Sequence[Summary]) -> str:
    """The summaries as text."""
    row = RECIPES[recipe]
    rows = [("method", f"{row.headline} {row.task.metric_name}", "seeds", "chosen")]
    for summary in summaries:
        value = "diverged" if summary.mean is None else f"{summary.mean:.4g}"
        value += f" ± {summary.error:.2g}" if summary.error is not None else ""
        count = f"{len(summary.finals)}" + (f" + {summary.diverged} diverged" if summary.diverged else "")
        chosen = ", ".join(
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in (summary.chosen or {}).items()
        )
        rows.append((summary.method, value, count, chosen or "-"))
    return "\n".join(columns(rows))
