"""The kinds of figures that training gives: a metric against epochs, a result against depth."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equinorm.experiments.reproduce import pictures
from equinorm.experiments.reproduce.case import Trained
from equinorm.experiments.reproduce.results import Figure
from equinorm.experiments.reproduce.summary import Summary

FEW = 12
"""Up to so many points are marked."""


@dataclass(frozen=True)
class AgainstEpochs:
    """A column of the history against epochs, mean and standard error over seeds; one line per case.

    Attributes:
        stem, title, caption: of the picture.
        column: of ``Result.history``.
        label: of the axis.
        panel: draw the cases of this panel only; all if None.
        scale: of the axis.
    """

    stem: str
    title: str
    caption: str
    column: str
    label: str
    panel: str | None = None
    scale: str = "linear"

    def draw(self, folder: Path, cases: Sequence[Trained]) -> Figure:
        """One line per case of the panel; runs that diverged have none."""
        chosen = [one for one in cases if self.panel in (None, one.case.panel)]
        curves = [curve for curve in map(self._curve, chosen) if curve is not None]
        pictures.lines(
            folder,
            self.stem,
            self.title,
            curves,
            pictures.Axis("epoch", whole=True),
            pictures.Axis(self.label, self.scale),
            markers=all(len(curve.x) <= FEW for curve in curves),
        )
        return Figure(self.stem, self.caption + _missing([one.case.line for one in chosen], curves))

    def _curve(self, one: Trained) -> pictures.Curve | None:
        histories = [result.history for result in one.results if result.status == "finished"]
        if not histories:
            return None
        epochs = [row["epoch"] for row in histories[0]]
        points = [Summary(tuple(h[k][self.column] for h in histories)) for k in range(len(epochs))]
        errors = [point.error for point in points]
        return pictures.Curve(
            one.case.line,
            epochs,
            [statistics.fmean(point.values) for point in points],
            None if None in errors else [error for error in errors if error is not None],
        )


@dataclass(frozen=True)
class AgainstDepth:
    """The result against the paper's p, the number of intermediate layers; one line per method."""

    stem: str
    title: str
    caption: str
    label: str

    def draw(self, folder: Path, cases: Sequence[Trained]) -> Figure:
        """One line per method through the depths at which it did not diverge."""
        names = list(dict.fromkeys(one.case.line for one in cases))
        curves = [curve for curve in (self._curve(name, cases) for name in names) if curve is not None]
        pictures.lines(
            folder,
            self.stem,
            self.title,
            curves,
            pictures.Axis("p, layers of 500×500", ticks=sorted({x for curve in curves for x in curve.x})),
            pictures.Axis(self.label),
            markers=True,
        )
        return Figure(self.stem, self.caption + _missing(names, curves))

    def _curve(self, name: str, cases: Sequence[Trained]) -> pictures.Curve | None:
        points = []
        for one in cases:
            mean, depth = one.summary.mean, one.case.overrides.get("depth")
            if one.case.line == name and mean is not None and depth is not None:
                points.append((depth, mean, one.summary.error or 0.0))
        if not points:
            return None
        x, y, errors = zip(*sorted(points), strict=True)
        return pictures.Curve(name, x, y, errors if any(errors) else None)


def _missing(names: Sequence[str], curves: Sequence[pictures.Curve]) -> str:
    lost = [name for name in names if name not in {curve.label for curve in curves}]
    return f" Diverged, not drawn: {', '.join(lost)}." if lost else ""
