"""Curves in the style of ``equinorm.plot``: one colour and line per method, PNG and SVG.

Figures are one panel each, narrow enough that their letters stay readable on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equinorm import plot
from equinorm.checkpoint import check_output
from equinorm.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (5.6, 4.4)
LEGEND_LETTERS, LINE_LETTERS = 70, 8  # the letters that fit below a panel; those that a sample line takes
DASHED, DOTTED, DASHDOT, LONG = (0, (4, 1.6)), (0, (1, 1.3)), (0, (5, 1.4, 1, 1.4)), (0, (8, 2))

STYLES: dict[str, dict[str, Any]] = {
    "Baseline": {"color": plot.INK, "linestyle": DOTTED, "marker": "x"},
    "BN": {"color": "#E69F00", "linestyle": DASHED, "marker": "s"},
    "GN": {"color": plot.COLOURS[2], "linestyle": DASHDOT, "marker": "^"},
    "WN + BN": {"color": plot.COLOURS[3], "linestyle": LONG, "marker": "v"},
    "Path-SGD": {"color": "#56B4E9", "linestyle": DOTTED, "marker": "+"},
    "ENorm": {"color": plot.AFTER, "linestyle": "-", "marker": "o"},
    "ENorm + BN": {"color": plot.BEFORE, "linestyle": "-", "marker": "D"},
    "ENorm-Impl": {"color": plot.COLOURS[2], "linestyle": DASHED, "marker": "^"},
    "c = 1": {"color": plot.AFTER, "linestyle": "-", "marker": "o"},
    "c = 0.8": {"color": plot.COLOURS[2], "linestyle": DASHDOT, "marker": "^"},
    "c = 1.2": {"color": plot.BEFORE, "linestyle": DASHED, "marker": "D"},
    "adaptive": {"color": plot.COLOURS[3], "linestyle": LONG, "marker": "v"},
    "cycle (Algorithm 1)": {"color": plot.AFTER, "linestyle": "-", "marker": "o"},
    "parallel approximation": {"color": plot.BEFORE, "linestyle": DASHED, "marker": "D"},
    "multilevel (ours)": {"color": plot.COLOURS[2], "linestyle": DASHDOT, "marker": "^"},
}
"""Every line that our figures know, by label. Okabe & Ito's colours, told apart by their dashes too."""


@dataclass(frozen=True)
class Curve:
    """One line: its label in :data:`STYLES`, its points, and the standard errors of y where there are any."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None


@dataclass(frozen=True)
class Axis:
    """What an axis shows; ``scale`` is one of matplotlib's.

    Attributes:
        ticks: the values that are marked; where they are best if None.
        whole: mark whole numbers only.
    """

    label: str
    scale: str = "linear"
    ticks: Sequence[float] | None = None
    whole: bool = False


def lines(
    folder: Path, stem: str, title: str, curves: Sequence[Curve], x: Axis, y: Axis, markers: bool = False
) -> None:
    """Draw curves, with a band of one standard error where there is one."""
    figure, axes = blank(title)
    for curve in curves:
        if curve.label not in STYLES:
            raise ArgumentError(f"{stem}: no line style for {curve.label!r}; add one to STYLES")
        style = dict(STYLES[curve.label])
        if not markers and len(curve.x) > 1:
            del style["marker"]
        axes.plot(curve.x, curve.y, label=curve.label, linewidth=1.9, markersize=5, **style)
        if curve.error is not None:
            low = [value - error for value, error in zip(curve.y, curve.error, strict=True)]
            high = [value + error for value, error in zip(curve.y, curve.error, strict=True)]
            axes.fill_between(curve.x, low, high, color=style["color"], alpha=0.15, linewidth=0)
    _scale(axes, x, y)
    legend(figure, [curve.label for curve in curves])
    save(figure, folder, stem)


def legend(figure: Figure, labels: Sequence[str], title: str | None = None) -> None:
    """Below the panel, in as many columns as fit its width."""
    fit = int(LEGEND_LETTERS / (max(map(len, labels)) + LINE_LETTERS))
    rows = math.ceil(len(labels) / max(fit, 1))
    columns = math.ceil(len(labels) / rows)
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=10, title=title)


def _scale(axes: Axes, x: Axis, y: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(x.label, fontsize=11)
    axes.set_ylabel(y.label, fontsize=11)
    if x.scale == "symlog":
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter("{x:g}")
    if x.whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if x.ticks is not None:
        axes.set_xticks(x.ticks)
    if y.scale == "log":
        plot.log_axis(axes)


def blank(title: str) -> tuple[Figure, Axes]:
    """One panel under a title."""
    figure = plot.canvas(*SIZE)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=12)
    axes.tick_params(labelsize=10)
    return figure, axes


def save(figure: Figure, folder: Path, stem: str) -> None:
    """Write ``stem.png`` and ``stem.svg``."""
    for suffix in (".png", ".svg"):
        plot.save(figure, check_output(folder / f"{stem}{suffix}", force=True))
