"""``reproduce``: find out, and write down what was found."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from equinorm.errors import ArgumentError
from equinorm.experiments.data import fingerprint
from equinorm.experiments.reproduce import results
from equinorm.experiments.reproduce.catalogue import EXPERIMENTS, named
from equinorm.experiments.reproduce.environment import environment
from equinorm.experiments.reproduce.experiment import Experiment, Preset, Request
from equinorm.experiments.reproduce.results import Outcome


def reproduce(
    name: str,
    preset: Preset = "paper",
    *,
    data_dir: Path | None = None,
    download: bool = False,
    output: Path = Path("results"),
    quiet: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Reproduce one of the paper's figures or tables, and write it to ``output/name/``.

    Args:
        name: one of :data:`EXPERIMENTS`.
        preset: ``"paper"``, the paper's full protocol; ``"quick"``, minutes on two cores, shortened as it says.
        data_dir: the folder with MNIST, CIFAR-10 or ImageNet. Without it a small data set that ships with
            scikit-learn stands in, and the result says so; ImageNet has no stand-in.
        download: get missing data sets into ``data_dir``.
        output: the folder of all results. Runs that finished there are not repeated.
        quiet: show no progress of single runs.
        say: called with one line of progress at a time.
    """
    experiment = named(name)
    request = Request(preset, output, output / name, data_dir, download, quiet, say)
    if download and os.environ.get("WORLD_SIZE", "1") != "1":
        raise ArgumentError("--download: not under torchrun; let one process download first")
    if experiment.needs != "nothing":
        fingerprint(experiment.needs, data_dir, download)  # what is missing is said before a folder is made
    results.prepare(request.folder, preset)
    found = experiment.find(request)
    outcome = Outcome(
        name=name,
        title=experiment.title,
        source=experiment.source,
        claim=experiment.claim,
        found=found.found,
        preset=preset,
        command=command(experiment, request),
        shortened=found.shortened,
        notes=found.notes,
        table=found.table,
        figures=found.figures,
        runs=found.runs,
        seconds=found.seconds,
        environment=environment(found.made_with),
        published=found.published,
    )
    results.write(outcome, request.folder)
    return outcome


def command(experiment: Experiment, request: Request) -> str:
    """What to type for the same result; DIR stands for where the data are."""
    data = "" if experiment.needs == "nothing" or request.data_dir is None else " --data-dir DIR"
    return f"equinorm reproduce {experiment.name} --preset {request.preset}{data}"


def runnable(data_dir: Path | None) -> list[str]:
    """The names that ``all`` stands for: those on ImageNet only where ``data_dir`` holds an image folder."""
    imagenet = data_dir is not None and (data_dir / "train").is_dir() and (data_dir / "val").is_dir()
    return [name for name, one in EXPERIMENTS.items() if one.needs != "imagenet" or imagenet]
