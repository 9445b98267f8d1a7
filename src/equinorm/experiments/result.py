"""``Result``: what a training run came to, in memory and as result.json."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from equinorm.checkpoint import write_atomically
from equinorm.errors import ArgumentError
from equinorm.experiments.recipes import RECIPES, Settings

Row = dict[str, float]
"""An epoch: epoch (from 1), lr (of its last step), train_loss, train_metric, test_loss, test_metric, norm (the sum
of the squared weights of linear and convolutional layers), seconds; with a validation split also validation_loss and
validation_metric."""


@dataclass(frozen=True)
class Result:
    """A run that has ended.

    Attributes:
        settings: what was run.
        status: "finished", or "diverged" when the loss or the weights stopped being finite.
        history: the finished epochs.
        final: the recipe's headline metric; None if diverged.
        validation: the same of the held-out examples, if there are any.
        diverged_at: the epoch (from 1) and step (of the epoch, from 1) at which that was noticed.
        metric: the metric's name.
        versions, commit, device, processes: what it was computed with.
        seconds: of all epochs together.
        note: what the data really were.
        fingerprint, published: tell these data from any others, and whether they are the published ones.
    """

    settings: Settings
    status: str
    history: list[Row]
    final: float | None
    validation: float | None
    diverged_at: dict[str, int] | None
    metric: str
    versions: dict[str, str]
    commit: str | None
    device: str
    processes: int
    seconds: float
    note: str
    fingerprint: str
    published: bool

    def write(self, path: Path) -> None:
        """As JSON, all or nothing."""
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Result:
        """From JSON; another version's file is refused."""
        content = read_json(path)
        try:
            return cls(**{**content, "settings": Settings(**content["settings"])})
        except (TypeError, KeyError) as error:
            raise ArgumentError(f"{path}: written by another version of equinorm ({error})") from error


def headline(settings: Settings, history: Sequence[Row], split: str | None = None) -> float | None:
    """The metric that the paper reports for the recipe: of the last epoch, or the median of the last five.

    Args:
        settings: of the run.
        history: its epochs.
        split: "train", "validation" or "test" instead of the recipe's.
    """
    recipe = RECIPES[settings.recipe]
    name = f"{split or recipe.headline}_metric"
    values = [row[name] for row in history[-recipe.last :] if name in row]
    return statistics.median(values) if values else None


def write_json(path: Path, content: Any) -> None:
    """Write JSON, all or nothing."""
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"{path}: not a readable JSON file ({error}); delete the folder to start again"
        ) from error
    if not isinstance(content, dict):
        raise ArgumentError(f"{path}: holds no JSON object; delete the folder to start again")
    return content
