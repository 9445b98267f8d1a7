"""fig-energy: the paper's appendix "Illustration of the effect of Equi-normalization"."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import equinorm
from equinorm import plot
from equinorm.demo import unbalanced_chain
from equinorm.experiments.reproduce import pictures
from equinorm.experiments.reproduce.environment import environment
from equinorm.experiments.reproduce.experiment import Experiment, Findings, Request
from equinorm.experiments.reproduce.results import RUNS, Figure, Table
from equinorm.experiments.result import write_json
from equinorm.threads import single_thread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CYCLES = (0, 1, 2, 5, 10, 20, 50, 200)
"""Cycles after which the network is drawn. Ours: the paper does not say which iterations it shows."""
SEED = 0
Norms = Mapping[str, Tensor]


def find(request: Request) -> Findings:
    """Balance the appendix's network cycle by cycle; draw every column's norm."""
    start = time.perf_counter()
    with torch.random.fork_rng(devices=[]), single_thread():
        torch.manual_seed(SEED)
        model, example = unbalanced_chain(), torch.randn(8, 500)
        symmetries = equinorm.symmetries(model, example)
        norms, residuals = {0: plot.channel_norms(model)}, {}
        for done, cycles in pairwise(CYCLES):
            request.say(f"cycle {done}")
            report = equinorm.balance(
                model, example, symmetries=symmetries, solver="cycle", cycles=cycles - done, verify=False
            )
            norms[cycles], residuals[cycles] = plot.channel_norms(model), report.residual
        least = equinorm.balance(model, example, symmetries=symmetries).norm_after
    seconds = time.perf_counter() - start
    _draw(request.folder, norms)
    write_json(request.folder / RUNS / "chain.json", _record(norms, residuals, seconds))
    before, after = _energy(norms[0]), _energy(norms[CYCLES[-1]])
    return Findings(
        f"energy {before:.1f} → {after:.1f} in {CYCLES[-1]} cycles (minimum {least:.1f}); the largest layer is "
        f"{_spread(norms[0]):.2f} → {_spread(norms[CYCLES[-1]]):.3f} times the smallest",
        _table(norms, residuals, least),
        (
            Figure("energy-before", "Before: one dot per column of a layer's matrix; the bar is the median."),
            Figure("energy-cycles", "Through successive cycles, medians as lines. The darker, the later."),
        ),
        ("chain.json",),
        seconds,
        notes=(
            "Norms of the columns, as in the paper's figures. The appendix says 20 intermediary layers of 500×500: "
            "20 matrices here.",
            "The paper prints no numbers for these figures.",
        ),
    )


def _energy(norms: Norms) -> float:
    return float(sum(column.square().sum() for column in norms.values()))


def _spread(norms: Norms) -> float:
    """The largest layer over the smallest, by the median of their columns' norms."""
    medians = [float(columns.median()) for columns in norms.values()]
    return max(medians) / min(medians)


def _table(norms: Mapping[int, Norms], residuals: Mapping[int, float], least: float) -> Table:
    columns = ("Cycles", "Energy Σ‖W‖²", "Above the minimum", "Largest / smallest layer", "Residual")
    rows = []
    for cycles, columns_norms in norms.items():
        energy = _energy(columns_norms)
        residual = f"{residuals[cycles]:.1e}" if cycles else "—"
        excess = max(energy / least - 1, 0.0)
        rows.append(
            (str(cycles), f"{energy:.1f}", f"{excess:.2%}", f"{_spread(columns_norms):.3f}", residual)
        )
    return Table(columns, tuple(rows))


def _record(norms: Mapping[int, Norms], residuals: Mapping[int, float], seconds: float) -> dict[str, object]:
    config = {"layers": 20, "width": 500, "factors": {"6": 1.2, "12": 0.8}, "solver": "cycle", "p": 2}
    medians = {cycles: [float(c.median()) for c in columns.values()] for cycles, columns in norms.items()}
    energies = {cycles: _energy(columns) for cycles, columns in norms.items()}
    return {
        "config": config,
        "seed": SEED,
        "environment": environment(),
        "seconds": seconds,
        "energy": energies,
        "median_column_norm": medians,
        "residual": residuals,
    }


def _draw(folder: Path, norms: Mapping[int, Norms]) -> None:
    figure, axes = pictures.blank("Before: layer 6 × 1.2, layer 12 × 0.8")
    plot.dots(axes, list(norms[0].values()), plot.BEFORE)
    _label(axes, len(norms[0]))
    pictures.save(figure, folder, "energy-before")

    figure, axes = pictures.blank("Through successive cycles")
    for cycles, colour in zip(norms, _shades(len(norms)), strict=True):
        layers = list(norms[cycles].values())
        axes.plot(
            range(1, len(layers) + 1),
            [float(columns.median()) for columns in layers],
            color=colour,
            linewidth=1.8,
            marker="o",
            markersize=3,
            label=str(cycles),
        )
    _label(axes, len(norms[0]))
    pictures.legend(figure, [str(cycles) for cycles in norms], "cycles")
    pictures.save(figure, folder, "energy-cycles")


def _label(axes: Axes, layers: int) -> None:
    axes.set_xlabel("layer", fontsize=11)
    axes.set_ylabel("norm of a column", fontsize=11)
    axes.set_xticks(range(2, layers + 1, 2))


def _shades(count: int) -> Sequence[str]:
    """From light to dark, through the blue of our pictures."""
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    shades = LinearSegmentedColormap.from_list("cycles", ["#B9DDF5", plot.AFTER, "#03182E"])
    return [to_hex(shades(index / max(count - 1, 1))) for index in range(count)]


EXPERIMENT = Experiment(
    "fig-energy",
    "Energy of a network through ENorm's cycles",
    'appendix "Illustration of the effect of Equi-normalization", both figures',
    "On a random chain of 20 layers, layer 6 multiplied by 1.2 and layer 12 by 0.8, iterated ENorm cycles "
    "re-balance the energy of the layers without any training.",
    find,
)
