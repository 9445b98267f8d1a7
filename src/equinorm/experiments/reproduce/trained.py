"""A trained figure or table: choose the learning rates, train the seeds, set ours beside the paper's."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from equinorm.experiments.folder import Busy
from equinorm.experiments.reproduce.case import Trained
from equinorm.experiments.reproduce.choose import Chosen, choose
from equinorm.experiments.reproduce.experiment import Findings, Request
from equinorm.experiments.reproduce.preset import NAMES, Plan, planned, shortened
from equinorm.experiments.reproduce.protocol import Protocol
from equinorm.experiments.reproduce.results import Table
from equinorm.experiments.reproduce.runs import Runs
from equinorm.experiments.reproduce.summary import DIVERGED, Summary, numbers
from equinorm.experiments.result import Result

WAIT = 5.0
"""Seconds between two looks at what other workers are training."""


def find(protocol: Protocol, request: Request) -> Findings:
    """Train every case, and draw and tabulate what came out."""
    plan, runs = planned(protocol, request.preset), Runs(request, protocol.row.dataset)
    outcomes = _every_case(protocol, plan, runs)
    found, chosen = [], []
    for case in plan.cases:
        best, results = outcomes[case.label]
        found.append(Trained(case, results, summarized(protocol, results)))
        chosen.append(_shown(best, plan.fixed(protocol, case)))
    published = all(result.published for result in runs.results)
    other_data = (
        () if published else ("other data than the paper's, whose numbers are therefore not beside ours",)
    )
    return Findings(
        headline(protocol, found, published),
        table(protocol, found, chosen, published),
        tuple(drawing.draw(request.folder, found) for drawing in protocol.drawings),
        runs.files,
        sum(result.seconds for result in runs.results),
        (*other_data, *shortened(protocol, plan)),
        (*_data(runs.results), protocol.quantity, *protocol.notes),
        published,
        tuple({**result.versions, "commit": result.commit or "none"} for result in runs.results),
    )


def _every_case(protocol: Protocol, plan: Plan, runs: Runs) -> dict[str, Chosen]:
    """What every case came to, by label; one that another worker is training waits until the others are done."""
    outcomes: dict[str, Chosen] = {}
    left, others = list(plan.cases), 0
    while left:
        case = left.pop(0)
        runs.request.say(f"{len(outcomes) + 1}/{len(plan.cases)} {case.label}")
        try:
            outcomes[case.label] = choose(protocol, case, plan.fixed(protocol, case), plan.seeds, runs)
            others = 0
        except Busy:
            left.append(case)
            others += 1
            if others >= len(left):
                runs.request.say("waiting for other workers")
                time.sleep(WAIT)
    return outcomes


def summarized(protocol: Protocol, results: Sequence[Result]) -> Summary:
    """What the seeds came to."""
    values = [protocol.measure(result) for result in results]
    return Summary(tuple(v for v in values if v is not None), sum(v is None for v in values))


def headline(protocol: Protocol, found: Sequence[Trained], published: bool = True) -> str:
    """Who came out best, here and, on the same data, in the paper."""
    sign, best = (1, "highest") if protocol.higher_is_better else (-1, "lowest")
    digits, parts = protocol.digits, []
    ranked = [(sign * one.summary.mean, one) for one in found if one.summary.mean is not None]
    if ranked:
        _, one = max(ranked, key=lambda entry: entry[0])
        parts.append(f"{best} here: {one.case.label}, {one.summary.text(digits)}")
    printed = [one.case for one in found if one.case.paper and published]
    if printed:
        case = max(printed, key=lambda case: sign * max(case.paper))
        parts.append(f"{best} in the paper: {case.label}, {numbers(case.paper, digits)}")
    lost = [one.case.label for one in found if one.summary.mean is None]
    if lost:
        parts.append(f"{DIVERGED}: {', '.join(lost)}")
    return "; ".join(parts)


def table(
    protocol: Protocol, found: Sequence[Trained], chosen: Sequence[str], published: bool = True
) -> Table:
    """Ours beside the paper's numbers, if it prints any and the data are the same."""
    digits = protocol.digits
    columns = {
        "Method": [one.case.label for one in found],
        "Paper": [numbers(one.case.paper, digits) for one in found],
        "Ours: mean ± s.e. (n)": [one.summary.text(digits) for one in found],
        "Difference": [one.summary.difference(one.case.paper, digits) for one in found],
        "Settings chosen": list(chosen),
    }
    if not published or not any(one.case.paper for one in found):
        del columns["Paper"], columns["Difference"]
    return Table(tuple(columns), tuple(zip(*columns.values(), strict=True)))


def _shown(chosen: Mapping[str, Any] | None, fixed: Mapping[str, Any]) -> str:
    """The settings that the paper searches: as chosen, or as the preset fixed them."""
    if chosen is None:
        return "every candidate diverged"
    searched = {name: fixed[name] for name in ("lr", "groups") if name in fixed} | dict(chosen)
    return (
        ", ".join(f"{NAMES.get(name, name)} {value:g}" for name, value in searched.items()) or "the paper's"
    )


def _data(results: Sequence[Result]) -> list[str]:
    notes = sorted({result.note for result in results})
    return [f"Data: {note}." for note in notes]
