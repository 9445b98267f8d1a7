"""A trained figure or table: choose the learning rates, train the seeds, set ours beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equinorm.errors import ArgumentError
from equinorm.experiments.reproduce.choose import choose
from equinorm.experiments.reproduce.curves import Trained
from equinorm.experiments.reproduce.experiment import Findings, Request
from equinorm.experiments.reproduce.protocol import Case, Protocol
from equinorm.experiments.reproduce.results import Table
from equinorm.experiments.reproduce.runs import Runs
from equinorm.experiments.reproduce.summary import DIVERGED, Summary, numbers
from equinorm.experiments.result import Result


@dataclass(frozen=True)
class Plan:
    """What a preset makes of a protocol."""

    cases: tuple[Case, ...]
    overrides: dict[str, Any]
    rates: Mapping[str, float]
    seeds: int


def planned(protocol: Protocol, preset: str) -> Plan:
    """The paper's protocol, or the quick one."""
    if preset == "paper":
        return Plan(protocol.cases, {}, {}, protocol.seeds)
    quick = protocol.quick
    return Plan(quick.cases or protocol.cases, dict(quick.overrides), quick.rates, quick.seeds)


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
        rate = plan.rates.get(case.method)
        chosen = choose(protocol, case, rate, plan.overrides, runs.run)
        settings = {**plan.overrides, **chosen}
        results = [runs.run(protocol.settings(case, **settings, seed=seed)) for seed in range(plan.seeds)]
        summary = summarized(protocol, results)
        summaries.append((case, summary))
        trained.append(Trained(case.line, case.panel, results, summary))
        rows.append(_row(protocol, case, summary, _shown(chosen)))
    columns = ("Method", "Paper", "Ours: mean ± s.e. (n)", "Difference", "Settings chosen")
    return Findings(
        headline(protocol, summaries),
        Table(columns, tuple(rows)),
        tuple(drawing.draw(request.folder, trained) for drawing in protocol.drawings),
        runs.files,
        sum(result.seconds for result in runs.results),
        shortened(protocol, request.preset),
        (protocol.quantity, *_data(runs.results), *protocol.notes),
    )


def summarized(protocol: Protocol, results: Sequence[Result]) -> Summary:
    """What the seeds came to."""
    values = [protocol.measure(result) for result in results]
    return Summary(tuple(v for v in values if v is not None), sum(v is None for v in values))


def headline(protocol: Protocol, summaries: Sequence[tuple[Case, Summary]]) -> str:
    """Who came out best, here and in the paper."""
    sign = 1 if protocol.higher_is_better else -1
    means = [(sign * summary.mean, case, summary) for case, summary in summaries if summary.mean is not None]
    lost = [case.label for case, summary in summaries if summary.mean is None]
    parts = []
    if means:
        _, case, summary = max(means, key=lambda entry: entry[0])
        parts.append(f"best here: {case.label}, {summary.text(protocol.digits)}")
    printed = [(sign * max(case.paper), case) for case, _ in summaries if case.paper]
    if printed:
        _, case = max(printed, key=lambda entry: entry[0])
        parts.append(f"best in the paper: {case.label}, {numbers(case.paper, protocol.digits)}")
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


def _shown(chosen: Mapping[str, Any]) -> str:
    names = {"weight_decay": "weight decay"}
    parts = [f"{names.get(name, name)} {value:g}" for name, value in chosen.items()]
    return ", ".join(parts) or "as in the paper"


def _data(results: Sequence[Result]) -> list[str]:
    notes = sorted({result.note for result in results})
    return [f"Data: {note}." for note in notes]


def shortened(protocol: Protocol, preset: str) -> tuple[str, ...]:
    """What the preset does less of, in words that are computed from what it does."""
    if preset == "paper":
        return ()
    quick, usual = protocol.quick, protocol.settings(protocol.cases[0])
    lines = [
        f"{_NAMES.get(name, name)}: {value:g} instead of {_usual(getattr(usual, name))}"
        for name, value in quick.overrides.items()
    ]
    if quick.cases is not None:
        lines.append(f"{len(quick.cases)} rows instead of {len(protocol.cases)}")
    if quick.seeds != protocol.seeds:
        lines.append(f"seeds: {quick.seeds} instead of {protocol.seeds}")
    if quick.rates:
        lines.append(
            f"learning rates are fixed, not cross-validated: {quick.rates_from}; GN's groups are the recipe's default"
        )
    return tuple(lines)


_NAMES = {
    "limit": "training images",
    "validation": "images held out",
    "batch_size": "batch size",
    "crop": "crop",
}


def _usual(value: object) -> str:
    return "all" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)
