"""A trained figure or table: choose the learning rates, train the seeds, set ours beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equinorm.errors import ArgumentError
from equinorm.experiments.reproduce.case import Trained
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
    found, chosen = [], []
    for number, case in enumerate(plan.cases, start=1):
        request.say(f"{number}/{len(plan.cases)} {case.label}")
        fixed = plan.fixed(protocol, case)
        best, results = choose(protocol, case, fixed, plan.seeds, runs)
        found.append(Trained(case, results, summarized(protocol, results)))
        chosen.append(_shown(best, fixed))
    return Findings(
        headline(protocol, found),
        table(protocol, found, chosen),
        tuple(drawing.draw(request.folder, found) for drawing in protocol.drawings),
        runs.files,
        sum(result.seconds for result in runs.results),
        shortened(protocol, plan),
        (protocol.quantity, *_data(runs.results), *protocol.notes),
    )


def summarized(protocol: Protocol, results: Sequence[Result]) -> Summary:
    """What the seeds came to."""
    values = [protocol.measure(result) for result in results]
    return Summary(tuple(v for v in values if v is not None), sum(v is None for v in values))


def headline(protocol: Protocol, found: Sequence[Trained]) -> str:
    """Who came out best, here and in the paper."""
    sign, best = (1, "highest") if protocol.higher_is_better else (-1, "lowest")
    digits, parts = protocol.digits, []
    ranked = [(sign * one.summary.mean, one) for one in found if one.summary.mean is not None]
    if ranked:
        _, one = max(ranked, key=lambda entry: entry[0])
        parts.append(f"{best} here: {one.case.label}, {one.summary.text(digits)}")
    printed = [one.case for one in found if one.case.paper]
    if printed:
        case = max(printed, key=lambda case: sign * max(case.paper))
        parts.append(f"{best} in the paper: {case.label}, {numbers(case.paper, digits)}")
    lost = [one.case.label for one in found if one.summary.mean is None]
    if lost:
        parts.append(f"{DIVERGED}: {', '.join(lost)}")
    return "; ".join(parts)


def table(protocol: Protocol, found: Sequence[Trained], chosen: Sequence[str]) -> Table:
    """Ours beside the paper's numbers, if it prints any."""
    digits = protocol.digits
    columns = {
        "Method": [one.case.label for one in found],
        "Paper": [numbers(one.case.paper, digits) for one in found],
        "Ours: mean ± s.e. (n)": [one.summary.text(digits) for one in found],
        "Difference": [one.summary.difference(one.case.paper, digits) for one in found],
        "Settings chosen": list(chosen),
    }
    if not any(one.case.paper for one in found):
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
