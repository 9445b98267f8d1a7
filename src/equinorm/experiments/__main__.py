"""Write docs/experiments.md from the tables of recipes and methods."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

from equinorm.experiments.companions import Companion
from equinorm.experiments.methods import METHODS
from equinorm.experiments.recipes import RECIPES, Recipe

HEAD = """# The paper's experiments

This page is written from the tables of [recipes](../src/equinorm/experiments/recipes.py) and
[methods](../src/equinorm/experiments/methods.py) by `python -m equinorm.experiments`.

```
equinorm train mnist-autoencoder --method enorm+bn --lr 0.1 --data-dir DIR
equinorm sweep cifar10-fc --depth 11 --methods baseline,bn,enorm,enorm+bn --seeds 5 --data-dir DIR --storage study.log
torchrun --nproc-per-node 8 -m equinorm train imagenet-resnet18 --method enorm --batch-size 64 --data-dir DIR
```

Every setting below is an option of both commands (`weight_decay` is `--weight-decay`); `sweep` takes lists for `--lr`,
`--groups`, `--weight-decay` and `--c`. A run's folder holds `config.json`, `metrics.jsonl` (a line per epoch),
`checkpoint.pt` and `result.json`. The same command again continues a run that was killed, with the same bits on CPUs
(on up to two processes; the rounding of sums over more depends on how DDP packs gradients), and returns the result of
one that has ended. A run whose loss is no longer finite ends as `diverged`.

The same `sweep` command started several times, on one machine or on many that see the same folder, is one sweep. Its
trials are Optuna's; a killed worker's trial is taken over, from its checkpoint, once its heartbeats have ceased.
"""


def page() -> str:
    """The whole page."""
    methods = ["## Methods\n", "| method | norm in the model | beside the optimizer |", "|---|---|---|"]
    for name, method in METHODS.items():
        beside = _first_line(method.companion) if method.companion is not Companion else ""
        beside += "weights initialised from a batch, layer by layer" if method.data_init else ""
        beside += "; no weight decay" if method.weight_decay == 0 else ""
        final = "; final BN where a recipe has one" if method.final_bn else ""
        methods.append(f"| `{name}` | {method.norm}{final} | {beside} |")
    recipes = [_recipe(name, recipe) for name, recipe in RECIPES.items()]
    return "\n".join([HEAD, *methods, "\n## Recipes\n", "\n".join(recipes)])


def _recipe(name: str, recipe: Recipe) -> str:
    settings = ", ".join(
        f"{key} {_shown(value)}" for key, value in recipe.values.items() if value is not None
    )
    over = f", median of the last {recipe.last} epochs" if recipe.last > 1 else ""
    lines = [
        f"### {name}\n",
        f"The paper's {recipe.source}.\n",
        f"* Settings: {settings}.",
        f"* ENorm's c: {', '.join(f'{_shown(c)} for {method}' for method, c in recipe.c.items())}; 1 otherwise.",
        f"* Reported: {recipe.headline} {recipe.task.metric_name}{over}.",
    ]
    if recipe.learning_rates:
        rates, groups = (", ".join(map(_shown, grid)) for grid in (recipe.learning_rates, recipe.groups))
        lines.append(
            f"* Searched: learning rates {rates}; groups {groups}; {recipe.held_out:,} examples held out."
        )
    if recipe.final_bn:
        lines.append(
            "* A final BatchNorm behind the FC layer of the methods without another, shared by all processes."
        )
    return "\n".join([*lines, f"* Ours, as the paper leaves it open: {'; '.join(recipe.ours)}.\n"])


def _shown(value: Any) -> str:
    if callable(value):
        return "by batch size (" + ", ".join(f"{b}: {value(b):.4g}" for b in (32, 64, 128, 256)) + ")"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value}"


def _first_line(companion: type) -> str:
    return (inspect.getdoc(companion) or "").splitlines()[0].rstrip(".")


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/experiments.md").write_text(page(), encoding="utf-8")
