"""What an experiment leaves behind: ``results/NAME/`` with JSON, Markdown and pictures.

results/NAME/result.json     everything below, for the report
results/NAME/table.md        the table alone
results/NAME/FIGURE.png|svg
results/NAME/runs/KEY.json   every run: settings, seed, versions, git commit, curves
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from equinorm.checkpoint import write_atomically
from equinorm.errors import ArgumentError, EquinormError
from equinorm.experiments.result import read_json, write_json

RESULT, TABLE, RUNS = "result.json", "table.md", "runs"


@dataclass(frozen=True)
class Table:
    """Rows of text under named columns; the first column names the row."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ArgumentError(f"table row {row} has {len(row)} cells for {len(self.columns)} columns")

    def markdown(self) -> str:
        """The table in Markdown, numbers to the right."""
        align = [":--", *["--:"] * (len(self.columns) - 1)]
        lines = [self.columns, align, *self.rows]
        return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


@dataclass(frozen=True)
class Figure:
    """A picture, stored as ``stem.png`` and ``stem.svg``, and what it shows."""

    stem: str
    caption: str


@dataclass(frozen=True)
class Outcome:
    """One of the paper's figures or tables as we found it."""

    name: str
    title: str
    source: str  # where in the paper
    claim: str  # what the paper says
    found: str  # what we saw, in one line
    preset: str
    command: str
    shortened: tuple[str, ...]  # what the preset does less of than the paper
    notes: tuple[str, ...]  # what to know when reading the numbers
    table: Table
    figures: tuple[Figure, ...]
    runs: tuple[str, ...]  # files in runs/
    seconds: float  # all its runs together, those of earlier calls included
    environment: Mapping[str, str]
    published: bool  # whether the data are those that the paper used

    @property
    def extent(self) -> str:
        """``stand-in`` if the data are not the paper's, ``quick`` if something was shortened, else ``complete``."""
        return "stand-in" if not self.published else "quick" if self.shortened else "complete"

    def __post_init__(self) -> None:
        if not math.isfinite(self.seconds):
            raise ArgumentError(f"{self.name}: seconds={self.seconds} is not a time")


def write(outcome: Outcome, folder: Path) -> None:
    """Write ``table.md`` and, last, ``result.json`` into the experiment's folder."""
    shortened = [f"Preset `{outcome.preset}`: {line}" for line in outcome.shortened]
    lines = [f"# {outcome.title}", f"`{outcome.command}`", outcome.table.markdown()]
    text = "\n\n".join([*lines, "\n".join(f"* {line}" for line in [*shortened, *outcome.notes])])
    write_text(folder / TABLE, text.rstrip() + "\n")
    write_json(folder / RESULT, asdict(outcome))


def read(folder: Path) -> Outcome:
    """The outcome that :func:`write` left in a folder."""
    path = folder / RESULT
    content = read_json(path)
    try:
        table = content.pop("table")
        figures = tuple(Figure(**figure) for figure in content.pop("figures"))
        for name in ("shortened", "notes", "runs"):
            content[name] = tuple(content[name])
        rows = tuple(tuple(row) for row in table["rows"])
        return Outcome(table=Table(tuple(table["columns"]), rows), figures=figures, **content)
    except (AttributeError, KeyError, TypeError) as error:
        raise ArgumentError(f"{path}: not a result of equinorm reproduce ({error}); run it again") from error


def read_all(results: Path, order: Sequence[str]) -> list[Outcome]:
    """Every outcome under ``results``, in the given order."""
    found = [read(results / name) for name in order if (results / name / RESULT).is_file()]
    if not found:
        raise ArgumentError(f"{results}: holds no results; equinorm reproduce writes them")
    return found


def prepare(folder: Path, preset: str) -> None:
    """Make the folder of an experiment, before the work whose results go there; a paper's result stays."""
    if preset == "quick" and (folder / RESULT).is_file() and read(folder).preset == "paper":
        raise ArgumentError(
            f"{folder}: holds a result of --preset paper; give another --output to look quickly"
        )
    try:
        (folder / RUNS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EquinormError(f"{folder}: cannot be made a folder ({error.strerror})") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    try:
        write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise EquinormError(f"{path}: cannot be written ({error.strerror})") from error
