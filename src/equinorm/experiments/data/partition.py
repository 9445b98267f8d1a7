"""Which examples are for training, for validation and for testing: fixed by a seed, the same in every run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equinorm.errors import ArgumentError
from equinorm.experiments.data.order import generator


@dataclass(frozen=True, eq=False)
class Partition:
    """Indices into the training examples (``train``, ``validation``) and into the test examples."""

    train: Tensor
    validation: Tensor
    test: Tensor

    @property
    def counts(self) -> str:
        """The sizes in words."""
        held = f", {len(self.validation)} validation" if len(self.validation) else ""
        return f"{len(self.train)} training{held} and {len(self.test)} test images"


def partition(
    train: int, test: int, *, complete: int, validation: int, limit: int | None, seed: int
) -> Partition:
    """Hold ``validation`` examples out of ``train``, and keep ``limit`` of the others.

    A data set smaller than the ``complete`` one holds out the same share of it, and a limit keeps the same share
    of the validation and test examples as of the training examples.
    """
    if limit is not None and limit < 1:
        raise ArgumentError(f"limit={limit}: must be at least 1")
    held = _share(validation, train, complete)
    if not 0 <= held < train:
        raise ArgumentError(f"validation={validation}: cannot be held out of {train} training examples")
    rest = train - held
    kept = min(rest, limit or rest)
    shuffled = torch.randperm(train, generator=generator("partition", seed))
    shuffled_test = torch.randperm(test, generator=generator("partition of the test", seed))
    return Partition(
        train=shuffled[held : held + kept].sort().values,
        validation=shuffled[: _share(held, kept, rest)].sort().values,
        test=shuffled_test[: _share(test, kept, rest)].sort().values,
    )


def _share(count: int, part: int, whole: int) -> int:
    """``part / whole`` of ``count``, no more than all of it and at least one if there is one."""
    return min(count, max(1, round(count * part / whole)))
