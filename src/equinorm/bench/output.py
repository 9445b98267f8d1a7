"""What a benchmark hands over, and how it is printed and saved: JSON for machines, Markdown and pictures for people."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from equinorm.bench.machine import Machine
from equinorm.bench.timing import Estimate
from equinorm.checkpoint import write_atomically
from equinorm.errors import EquinormError

PICTURES = (".png", ".svg")


@dataclass(frozen=True)
class Table:
    """Text in rows; the first column is left-aligned."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Headline:
    """One number worth a line in the README, with its target if it has one."""

    what: str
    measured: str
    target: str = ""
    met: bool | None = None


@dataclass(frozen=True)
class Findings:
    """What one benchmark measured."""

    claim: str  # metric, n, and what it is compared with
    rows: Sequence[Mapping[str, Any]]  # everything, for JSON
    tables: Sequence[Table]
    headlines: Sequence[Headline]
    notes: Sequence[str] = ()
    draw: Callable[[Path], None] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # further entries of the JSON


def show(name: str, findings: Findings, console: Console) -> None:
    """Print the tables, then what was missed or left out."""
    for table in [*findings.tables, _headlines(findings)]:
        shown = RichTable(title=escape(f"{name}: {table.title}"), title_justify="left")
        for index, column in enumerate(table.header):
            shown.add_column(escape(column), justify="right" if index else "left")
        for row in table.rows:
            shown.add_row(*map(escape, row))
        console.print(shown)
    for note in findings.notes:
        console.print(f"note: {note}", markup=False)


def save(
    name: str, findings: Findings, machine: Machine, settings: Any, folder: Path, full: bool = True
) -> list[Path]:
    """Write NAME.json, NAME.md and the pictures; every file is whole or as it was."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EquinormError(f"{folder}: cannot be made a folder ({error.strerror})") from error
    content = {
        "benchmark": name,
        "claim": " ".join(findings.claim.split()),
        "machine": asdict(machine),
        "settings": plain(settings),
        "full": full,
        "headlines": plain(findings.headlines),
        "notes": list(findings.notes),
        **plain(findings.extra),
        "rows": plain(findings.rows),
    }
    pictures = [folder / f"{name}{suffix}" for suffix in PICTURES] if findings.draw else []
    page = markdown(name, findings, machine, pictures[0].name if pictures else None)
    written = [folder / f"{name}.json", folder / f"{name}.md", *pictures]
    for path, text in zip(written, (json.dumps(content, indent=1) + "\n", page), strict=False):
        write_atomically(path, lambda temporary, text=text: temporary.write_text(text, encoding="utf-8"))  # type: ignore[misc]
    for path in pictures:
        assert findings.draw is not None
        findings.draw(path)
    return written


def markdown(name: str, findings: Findings, machine: Machine, picture: str | None) -> str:
    """The same as a page."""
    parts = [
        f"# {name}",
        f"Written by `equinorm bench {name}`; do not edit.",
        " ".join(findings.claim.split()),
        machine.line(),
    ]
    parts += [
        f"## {table.title}\n\n{as_markdown(table)}" for table in [_headlines(findings), *findings.tables]
    ]
    parts += [f"Note: {note}" for note in findings.notes]
    parts += [f"![{name}]({picture})"] if picture else []
    return "\n\n".join(parts) + "\n"


def _headlines(findings: Findings) -> Table:
    rows = [(line.what, line.measured, line.target, verdict(line.met)) for line in findings.headlines]
    return Table("in short", ("what", "measured", "target", ""), rows)


def verdict(met: bool | None) -> str:
    """Whether a target is met, in a word."""
    return {True: "met", False: "missed", None: ""}[met]


def as_markdown(table: Table) -> str:
    """The rows as Markdown shows them."""
    aligned = ["---", *["--:"] * (len(table.header) - 1)]
    cells = [table.header, tuple(aligned), *table.rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells)


def plain(value: Any) -> Any:
    """As JSON can say it: dataclasses as objects, what is not finite as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {key: plain(getattr(value, key)) for key in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def seconds(value: Estimate | float) -> str:
    """A time for people: three digits in s, ms or µs."""
    number = value.median if isinstance(value, Estimate) else value
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if abs(number) * factor >= 1:
            return f"{number * factor:.3g} {unit}"
    return f"{number * 1e6:.3g} µs"


def spread(value: Estimate, form: Callable[[float], str]) -> str:
    """A median and its interval."""
    return f"{form(value.median)} ({form(value.low)} … {form(value.high)})"


def times(number: float) -> str:
    """A ratio: three digits and ×."""
    return f"{number:.3g}×" if abs(number) < 1000 else f"{number:,.0f}×"


def size(number: float) -> str:
    """Bytes for people."""
    return f"{number / 2**30:.2f} GB" if abs(number) >= 2**30 else f"{number / 2**20:.1f} MB"
