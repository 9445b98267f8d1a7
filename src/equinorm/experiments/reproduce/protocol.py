"""What a trained figure or table consists of: a row of the table in ``protocols.py`` and its cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from equinorm.experiments.recipes import RECIPES, Recipe, Settings, settings
from equinorm.experiments.reproduce.curves import Drawing
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
class Quick:
    """What the preset ``quick`` does instead of the paper's protocol.

    Attributes:
        overrides: settings of all cases.
        rates: the learning rate by method, instead of cross-validation.
        rates_from: where these come from.
        seeds: how many.
        cases: those that run; all if None.
    """

    overrides: Mapping[str, Any]
    rates: Mapping[str, float]
    rates_from: str
    seeds: int = 1
    cases: tuple[Case, ...] | None = None


def final(result: Result) -> float | None:
    """The recipe's headline metric."""
    return result.final


def last_norm(result: Result) -> float | None:
    """The norm of the weights after the last epoch."""
    return result.history[-1]["norm"] if result.status == "finished" else None


@dataclass(frozen=True)
class Protocol:
    """A figure or table that trains.

    Attributes:
        recipe: a name in ``RECIPES``.
        cases: the rows.
        quick: the short version.
        measure: what a run comes to, None if it diverged; ``quantity`` and ``digits`` say how it is shown.
        grid: settings that are cross-validated beside the learning rate, and groups, by method.
        seeds: of the paper's protocol.
        drawings: the figures.
        notes: for the reader.
    """

    recipe: str
    cases: tuple[Case, ...]
    quick: Quick
    quantity: str
    digits: int
    measure: Callable[[Result], float | None] = final
    grid: Mapping[str, Mapping[str, tuple[Any, ...]]] = field(default_factory=dict)
    seeds: int = 5
    drawings: tuple[Drawing, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def row(self) -> Recipe:
        """The recipe itself."""
        return RECIPES[self.recipe]

    @property
    def higher_is_better(self) -> bool:
        """Of the quantity; a lower norm is better."""
        return self.measure is final and self.row.task.higher_is_better

    def settings(self, case: Case, **overrides: Any) -> Settings:
        """The settings of a case."""
        return settings(self.recipe, case.method, **{**case.overrides, **overrides})
