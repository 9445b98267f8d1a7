"""``load``: a data set by name, from a folder, downloaded, or in its place scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from equinorm.errors import ArgumentError
from equinorm.experiments.data import cifar10, digits, imagenet, mnist
from equinorm.experiments.data.digest import of_images
from equinorm.experiments.data.interface import PLAIN, Augmentation, Data
from equinorm.experiments.data.memory import Images, MemorySplit, Normalize
from equinorm.experiments.data.partition import Whole, divide


@dataclass(frozen=True)
class Source:
    """A data set that fits into memory."""

    title: str
    complete: int  # training examples as published
    shape: tuple[int, int]  # channels and size of its images, for a stand-in
    read: Callable[[Path], tuple[Images, Images]]
    fetch: Callable[[Path], None]


SOURCES = {
    "mnist": Source("MNIST", 60_000, (1, 28), mnist.read, mnist.fetch),
    "cifar10": Source("CIFAR-10", 50_000, (3, 32), cifar10.read, cifar10.fetch),
}
CLASSES = 10
DATASETS = (*SOURCES, "imagenet")


def load(
    dataset: str,
    data_dir: Path | None,
    *,
    augmentation: Augmentation = PLAIN,
    validation: int = 0,
    limit: int | None = None,
    device: torch.device | str = "cpu",
    download: bool = False,
    workers: int = 4,
    seed: int = 0,
) -> Data:
    """Load ``mnist``, ``cifar10`` or ``imagenet``, with the mean and deviation of all its training images.

    Args:
        dataset: which; without ``data_dir``, MNIST and CIFAR-10 are replaced by enlarged digits.
        data_dir: where the files are, or are downloaded to.
        augmentation: crops and flips.
        validation: how many training examples to hold out, chosen by ``seed`` (the same share of a data set
            that is smaller than the published one).
        limit: use only so many training examples, and the same share of the others.
        device: where batches are made, and MNIST and CIFAR-10 are held.
        download: fetch what is missing into ``data_dir`` first.
        workers: processes that decode images (ImageNet).
        seed: of the choices by ``validation`` and ``limit``.
    """
    whole = _whole(dataset, data_dir, augmentation, device, download, workers)
    return divide(whole, validation=validation, limit=limit, seed=seed)


def fingerprint(dataset: str, data_dir: Path | None, download: bool = False) -> str:
    """Of the data that ``load`` would load; what is missing or damaged is said as there."""
    return _whole(dataset, data_dir, PLAIN, "cpu", download, workers=0).fingerprint


def _whole(
    dataset: str,
    data_dir: Path | None,
    augmentation: Augmentation,
    device: torch.device | str,
    download: bool,
    workers: int,
) -> Whole:
    if dataset not in DATASETS:
        raise ArgumentError(f"dataset={dataset!r} is unknown: use {', '.join(DATASETS)}")
    if download and data_dir is None:
        raise ArgumentError("download: give a data directory to download into (--data-dir)")
    if dataset == "imagenet":
        if download:
            raise ArgumentError("download: ImageNet cannot be fetched without an account at image-net.org")
        return imagenet.read(data_dir, augmentation, device, workers)
    train, test, title = _images(SOURCES[dataset], data_dir, download)
    digest = of_images(train, test)
    train, test = train.to(device), test.to(device)
    normalize = Normalize.of(train)
    training, testing = (MemorySplit(images, normalize, augmentation) for images in (train, test))
    return Whole(title, SOURCES[dataset].complete, training, testing, CLASSES, digest)


def _images(source: Source, data_dir: Path | None, download: bool) -> tuple[Images, Images, str]:
    """Training and test images, and what they are."""
    if data_dir is None:
        channels, size = source.shape
        stand_in = f"scikit-learn's digits, enlarged to {channels}×{size}×{size}, in place of {source.title}"
        return *digits.read(channels, size), f"{stand_in} (no --data-dir given)"
    if download:
        source.fetch(data_dir)
    train, test = source.read(data_dir)
    excerpt = "" if len(train) == source.complete else " (not the published files)"
    return train, test, source.title + excerpt
