"""Cross-validation, then the seeds, as one ``sweep`` per case: "we select the learning rate in {…}".

Several workers that are started with the same command share the work, as in ``equinorm sweep``; a seed that another
worker is training is ``Busy``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equinorm.experiments.reproduce.case import Case
from equinorm.experiments.reproduce.protocol import Protocol
from equinorm.experiments.reproduce.runs import Runs
from equinorm.experiments.result import Result
from equinorm.experiments.sweep import Plan, sweep

Chosen = tuple[dict[str, Any] | None, list[Result]]


def choose(protocol: Protocol, case: Case, fixed: Mapping[str, Any], seeds: int, runs: Runs) -> Chosen:
    """The settings that are best on held-out examples, and the runs of all seeds with them.

    ``fixed`` settings are not searched. Where every candidate diverges there are neither settings nor runs.
    """
    overrides = {**case.overrides, **fixed}
    space = Plan(protocol.recipe, runs.work, (), overrides, {}, runs.data).space(case.method)
    chosen: dict[str, Any] | None = {}
    if any(len(values) > 1 for values in space.values()):
        [found] = sweep(
            protocol.recipe,
            [case.method],
            runs.work / "sweeps" / runs.request.folder.name / case.label,
            lambda settings, folder: runs.run(settings),
            storage=str(runs.work / "study.log"),
            seeds=seeds,
            overrides=overrides,
            data=runs.data,
            say=runs.request.say,
        )
        chosen = found.chosen
        for point, _ in found.search:  # also those of other workers and of earlier calls
            runs.run(protocol.settings(case, **{"validation": protocol.row.held_out, **fixed, **point}))
    if chosen is None:
        return None, []
    settings = {**fixed, **chosen}
    return chosen, [runs.run(protocol.settings(case, **settings, seed=seed)) for seed in range(seeds)]
