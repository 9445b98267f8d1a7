"""A trained figure or table: choose the learning rates, train the seeds, set ours beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equinorm.errors import ArgumentError
from equinorm.experiments.reproduce.case import Case, Trained
from equinorm.experiments.reproduce.choose import choose
from equinorm.experiments.reproduce.experiment import Findings, Request
from equinorm.experiments.reproduce.preset import NAMES, planned, shortened
from equinorm.experiments.reproduce.protocol import Protocol
from equinorm.experiments.reproduce.results import Table
from equinorm.experiments.reproduce.runs import Runs
from equinorm.experiments.reproduce.summary import DIVERGED, Summary, numbers
from equinorm.experiments.result import Result


def find(protocol: Protocol, request: Request) -> Findings:
    """Train every case, and draw and tabulate what came out."""
    if protocol.row.dataset == "imagenet" and request.data_dir is None:
        raise ArgumentError(
            "--data-dir: give ImageNet as an image folder, with train/ and val/; nothing stands in for it"
        )
    plan, runs = planned(protocol, request.preset), Runs(request)
    rows, trained, summaries = [], [], []
    for number, case in enumerate(plan.cases, start=1):
        request.say(f"{number}/{len(plan.cases)} {case.label}")
        fixed = plan.fixed(protocol, case)
        chosen, results = choose(protocol, case, fixed, plan.seeds, runs)
        summary = summarized(protocol, results)
        summaries.append((case, summary))
        trained.append(Trained(case, results, summary))
        rows.append(_row(protocol, case, summary, _shown(chosen, fixed)))
    columns = ("Method", "Paper", "Ours: mean ± s.e. (n)", "Difference", "Settings chosen")
    return Findings(
        headline(protocol, summaries),
        Table(columns, tuple(rows)),
        tuple(drawing.draw(request.folder, trained) for drawing in protocol.drawings),
        runs.files,
        sum(result.seconds for result in runs.results),
        shortened(protocol, plan),
        (protocol.quantity, *_data(runs.results), *protocol.notes),
    )


def summarized(protocol: Protocol, results: Sequence[Result]) -> Summary:
    """What the seeds came to."""
    values = [protocol.measure(result) for result in results]
    return Summary(tuple(v for v in values if v is not None), sum(v is None for v in values))


def headline(protocol: Protocol, summaries: Sequence[tuple[Case, Summary]]) -> str:
    """Who came out best, here and in the paper."""
    sign, best = (1, "highest") if protocol.higher_is_better else (-1, "lowest")
    means = [(sign * summary.mean, case, summary) for case, summary in summaries if summary.mean is not None]
    lost = [case.label for case, summary in summaries if summary.mean is None]
    parts = []
    if means:
        _, case, summary = max(means, key=lambda entry: entry[0])
        parts.append(f"{best} here: {case.label}, {summary.text(protocol.digits)}")
    printed = [(sign * max(case.paper), case) for case, _ in summaries if case.paper]
    if printed:
        _, case = max(printed, key=lambda entry: entry[0])
        parts.append(f"{best} in the paper: {case.label}, {numbers(case.paper, protocol.digits)}")
    if lost:
        parts.append(f"{DIVERGED}: {', '.join(lost)}")
    return "; ".join(parts)


def _row(protocol: Protocol, case: Case, summary: Summary, chosen: str) -> tuple[str, ...]:
    digits = protocol.digits
    return (
        case.label,
        numbers(case.paper, digits),
        summary.text(digits),
        summary.difference(case.paper, digits),
        chosen,
    )


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
