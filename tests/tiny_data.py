"""Small data sets in the formats of the real ones, written by the tests."""

import gzip
import struct
from pathlib import Path

import torch
from torch import Tensor


def random_images(count: int, *shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random bytes and labels; every class occurs if there are ten or more."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (count, *shape), dtype=torch.uint8, generator=generator)
    return pixels, torch.arange(count, dtype=torch.uint8) % 10


def idx(values: Tensor) -> bytes:
    """An IDX file of bytes."""
    return struct.pack(f">{1 + values.dim()}I", 0x0800 + values.dim(), *values.shape) + raw(values)


def raw(values: Tensor) -> bytes:
    return bytes(values.flatten().tolist())


def write(path: Path, content: bytes, gz: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if gz:
        path, content = path.with_name(path.name + ".gz"), gzip.compress(content)
    path.write_bytes(content)
    return path


def write_mnist(folder: Path, train: int = 20, test: int = 10, gz: bool = False, seed: int = 0) -> None:
    for prefix, count in (("train", train), ("t10k", test)):
        pixels, labels = random_images(count, 28, 28, seed=seed)
        write(folder / f"{prefix}-images-idx3-ubyte", idx(pixels), gz)
        write(folder / f"{prefix}-labels-idx1-ubyte", idx(labels), gz)


def cifar_records(pixels: Tensor, labels: Tensor) -> bytes:
    return raw(torch.cat([labels[:, None], pixels.flatten(1)], 1))


def write_cifar10(folder: Path, per_file: int = 4, test: int = 10, gz: bool = False) -> None:
    for k in range(1, 6):
        records = cifar_records(*random_images(per_file, 3, 32, 32, seed=k))
        write(folder / f"data_batch_{k}.bin", records, gz)
    write(folder / "test_batch.bin", cifar_records(*random_images(test, 3, 32, 32, seed=6)), gz)


def write_image_folder(folder: Path, classes: int = 2, train: int = 4, test: int = 2, size: int = 40) -> None:
    """JPEGs of ``train`` and ``test`` images per class."""
    from PIL import Image

    for part, count in (("train", train), ("val", test)):
        for label in range(classes):
            pixels, _ = random_images(count, size, size + 8, 3, seed=label)
            target = folder / part / f"class{label}"
            target.mkdir(parents=True)
            for k, image in enumerate(pixels):
                Image.frombytes("RGB", (size + 8, size), raw(image)).save(target / f"{k}.jpeg")
