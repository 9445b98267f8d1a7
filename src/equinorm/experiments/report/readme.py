"""The README's table of results, between two markers, written from results/."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from equinorm.errors import ArgumentError
from equinorm.experiments.reproduce.results import TABLE, Outcome, Table, write_text

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


def update(path: Path, outcomes: Sequence[Outcome], results: Path) -> None:
    """Replace what stands between the markers; everything else stays as it is."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be read ({error.strerror})") from error
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ArgumentError(f"{path}: needs the lines {BEGIN} and {END} once each, in this order")
    link = Path(os.path.relpath(results, path.parent)).as_posix()
    write_text(path, f"{before}{BEGIN}\n{section(outcomes, link)}{END}{after}")


def section(outcomes: Sequence[Outcome], link: str) -> str:
    """What stands between the markers: a table, and what to keep in mind."""
    rows = [
        (f"[{o.name}]({link}/{o.name}/{TABLE})", o.claim, o.found, o.extent, f"{o.seconds / 60:.1f} min")
        for o in outcomes
    ]
    table = Table(("Figure or table", "The paper says", "We found", "Extent", "Took"), tuple(rows))
    notes = []
    if any(outcome.shortened for outcome in outcomes):
        notes.append(
            "**`quick` runs are shortened** (fewer epochs, images, seeds: each linked table says what exactly); they "
            "show that everything runs, and tendencies, not the paper's numbers."
        )
    machines = sorted({outcome.environment["machine"] for outcome in outcomes})
    notes.append(f"Machine: {'; '.join(machines)}. Written by `equinorm report {link} --readme README.md`.")
    return table.markdown() + "\n" + "\n".join(notes) + "\n"
