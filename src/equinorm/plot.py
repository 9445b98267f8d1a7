"""The paper's pictures: the energy of every layer (appendix "Illustration of the effect"), norm per cycle.

Needs the extra ``[plot]``; matplotlib is imported when a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from equinorm.checkpoint import write_atomically
from equinorm.errors import ArgumentError, EquinormError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
# Okabe & Ito's palette: told apart under every common colour blindness, and by lightness in grey.
BEFORE, AFTER, INK, GRID = "#D55E00", "#0072B2", "#222222", "#DDDDDD"
COLOURS, LINES = ("#D55E00", "#0072B2", "#009E73", "#CC79A7"), ("-", "--", ":", "-.")
Points = Sequence[tuple[int, float]]
NAMED_LAYERS = 40
"""Up to so many layers the axis names them; beyond, names would overlap and it numbers them."""
ROUNDING = 1e-15
"""Norms that differ by less are equal in float64."""
DOTS = 600
"""Dots per layer at most: of wider layers, evenly spaced quantiles, the extremes included."""


def channel_norms(model: nn.Module, p: float = 2.0) -> dict[str, Tensor]:
    """The p-norm of every output channel (the paper's columns) of every weight of two or more dimensions."""
    norms = {}
    for prefix, module in model.named_modules():
        transposed = isinstance(module, nn.modules.conv._ConvTransposeNd | nn.Embedding)
        for name, weight in module.named_parameters(prefix, recurse=False):
            if weight.ndim > 1:
                columns = weight.detach().movedim(1, 0) if transposed else weight.detach()
                flat = columns.flatten(1).double()
                norms[name] = torch.linalg.vector_norm(flat, ord=p, dim=1).cpu()
    return norms


def check_path(path: Path) -> None:
    """Refuse what could not be drawn, before the work that leads to it."""
    if path.suffix.lower() not in SUFFIXES:
        raise ArgumentError(f"{path}: unknown kind of picture; use {', '.join(SUFFIXES)}")
    canvas(1, 1)


def energy(
    path: str | Path, before: Mapping[str, Tensor], after: Mapping[str, Tensor], title: str = ""
) -> None:
    """One dot per channel of every layer's weight, before and after: the appendix's two figures in one."""
    path = Path(path)
    check_path(path)
    if not before:
        raise ArgumentError(f"{path}: the model has no weight of two or more dimensions to draw")
    names = list(before)
    figure = canvas(min(7 + 0.16 * len(names), 20), 6.6 if len(names) <= NAMED_LAYERS else 5.8)
    top = figure.add_subplot(2, 1, 1)
    bottom = figure.add_subplot(2, 1, 2, sharex=top, sharey=top)
    for axes, norms, colour, label in ((top, before, BEFORE, "before"), (bottom, after, AFTER, "after")):
        dots(axes, [norms[name] for name in names], colour)
        axes.set_title(label, loc="left", color=colour, fontweight="bold", fontsize=11)
        axes.set_ylabel("channel norm")
    log_axis(top)
    top.tick_params(axis="x", labelbottom=False)
    _layer_axis(bottom, names)
    dead = sum(int((before[name] == 0).sum()) for name in names)
    note = f"not shown: channels of norm zero ({dead})" if dead else ""
    figure.suptitle(title or "Energy of every layer, one dot per channel", x=0.01, ha="left", fontsize=13)
    figure.text(0.99, 0.985, note, ha="right", va="top", fontsize=9, color=INK)
    save(figure, path)


def dots(axes: Axes, layers: Sequence[Tensor], colour: str) -> None:
    """Jittered dots, and a bar at the median; deterministic, so that equal data give equal pictures."""
    import numpy as np

    jitter = np.random.default_rng(0)
    size = 5.0 if len(layers) <= NAMED_LAYERS else 2.5
    for index, norms in enumerate(layers, start=1):
        shown = norms[norms > 0]
        if not shown.numel():
            continue
        if shown.numel() > DOTS:
            shown = shown.sort().values[torch.linspace(0, shown.numel() - 1, DOTS).round().long()]
        x = index + jitter.uniform(-0.3, 0.3, shown.numel())
        axes.scatter(x, shown.numpy(), s=size, color=colour, alpha=0.35, linewidths=0, rasterized=True)
        axes.hlines(float(shown.median()), index - 0.36, index + 0.36, color=INK, linewidth=1.3)


def log_axis(axes: Axes) -> None:
    """A log axis with readable numbers, also where it spans less than a power of ten."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 100 * low:
        axes.yaxis.set_major_locator(MaxNLocator(6) if high < 5 * low else LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _layer_axis(axes: Axes, names: Sequence[str]) -> None:
    axes.set_xlim(0.3, len(names) + 0.7)
    if len(names) <= NAMED_LAYERS:
        labels = [name.removesuffix(".weight") for name in names]
        axes.set_xticks(range(1, len(names) + 1), labels)
        if sum(map(len, labels)) > 90:
            for tick in axes.get_xticklabels():
                tick.set(rotation=60, ha="right", rotation_mode="anchor", fontsize=8)
    else:
        axes.set_xlabel("layer")


def cycles(path: str | Path, curves: Mapping[str, Mapping[str, Points]], title: str = "") -> None:
    """The norm against cycles (the paper's sanity check), and how far above its minimum it still is.

    ``curves`` maps a network to a solver to points (cycle, norm), the first at cycle 0.
    """
    path = Path(path)
    check_path(path)
    figure = canvas(10, 4.6)
    left, right = figure.subplots(1, 2)
    for (network, solvers), line in zip(curves.items(), LINES, strict=False):
        least = min(norm for points in solvers.values() for _, norm in points)
        for (solver, points), colour in zip(solvers.items(), COLOURS, strict=False):
            style = {"color": colour, "linestyle": line, "linewidth": 2.0, "label": f"{network}, {solver}"}
            left.plot([x for x, _ in points], [norm / points[0][1] for _, norm in points], **style)
            right.plot(
                [x for x, _ in points], [max(norm / least - 1, ROUNDING) for _, norm in points], **style
            )
    left.set_ylabel("norm of the weights, relative to the start")
    right.set_ylabel("relative excess over the minimum")
    right.set_yscale("log")
    for axes in (left, right):
        axes.set_xlabel("cycles")
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(axis="x", color=GRID, linewidth=0.6)
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=len(curves), frameon=False
    )
    figure.suptitle(title or "Norm of the weights against cycles", x=0.01, ha="left", fontsize=13)
    save(figure, path)


def canvas(width: float, height: float) -> Figure:
    """An empty figure of so many inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise EquinormError('pictures need an extra: pip install "equinorm[plot]"') from None
    # A bare Figure, without pyplot: no display, no global state.
    return Figure(figsize=(width, height), dpi=160, layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the suffix, in the style of all our pictures."""
    from matplotlib import rc_context

    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
    undated = {"Date": None} if path.suffix.lower() == ".svg" else {}
    with rc_context({"svg.hashsalt": path.name}):  # equal data give equal files
        write_atomically(path, lambda temporary: figure.savefig(temporary, metadata=undated))
