"""Cross-validation: "we select the learning rate in {…}", and the groups of GN, on held-out examples.

The grid is searched run by run with one seed; ``equinorm sweep`` shares one grid among many workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from equinorm.experiments.recipes import Settings
from equinorm.experiments.reproduce.protocol import Case, Protocol
from equinorm.experiments.result import Result

Run = Callable[[Settings], Result]


def grid(protocol: Protocol, case: Case, rate: float | None) -> Iterator[dict[str, Any]]:
    """Every combination that the paper tries for a case; a given learning rate replaces its grid, and GN's groups."""
    axes: dict[str, tuple[Any, ...]] = dict(protocol.grid.get(case.method, {}))
    if rate is not None:
        axes["lr"] = (rate,)
    elif protocol.row.learning_rates:
        axes["lr"] = protocol.row.learning_rates
    if rate is None and case.method == "gn" and protocol.row.groups:
        axes["groups"] = protocol.row.groups
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def choose(
    protocol: Protocol, case: Case, rate: float | None, overrides: dict[str, Any], run: Run
) -> dict[str, Any]:
    """The combination that is best on held-out examples; the first if all diverge."""
    candidates = list(grid(protocol, case, rate))
    if len(candidates) == 1:
        return candidates[0]
    held_out = {"validation": protocol.row.held_out}
    sign = 1 if protocol.row.task.higher_is_better else -1
    scores = []
    for candidate in candidates:
        result = run(protocol.settings(case, **{**held_out, **overrides, **candidate}))
        scores.append(float("-inf") if result.validation is None else sign * result.validation)
    return candidates[scores.index(max(scores))]
