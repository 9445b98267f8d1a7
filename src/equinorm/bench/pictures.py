"""One picture per benchmark, in the style of equinorm.plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equinorm.plot import GRID, INK, canvas, check_path, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[Mapping[str, Any]]
# Okabe & Ito's palette, as in equinorm.plot; here by method, with a marker each.
STYLES = {
    "none": ("#222222", "."),
    "BN": ("#D55E00", "o"),
    "GN": ("#E69F00", "s"),
    "WN": ("#CC79A7", "^"),
    "ENorm": ("#0072B2", "D"),
    "ENorm, compiled": ("#56B4E9", "v"),
    "ENorm-Impl": ("#009E73", "P"),
    "plain Algorithm 1": ("#D55E00", "o"),
    "SGD": ("#222222", "."),
}
COLUMNS = 6  # of a legend
SOLVERS = {"cycle": ("#D55E00", "the paper's cycle"), "multilevel": ("#0072B2", "multilevel")}


def overhead(path: Path, rows: Rows) -> None:
    """The cost of each normalisation against the batch, one panel per network."""
    check_path(path)
    networks = list(dict.fromkeys(row["network"] for row in rows))
    figure = canvas(4.2 * len(networks), 4.4)
    for axes, network in zip(figure.subplots(1, len(networks), squeeze=False)[0], networks, strict=True):
        chosen = [row for row in rows if row["network"] == network]
        for name in dict.fromkeys(name for row in chosen for name in row["methods"]):
            found = [(row["batch"], row["methods"][name]["cost"]) for row in chosen if name in row["methods"]]
            _errorbars(axes, [(batch, cost) for batch, cost in found if cost is not None], name)
        _log(axes, "batch")
        batches = [row["batch"] for row in chosen]
        axes.set_xticks(batches, list(map(str, batches)))
        axes.set_xticks([], minor=True)
        axes.set_title(network, loc="left", fontsize=11)
    figure.axes[0].set_ylabel("seconds per step for normalising")
    _legend(figure)
    figure.suptitle("What a normalisation adds to a training step", x=0.01, ha="left", fontsize=13)
    save(figure, path)


def step(path: Path, rows: Rows) -> None:
    """Against SGD's step, and the share of the bandwidth limit; MLPs are joined by lines."""
    check_path(path)
    figure = canvas(10, 4.6)
    left, right = figure.subplots(1, 2)
    for axes, key, label in (
        (left, "to_sgd", "seconds, relative to SGD's step (line)"),
        (right, "share_of_limit", "share of the bandwidth limit (dotted: the target)"),
    ):
        for chosen, joined in ((_mlps(rows, True), True), (_mlps(rows, False), False)):
            for name in dict.fromkeys(name for row in chosen for name in row[key]):
                points = [(row["parameters"], row[key][name]) for row in chosen if name in row[key]]
                _errorbars(axes, points, name if joined else f"_{name}", name, joined)
        axes.set_xscale("log")
        axes.set_xlabel("parameters (lines: MLPs; hollow: the paper's networks)")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.axhline(1, color=INK, linewidth=0.8)
    right.axhline(0.6, color=INK, linewidth=0.8, linestyle=":")
    _legend(figure)
    figure.suptitle("ENorm.step()", x=0.01, ha="left", fontsize=13)
    save(figure, path)


def _mlps(rows: Rows, wanted: bool) -> Rows:
    return [row for row in rows if row["network"].startswith("MLP, ") == wanted]


def convergence(path: Path, rows: Rows, tol: float) -> None:
    """The residual against cycles (above) and seconds (below), by kind of network."""
    check_path(path)
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    figure = canvas(4.2 * len(kinds), 7.4)
    grid = figure.subplots(2, len(kinds), squeeze=False, sharey=True)
    for column, kind in enumerate(kinds):
        for line, (part, unit) in enumerate(((0, "cycles"), (1, "seconds"))):
            axes = grid[line][column]
            for row in rows:
                if row["kind"] == kind:
                    for solver, points in row["curves"].items():
                        shown = [p for p in points if p[part] > 0 and p[2] > 0]
                        colour, _ = SOLVERS[solver]
                        axes.plot(
                            [p[part] for p in shown], [p[2] for p in shown], color=colour, alpha=0.6, lw=1.2
                        )
            _log(axes, unit)
            axes.axhline(tol, color=INK, linewidth=0.8, linestyle=":")
        grid[0][column].set_title(f"{kind} networks", loc="left", fontsize=11)
    for axes in grid[:, 0]:
        axes.set_ylabel("residual")
    for colour, label in SOLVERS.values():
        grid[0][0].plot([], [], color=colour, label=label)
    _legend(figure)
    figure.suptitle(
        "Residual on the way to the minimum, one line per network", x=0.01, ha="left", fontsize=13
    )
    save(figure, path)


def analysis(path: Path, rows: Rows) -> None:
    """Seconds against those of a forward pass, and chains of growing size."""
    check_path(path)
    figure = canvas(10, 4.6)
    left, right = figure.subplots(1, 2)
    for name, label, (colour, marker) in (
        ("analysis", "symmetries", STYLES["ENorm"]),
        ("balance", "balance, verify included", STYLES["BN"]),
    ):
        models = [row["seconds"] for row in rows if row["kind"] in ("model", "bare")]
        x, y = [s["forward"].median for s in models], [s[name].median for s in models]
        left.scatter(x, y, color=colour, marker=marker, s=18, alpha=0.8, linewidths=0, label=label)
        for kind, line in (("depth", "-"), ("width", "--")):
            chain = [row for row in rows if row["kind"] == kind]
            style = {"color": colour, "marker": marker, "linestyle": line, "markersize": 4}
            points = [(row["parameters"], row["seconds"][name].median) for row in chain]
            right.plot(*zip(*points, strict=True), **style) if points else None
    left.axhline(10, color=INK, linewidth=0.8, linestyle=":", label="target")
    _log(left, "seconds of one forward pass")
    _log(right, "parameters of a chain; —: growing depth, - -: growing width")
    left.set_ylabel("seconds")
    left.set_title("models", loc="left", fontsize=11)
    right.set_title("chains", loc="left", fontsize=11)
    _legend(figure)
    figure.suptitle("Analysis and balance against one forward pass", x=0.01, ha="left", fontsize=13)
    save(figure, path)


def memory(path: Path, rows: Rows) -> None:
    """Extra bytes per parameter by method: kept between steps, and at the peak."""
    check_path(path)
    networks = list(dict.fromkeys(row["network"] for row in rows))
    figure = canvas(10, 1.2 + 1.5 * len(networks))
    for axes, network in zip(figure.subplots(len(networks), 1, squeeze=False)[:, 0], networks, strict=True):
        chosen = [row for row in rows if row["network"] == network and row["method"] != "none"]
        names = [row["method"] for row in chosen]
        peaks, kept = ([row[f"extra_{kind}_per_parameter"] for row in chosen] for kind in ("peak", "kept"))
        axes.barh(names, peaks, color=[STYLES[name][0] for name in names], alpha=0.45, label="at the peak")
        axes.barh(names, kept, color=[STYLES[name][0] for name in names], height=0.4, label="between steps")
        axes.set_title(
            f"{network}, batch {chosen[0]['batch']}" if chosen else network, loc="left", fontsize=10
        )
        axes.invert_yaxis()
        axes.grid(axis="x", color=GRID, linewidth=0.6)
    figure.axes[-1].set_xlabel("bytes per parameter beyond no normalisation (pale: at the peak of a step)")
    figure.suptitle("Memory of each normalisation while training", x=0.01, ha="left", fontsize=13)
    save(figure, path)


def _errorbars(
    axes: Axes, points: Sequence[tuple[float, Any]], label: str, name: str = "", joined: bool = True
) -> None:
    """Medians with their intervals; matplotlib leaves labels that begin with _ out of legends."""
    if not points:
        return
    colour, marker = STYLES[name or label]
    y = [value.median for _, value in points]
    error = [[v.median - v.low for _, v in points], [v.high - v.median for _, v in points]]
    axes.errorbar(
        [x for x, _ in points],
        y,
        yerr=error,
        color=colour,
        marker=marker,
        markersize=5 if joined else 7,
        markerfacecolor=colour if joined else "none",
        linestyle="-" if joined else "none",
        linewidth=1.6,
        capsize=2,
        label=label,
    )


def _log(axes: Axes, label: str) -> None:
    from matplotlib.ticker import NullFormatter

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_minor_formatter(
        NullFormatter()
    )  # they overlap where the axis spans about one power of ten
    axes.set_xlabel(label)
    axes.grid(axis="x", color=GRID, linewidth=0.6)


def _legend(figure: Any) -> None:
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(
        found.values(),
        found.keys(),
        loc="outside lower center",
        ncols=min(len(found), COLUMNS),
        frameon=False,
    )
