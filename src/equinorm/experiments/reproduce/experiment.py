"""What every figure and table has in common: a name, a claim, and a way to find out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from equinorm.experiments.reproduce.results import Figure, Table

Preset = Literal["paper", "quick"]


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    preset: Preset
    results: Path  # the folder of all results
    folder: Path  # of this experiment, in it
    data_dir: Path | None = None
    download: bool = False
    quiet: bool = False  # no progress of single runs
    say: Callable[[str], None] = lambda line: None  # progress, line by line


@dataclass(frozen=True)
class Findings:
    """What an experiment found; the figures are drawn and the runs written when it returns."""

    found: str  # in one line
    table: Table
    figures: tuple[Figure, ...]
    runs: tuple[str, ...]
    seconds: float
    shortened: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    published: bool = True  # whether the data, if there are any, are the published ones
    made_with: tuple[Mapping[str, str], ...] = ()  # versions and commit of every run


@dataclass(frozen=True)
class Experiment:
    """One of the paper's figures or tables."""

    name: str
    title: str
    source: str
    claim: str
    find: Callable[[Request], Findings]
    needs: str = "nothing"  # the data set: nothing, mnist, cifar10 or imagenet
