"""Which examples are for training, for validation and for testing: fixed by a seed, the same in every run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from equinorm.errors import ArgumentError
from equinorm.experiments.data.interface import Data, Split
from equinorm.experiments.data.order import generator


class Selectable(Split, Protocol):
    """A split that can be cut down to some of its examples."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image."""

    def select(self, index: Tensor) -> Split:
        """The examples of the given indices."""


@dataclass(frozen=True, eq=False)
class Whole:
    """All of a data set that was found, and how many training examples the published one has."""

    title: str
    complete: int
    train: Selectable
    test: Selectable
    classes: int
    fingerprint: str


def divide(whole: Whole, *, validation: int, limit: int | None, seed: int) -> Data:
    """Hold ``validation`` examples out of the training examples, and keep ``limit`` of the others.

    A data set smaller than the published one holds out the same share of it, and a limit keeps the same share of
    the validation and test examples as of the training examples.
    """
    train, test = whole.train, whole.test
    if limit is not None and limit < 1:
        raise ArgumentError(f"limit={limit}: must be at least 1")
    held = _share(validation, train.size, whole.complete)
    if not 0 <= held < train.size:
        raise ArgumentError(f"validation={validation}: cannot be held out of {train.size} training examples")
    rest = train.size - held
    kept = min(rest, limit or rest)
    shuffled = _shuffled(train.size, "training", seed)
    held_kept, test_kept = _share(held, kept, rest), _share(test.size, kept, rest)
    held_out = f", {held_kept} validation" if held_kept else ""
    return Data(
        note=f"{whole.title}: {kept} training{held_out} and {test_kept} test images",
        fingerprint=whole.fingerprint,
        published=train.size == whole.complete,
        train=train.select(shuffled[held : held + kept].sort().values),
        validation=train.select(shuffled[:held_kept].sort().values) if held_kept else None,
        test=test.select(_shuffled(test.size, "test", seed)[:test_kept].sort().values),
        shape=train.shape,
        classes=whole.classes,
    )


def _shuffled(size: int, what: str, seed: int) -> Tensor:
    return torch.randperm(size, generator=generator("partition", what, seed))


def _share(count: int, part: int, whole: int) -> int:
    """``part / whole`` of ``count``, no more than all of it and at least one if there is one."""
    return min(count, max(1, round(count * part / whole)))
