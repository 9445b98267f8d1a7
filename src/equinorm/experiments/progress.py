"""What a run shows: a progress bar on a terminal, a line per epoch elsewhere; TensorBoard if wanted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equinorm.experiments.extra import require
from equinorm.experiments.recipes import RECIPES, Settings
from equinorm.experiments.result import Row

if TYPE_CHECKING:
    from equinorm.experiments.trainer import Means

REFRESH = 0.2
"""Seconds between two looks at the loss, which make a GPU wait."""


class Silent:
    """Shows nothing."""

    def step(self, epoch: int, rate: float, means: Means) -> None:
        """A step is done."""

    def epoch(self, row: Row) -> None:
        """An epoch is done."""


class Lines(Silent):
    """A line per epoch, for logs."""

    def __init__(self, settings: Settings, console: Any) -> None:
        self._settings, self._console = settings, console
        self._metric = RECIPES[settings.recipe].task.metric_name

    def epoch(self, row: Row) -> None:
        """Print the epoch's losses and metrics."""
        self._console.print(
            f"epoch {row['epoch']:.0f}/{self._settings.epochs}  loss {row['train_loss']:.4g}  "
            f"{self._metric} {row['train_metric']:.4g}, test {row['test_metric']:.4g}  "
            f"lr {row['lr']:.3g}  {row['seconds']:.1f} s",
            highlight=False,
            soft_wrap=True,
        )


class Bar(Lines):
    """A progress bar over all epochs, and the lines above it."""

    def __init__(self, settings: Settings, console: Any, bar: Any, task: Any) -> None:
        super().__init__(settings, console)
        self._bar, self._task, self._shown = bar, task, 0.0

    def step(self, epoch: int, rate: float, means: Means) -> None:
        """Advance; now and then with the epoch's loss and metric so far."""
        self._bar.advance(self._task)
        if time.monotonic() - self._shown > REFRESH:
            loss, metric = means.local()
            self._bar.update(
                self._task,
                description=f"epoch {epoch + 1}/{self._settings.epochs}",
                state=f"loss {loss:.4g}  {self._metric} {metric:.4g}  lr {rate:.3g}",
            )
            self._shown = time.monotonic()


@contextmanager
def shown(settings: Settings, note: str, steps: int, done: int, quiet: bool) -> Iterator[Silent]:
    """Show a run on standard error.

    Args:
        settings: of the run.
        note: what its data really are.
        steps: per epoch.
        done: epochs that are done.
        quiet: show nothing.
    """
    if quiet:
        yield Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    going_on = f", going on after epoch {done}" if done else ""
    console.print(
        f"{settings.recipe}, {settings.method}, lr {settings.lr:g}{going_on}. {note}",
        highlight=False,
        soft_wrap=True,
    )
    if not console.is_terminal:
        yield Lines(settings, console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
    times = (TimeElapsedColumn(), TextColumn("eta"), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=settings.epochs * steps, completed=done * steps, state="")
        yield Bar(settings, console, bar, task)


class Board:
    """The epochs' metrics in TensorBoard's files, written anew from the history when a run goes on."""

    def __init__(self, folder: Path, history: Sequence[Row]) -> None:
        require("tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=0)  # forget what earlier files say
        for row in history:
            self.epoch(row)

    def epoch(self, row: Row) -> None:
        """Write an epoch's metrics."""
        for name, value in row.items():
            if name != "epoch":
                self._writer.add_scalar(name, value, int(row["epoch"]))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
