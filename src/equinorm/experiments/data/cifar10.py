"""CIFAR-10 from its binary version: records of a label and 3×32×32 bytes."""

from __future__ import annotations

from pathlib import Path

import torch

from equinorm.errors import ArgumentError
from equinorm.experiments.data import download, files
from equinorm.experiments.data.files import File
from equinorm.experiments.data.memory import Images

FOLDER = "cifar-10-batches-bin"
FOLDERS = ("", FOLDER)
TRAIN = (
    File("data_batch_1.bin", 10_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
    File("data_batch_2.bin", 10_000, "5ea93a67294ea407fff1d09f752e9692"),
    File("data_batch_3.bin", 10_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
    File("data_batch_4.bin", 10_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
    File("data_batch_5.bin", 10_000, "53f37980c15c3d472c316c40844f3f0d"),
)
TEST = (File("test_batch.bin", 10_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),)
ARCHIVE = "cifar-10-binary.tar.gz"
SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
MIRRORS = (
    "https://www.cs.toronto.edu/~kriz/",
    "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/",
)
SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32


def read(data_dir: Path) -> tuple[Images, Images]:
    """Training and test images."""
    paths = files.require_all(data_dir, FOLDERS, TRAIN + TEST)
    train, test = (_read_batches(paths, batches) for batches in (TRAIN, TEST))
    return train, test


def fetch(data_dir: Path) -> None:
    """Download the archive if a file is missing, and extract what is read from it."""
    wanted = TRAIN + TEST
    if len(files.find(data_dir, FOLDERS, wanted)) < len(wanted):
        members = {f"{FOLDER}/{file.name}": data_dir / FOLDER / file.name for file in wanted}
        urls = [mirror + ARCHIVE for mirror in MIRRORS]
        download.fetch_archive(urls, SHA256, data_dir / ARCHIVE, members)


def _read_batches(paths: dict[str, Path], batches: tuple[File, ...]) -> Images:
    parts = [_read_batch(paths[file.name], file) for file in batches]
    return Images(torch.cat([p.pixels for p in parts]), torch.cat([p.labels for p in parts]))


def _read_batch(path: Path, file: File) -> Images:
    content = files.read(path)
    count, excess = divmod(len(content), RECORD)
    if excess or not count:
        raise ArgumentError(
            f"{path}: is truncated or damaged: {len(content)} bytes are not a number of records of {RECORD}; "
            "delete it and --download"
        )
    files.check(path, content, count, file)
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(count, RECORD)
    if records[:, 0].max() > 9:
        raise ArgumentError(f"{path}: has the label {records[:, 0].max()}; CIFAR-10's are 0 to 9")
    return Images(records[:, 1:].reshape(count, *SHAPE), records[:, 0].long())
