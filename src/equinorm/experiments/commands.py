"""The commands ``train`` and ``sweep``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from equinorm.experiments import options
from equinorm.experiments.options import with_settings


@with_settings
def train(
    recipe: options.Recipe,
    overrides: dict[str, Any],
    method: options.Method = "enorm",
    data_dir: options.DataDir = None,
    download: options.Download = False,
    output: options.Output = None,
    device: options.Device = None,
    workers: options.Workers = 4,
    tensorboard: options.TensorBoard = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a network of the paper; what is not given is the paper's setting. Run it again to go on."""
    from equinorm.experiments import train as training
    from equinorm.experiments.recipes import settings

    chosen = options.single(overrides)
    wanted = settings(recipe, method, **chosen)
    described = _described({**chosen, "lr": wanted.lr, "seed": wanted.seed}, data_dir)
    folder = output or Path("runs", recipe, method, described)
    result = training.train(
        wanted,
        folder,
        data_dir=data_dir,
        download=download,
        device=device,
        workers=workers,
        tensorboard=tensorboard,
        quiet=quiet,
    )
    if int(os.environ.get("RANK", 0)) == 0:
        print(training.describe(result), f"({folder})")
    if result.processes > 1:
        # A thread of gloo that wants the interpreter while it shuts down aborts the process (seen on a busy machine).
        sys.stdout.flush()
        os._exit(0)


@with_settings
def sweep(
    recipe: options.Recipe,
    methods: options.Methods,
    overrides: dict[str, Any],
    seeds: options.Seeds = 5,
    data_dir: options.DataDir = None,
    download: options.Download = False,
    output: options.SweepOutput = None,
    storage: options.Storage = None,
    heartbeat: options.Heartbeat = 60,
    device: options.Device = None,
    workers: options.Workers = 4,
    quiet: options.Quiet = False,
) -> None:
    """Choose each method's learning rate on held-out examples, then train the best with several seeds.

    --lr, --groups, --weight-decay and --c may be lists, as 0.01,0.1, to search instead of the recipe's. Start the same
    command several times, on one machine or on many with a common folder, to share the work.
    """
    from functools import partial

    from equinorm.experiments import data
    from equinorm.experiments import sweep as sweeping
    from equinorm.experiments.recipes import RECIPES, known
    from equinorm.experiments.train import train as run

    known("recipe", recipe, RECIPES)
    chosen = options.parsed(overrides)
    grids = {name: values for name, values in chosen.items() if isinstance(values, list)}
    fixed = {name: value for name, value in chosen.items() if name not in grids}
    folder = output or Path("sweeps", recipe, _described(overrides, data_dir))
    summaries = sweeping.sweep(
        recipe,
        [method.strip() for method in methods.split(",")],
        folder,
        partial(run, data_dir=data_dir, download=download, device=device, workers=workers, quiet=quiet),
        storage=storage,
        seeds=seeds,
        overrides=fixed,
        grids=grids,
        data=data.fingerprint(RECIPES[recipe].dataset, data_dir, download),
        heartbeat=heartbeat,
        say=lambda text: print(text, file=sys.stderr),
    )
    print(sweeping.table(recipe, summaries))
    print(f"wrote {folder / 'sweep.json'}")


def _described(values: dict[str, Any], data_dir: Path | None) -> str:
    """A folder's name that tells apart runs with different settings, and those on a stand-in for the data."""
    words = [f"{name}={value}" for name, value in sorted(values.items())]
    return ",".join(words if data_dir is not None else ["digits", *words])
