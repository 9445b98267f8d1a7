"""What a training loop sees of a data set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Augmentation:
    """Crops of ``crop``×``crop``, random in training and central in evaluation; random horizontal flips.

    For ImageNet crops are resized as well, to 224 unless ``crop`` says otherwise.
    """

    crop: int | None = None
    flip: bool = False


PLAIN = Augmentation()
"""The images as they are."""


class Split(Protocol):
    """A part of a data set, as a stream of normalised batches."""

    @property
    def size(self) -> int:
        """The number of examples."""

    def steps(self, batch_size: int, world: int = 1, training: bool = True) -> int:
        """The number of batches of an epoch: of every process in training, of the first in evaluation."""

    def batches(
        self, batch_size: int, *, seed: int, epoch: int, rank: int = 0, world: int = 1, training: bool = True
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Images (float32) and labels, on the device, ``batch_size`` for each process.

        In training, order and augmentation depend on (seed, epoch, rank) alone: resuming at an epoch is exact.
        All processes get as many batches of the same sizes; the few examples that cannot be dealt out evenly,
        or would leave a process with one (batch norm needs two), wait for another epoch's order. In
        evaluation, the order is fixed and every example comes once, in one of the processes.
        """


@dataclass(frozen=True, eq=False)
class Data:
    """A data set; ``note`` says what it really is, to be shown and recorded.

    ``fingerprint`` tells it from any other, and ``published`` whether it is the whole that was published under its
    name, before some of it was held out or left aside.
    """

    note: str
    fingerprint: str
    published: bool
    train: Split
    validation: Split | None
    test: Split
    shape: tuple[int, ...]
    classes: int
