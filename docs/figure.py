"""Draw docs/how-it-works.svg: python docs/figure.py"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from torch import nn

import equinorm

BLUE, RED, GREY, GREEN = "#2463a8", "#c4452d", "#8a8f98", "#2e8b57"


def neuron(ax: Axes) -> None:
    """One hidden neuron: what comes in times d, what goes out divided by d."""
    ax.set_title("1. A rescaling", loc="left")
    for y in (0.2, 0.5, 0.8):
        ax.annotate("", (0.44, 0.5), (0.08, y), arrowprops={"arrowstyle": "-", "color": BLUE, "lw": 2})
        ax.annotate("", (0.92, y), (0.56, 0.5), arrowprops={"arrowstyle": "-", "color": RED, "lw": 2})
        ax.plot([0.08, 0.92], [y, y], "o", color=GREY, ms=9)
    ax.plot(0.5, 0.5, "o", color="white", mec="black", ms=34)
    ax.text(0.5, 0.5, "relu", ha="center", va="center")
    ax.text(0.24, 0.92, "weights in × d", color=BLUE, ha="center")
    ax.text(0.24, 0.06, "bias × d", color=BLUE, ha="center")
    ax.text(0.77, 0.92, "weights out ÷ d", color=RED, ha="center")
    ax.text(0.5, -0.06, "relu(d·z) = d·relu(z): the outputs stay the same", ha="center")
    ax.set(xlim=(0, 1), ylim=(-0.1, 1))
    ax.axis("off")


def orbit(ax: Axes) -> None:
    """The norm along one scale: two exponentials, one minimum."""
    ax.set_title("2. Its best value", loc="left")
    x = np.linspace(-1.6, 2.0, 200)
    into, out = 0.6 * np.exp(2 * x), 2.2 * np.exp(-2 * x)
    best = np.log(2.2 / 0.6) / 4
    ax.plot(x, into, color=BLUE, label="weights in")
    ax.plot(x, out, color=RED, label="weights out")
    ax.plot(x, into + out, color="black", lw=2, label="both: the norm")
    ax.plot(best, 2 * np.sqrt(0.6 * 2.2), "o", color=GREEN, ms=8)
    ax.annotate("minimum: both\nsides equal", (best, 2.4), (-0.15, 6.2), color=GREEN,
                arrowprops={"arrowstyle": "->", "color": GREEN})  # fmt: skip
    ax.set(ylim=(0, 12), xlabel="log d", ylabel="sum of squares")
    ax.legend(loc="upper center", frameon=False)


def ids(ax: Axes) -> None:
    """Scale ids through a small network."""
    ax.set_title("3. Which scales a network has", loc="left")
    colours = plt.get_cmap("tab10").colors
    columns = [
        ("input", [None] * 3),
        ("conv\n+ relu", [0, 1]),
        ("pool", [0, 1]),
        ("flatten", [0, 0, 0, 1, 1, 1]),
        ("linear\n+ relu", [2, 3, 4]),
        ("skip\n+ add", [2, 3, 4]),
        ("softmax", [None] * 3),
    ]
    for k, (name, found) in enumerate(columns):
        ax.text(k, 3.75, name, ha="center", va="bottom", fontsize=8)
        for j, number in enumerate(found):
            y = 1.75 + (j - (len(found) - 1) / 2) * min(0.62, 3.4 / len(found))
            colour = "white" if number is None else colours[number]
            ax.plot(k, y, "s", color=colour, mec=GREY if number is None else colour, ms=11)
            ax.text(k, y - 0.03, "0" if number is None else str(number + 1), ha="center", va="center", fontsize=8,
                    color=GREY if number is None else "white")  # fmt: skip
        if k:
            ax.annotate(
                "", (k - 0.28, 1.75), (k - 0.72, 1.75), arrowprops={"arrowstyle": "->", "color": GREY}
            )
    ax.text(3, -0.55, "equal numbers share one scale; 0 is pinned to 1", ha="center")
    ax.set(xlim=(-0.5, 6.5), ylim=(-0.8, 4.4))
    ax.axis("off")


def cycles(ax: Axes) -> None:
    """The residual of both solvers on 21 layers."""
    ax.set_title("4. Getting there (21 layers of 200, measured)", loc="left")
    for solver, colour, most in (("cycle", GREY, 60), ("multilevel", GREEN, None)):
        torch.manual_seed(0)
        layers = [m for _ in range(21) for m in (nn.Linear(200, 200, bias=False), nn.ReLU())][:-1]
        net = nn.Sequential(*layers)
        for k, layer in enumerate(net[::2]):
            nn.init.normal_(layer.weight, std=(2 / 200) ** 0.5 * 3.0 ** (k % 5 - 2))
        report = equinorm.balance(net, torch.randn(1, 200), solver=solver, cycles=most, tol=1e-10)
        done = [cycle for cycle, _, _ in report.history]
        ax.semilogy(done, [residual for _, residual, _ in report.history], "o-", color=colour, ms=3)
    ax.text(58, 0.03, "the paper's cycle", color=GREY, ha="right")
    ax.text(8.5, 1e-7, "multilevel", color=GREEN)
    ax.set(xlabel="cycles", ylabel="residual |R − L| / (R + L)", ylim=(1e-11, 3))


def main() -> None:
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "equinorm", "font.size": 9, "axes.spines.top": False,
                         "axes.spines.right": False, "axes.titleweight": "bold"})  # fmt: skip
    figure, axes = plt.subplots(2, 2, figsize=(10, 6.4), layout="constrained")
    for draw, ax in zip((neuron, orbit, ids, cycles), axes.flat, strict=True):
        draw(ax)
    path = Path(__file__).with_name("how-it-works.svg")
    figure.savefig(path, metadata={"Date": None})
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
