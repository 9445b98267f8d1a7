"""MNIST from its IDX files."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from equinorm.errors import ArgumentError
from equinorm.experiments.data import download, files
from equinorm.experiments.data.files import File
from equinorm.experiments.data.memory import Images

FOLDERS = ("", "MNIST/raw", "mnist/raw", "MNIST", "mnist", "raw")
SPLITS = (
    (
        File("train-images-idx3-ubyte", 60_000, "6bbc9ace898e44ae57da46a324031adb"),
        File("train-labels-idx1-ubyte", 60_000, "a25bea736e30d166cdddb491f175f624"),
    ),
    (
        File("t10k-images-idx3-ubyte", 10_000, "2646ac647ad5339dbf082846283269ea"),
        File("t10k-labels-idx1-ubyte", 10_000, "27ae3e4e09519cfbb04c329615203637"),
    ),
)
"""Images and labels, for training and for testing."""
ALL = tuple(file for split in SPLITS for file in split)
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
SHA256 = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
"""Of the gzipped files."""


def read(data_dir: Path) -> tuple[Images, Images]:
    """Training and test images."""
    paths = files.require_all(data_dir, FOLDERS, ALL)
    train, test = (_read_split(paths, *split) for split in SPLITS)
    return train, test


def fetch(data_dir: Path) -> None:
    """Download what is missing, as ``MNIST/raw/*.gz``."""
    found = files.find(data_dir, FOLDERS, ALL)
    for name, sha256 in SHA256.items():
        if name not in found:
            urls = [f"{mirror}{name}.gz" for mirror in MIRRORS]
            download.fetch(urls, sha256, data_dir / "MNIST" / "raw" / f"{name}.gz")


def _read_split(paths: dict[str, Path], image_file: File, label_file: File) -> Images:
    pixels = _read_idx(paths[image_file.name], image_file, (28, 28))
    labels = _read_idx(paths[label_file.name], label_file, ())
    if len(pixels) != len(labels):
        raise ArgumentError(
            f"{paths[image_file.name]}: has {len(pixels)} images, and {label_file.name} {len(labels)} labels"
        )
    if labels.max() > 9:
        raise ArgumentError(f"{paths[label_file.name]}: has the label {labels.max()}; MNIST's are 0 to 9")
    return Images(pixels.unsqueeze(1), labels.long())


def _read_idx(path: Path, file: File, shape: tuple[int, ...]) -> Tensor:
    """An IDX file of bytes: magic number 8 · 256 + number of dimensions, the sizes, the content."""
    content = files.read(path)
    dimensions = 1 + len(shape)
    header = [int.from_bytes(content[4 * k : 4 * k + 4], "big") for k in range(1 + dimensions)]
    start = 4 * len(header)
    if len(content) < start or header[0] != 0x0800 + dimensions:
        raise ArgumentError(f"{path}: is not an IDX file of bytes in {dimensions} dimensions; --download")
    count, *found = header[1:]
    if tuple(found) != shape or not count:
        raise ArgumentError(
            f"{path}: has examples of shape {tuple(found)}, {count} of them; MNIST's are {shape}"
        )
    if len(content) != start + count * math.prod(shape):
        raise ArgumentError(
            f"{path}: is truncated or damaged: {len(content)} bytes instead of "
            f"{start + count * math.prod(shape)}; delete it and --download"
        )
    files.check(path, content, count, file)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).view(count, *shape)
