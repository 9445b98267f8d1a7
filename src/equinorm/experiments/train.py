"""``train``: one run from its settings to its result; killed at any moment, it goes on where it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from equinorm.errors import EquinormError
from equinorm.experiments import data as datasets
from equinorm.experiments import provenance
from equinorm.experiments.data import Augmentation, Data
from equinorm.experiments.folder import Folder
from equinorm.experiments.progress import Board, shown
from equinorm.experiments.recipes import RECIPES, Settings
from equinorm.experiments.result import Result, headline
from equinorm.experiments.trainer import Diverged, Trainer
from equinorm.experiments.world import World, joined


def train(
    settings: Settings,
    folder: Path,
    *,
    data_dir: Path | None = None,
    download: bool = False,
    device: str | None = None,
    workers: int = 4,
    tensorboard: bool = False,
    quiet: bool = False,
) -> Result:
    """Train, or go on training, or return the result of a run that has ended.

    Under torchrun every process calls this; ``folder`` must be the same for all of them.

    Args:
        settings: see ``recipes.settings``.
        folder: gets config.json, metrics.jsonl, checkpoint.pt and result.json.
        data_dir, download, workers: see ``data.load``.
        device: by default a GPU if there is one.
        tensorboard: write the metrics for TensorBoard, too.
        quiet: show no progress.
    """
    with joined(device) as world, _generators_kept(world.device):
        data = _loaded(settings, world, data_dir, download, workers)
        files = Folder(folder, settings, _identity(data), world.size)
        ended = files.result()
        world.barrier()  # nobody writes before everybody has looked
        if ended is not None:
            return ended
        trainer = Trainer(settings, data, world)  # what cannot be built leaves no folder behind
        with files.locked() if world.rank == 0 else contextlib.nullcontext():
            return _run(trainer, files, tensorboard, quiet or world.rank > 0)


def _run(trainer: Trainer, files: Folder, tensorboard: bool, quiet: bool) -> Result:
    settings, world = trainer.settings, trainer.world
    first = world.rank == 0
    state = files.checkpoint()
    if state is not None:
        with files.understood():
            trainer.load_state_dict(state)
    if not world.agrees(trainer.epoch):
        raise EquinormError(
            f"{files.path}: the processes do not see the same checkpoint there; all need one common folder"
        )
    if first:
        files.start(trainer.history)
    board = Board(files.path, trainer.history) if tensorboard and first else None
    diverged_at = None
    with (
        contextlib.closing(board) if board else contextlib.nullcontext(),
        shown(settings, trainer.data.note, trainer.steps, trainer.epoch, quiet) as progress,
    ):
        while trainer.epoch < settings.epochs and diverged_at is None:
            try:
                row = trainer.run_epoch(progress)
            except Diverged as divergence:
                diverged_at = divergence.where
                continue
            if first:
                files.save(trainer.state_dict(), row)
                progress.epoch(row)
            if board:
                board.epoch(row)
    result = _result(trainer, diverged_at)
    if first:
        files.finish(result)
    world.barrier()
    return result


def _result(trainer: Trainer, diverged_at: dict[str, int] | None) -> Result:
    settings, history = trainer.settings, trainer.history
    ended = diverged_at is None
    return Result(
        settings=settings,
        status="finished" if ended else "diverged",
        history=history,
        final=headline(settings, history) if ended else None,
        validation=headline(settings, history, "validation") if ended else None,
        diverged_at=diverged_at,
        metric=RECIPES[settings.recipe].task.metric_name,
        versions=provenance.versions(),
        commit=provenance.commit(),
        device=trainer.world.device.type,
        processes=trainer.world.size,
        seconds=sum(row["seconds"] for row in history),
        note=trainer.data.note,
        fingerprint=trainer.data.fingerprint,
        published=trainer.data.published,
    )


def _loaded(settings: Settings, world: World, data_dir: Path | None, download: bool, workers: int) -> Data:
    def load(fetch: bool) -> Data:
        return datasets.load(
            RECIPES[settings.recipe].dataset,
            data_dir,
            augmentation=Augmentation(settings.crop, settings.flip),
            validation=settings.validation,
            limit=settings.limit,
            device=world.device,
            download=fetch,
            workers=workers,
        )

    if not download or world.size == 1:
        return load(download)
    if world.rank == 0:
        load(True)
    world.barrier()  # one process downloads
    return load(False)


def _identity(data: Data) -> dict[str, Any]:
    """What tells a run's data from others', wherever they lie."""
    return {
        "data": data.note,
        "data's fingerprint": data.fingerprint,
        "shape": list(data.shape),
        "classes": data.classes,
    }


@contextlib.contextmanager
def _generators_kept(device: torch.device) -> Iterator[None]:
    """Leave the caller's random generators as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


def describe(result: Result) -> str:
    """The result in a line."""
    if result.diverged_at is not None:
        return "diverged at epoch {epoch}, step {step}: the loss is not finite; lower --lr".format(
            **result.diverged_at
        )
    recipe = RECIPES[result.settings.recipe]
    over = f", median of the last {recipe.last} epochs" if recipe.last > 1 else ""
    return f"finished: {recipe.headline} {result.metric} {result.final:.4g}{over}"
