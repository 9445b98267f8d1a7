"""A row of a trained table, before and after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from equinorm.experiments.reproduce.summary import Summary
from equinorm.experiments.result import Result


@dataclass(frozen=True)
class Case:
    """One row of a table: a method with its settings, and what the paper printed for it.

    Attributes:
        label: the row.
        line: the line in figures, one of ``pictures.STYLES``.
        method: a name in ``METHODS``.
        overrides: settings that differ from the recipe's.
        paper: the paper's number; several where it disagrees with itself, none where it prints none.
        panel: figures may draw only the cases of one panel.
    """

    label: str
    line: str
    method: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    paper: tuple[float, ...] = ()
    panel: str = ""


@dataclass(frozen=True)
class Trained:
    """A case with its runs, one per seed, and what they came to."""

    case: Case
    results: Sequence[Result]
    summary: Summary
