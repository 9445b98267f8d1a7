"""What a trained figure or table consists of: a row of the table in ``protocols.py`` and its cells."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equinorm.experiments.recipes import RECIPES, Recipe, Settings, settings
from equinorm.experiments.reproduce.case import Case, Trained
from equinorm.experiments.reproduce.results import Figure
from equinorm.experiments.result import Result


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


class Drawing(typing.Protocol):
    """A figure of trained cases, as in ``curves.py``."""

    def draw(self, folder: Path, cases: Sequence[Trained]) -> Figure:
        """Draw into the folder."""


@dataclass(frozen=True)
class Protocol:
    """A figure or table that trains.

    Attributes:
        recipe: a name in ``RECIPES``.
        cases: the rows.
        quick: the short version.
        measure: what a run comes to, None if it diverged; ``quantity`` and ``digits`` say how it is shown.
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
