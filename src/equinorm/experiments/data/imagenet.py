"""ImageNet, or any two folders of images by class, through torchvision and worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from equinorm.errors import ArgumentError, EquinormError
from equinorm.experiments.data import order
from equinorm.experiments.data.digest import of_files
from equinorm.experiments.data.interface import Augmentation
from equinorm.experiments.data.memory import Normalize
from equinorm.experiments.data.partition import Whole
from equinorm.experiments.extra import require

COMPLETE = 1_281_167
"""Training images of ImageNet 2012."""
CROP = 224
RESIZE = 256 / 224
"""The shorter side is resized to so many times the crop for evaluation."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's training images, as torchvision publishes them, in units of 255."""

Sample = tuple[Tensor, int] | EquinormError


@dataclass(frozen=True, eq=False)
class Decoded(Dataset[Sample]):
    """One image by its index, decoded, cropped and flipped, as bytes.

    The random numbers of an example depend on the epoch's seed and on its index alone, not on the worker process
    that happens to decode it.
    """

    paths: Sequence[tuple[str, int]]
    load: Callable[[str], Any]
    transform: Callable[[Any], Tensor]
    epoch_seed: int

    def __getitem__(self, index: int) -> Sample:
        path, label = self.paths[index]
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed: it would reseed GPUs as well, which fork_rng does not restore here.
            torch.default_generator.manual_seed(order.seed_of("image", self.epoch_seed, index))
            try:
                return self.transform(self.load(path)), label
            except (OSError, SyntaxError) as error:  # PIL's; raised in a worker, it would be a traceback
                return EquinormError(f"{path}: cannot be read as an image ({error})")


def _collate(samples: list[Sample]) -> tuple[Tensor, Tensor] | EquinormError:
    good = []
    for sample in samples:
        if isinstance(sample, EquinormError):
            return sample
        good.append(sample)
    return torch.stack([image for image, _ in good]), torch.tensor([label for _, label in good])


@dataclass(frozen=True, eq=False)
class FolderSplit:
    """A ``Split`` of image files."""

    paths: Sequence[tuple[str, int]]
    load: Callable[[str], Any]
    augmentation: Augmentation
    device: torch.device
    workers: int

    @property
    def size(self) -> int:
        """The number of images."""
        return len(self.paths)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image as it comes out."""
        crop = self.augmentation.crop or CROP
        return (3, crop, crop)

    def select(self, index: Tensor) -> FolderSplit:
        """The images of the given indices."""
        return replace(self, paths=[self.paths[k] for k in index.tolist()])

    def steps(self, batch_size: int, world: int = 1, training: bool = True) -> int:
        """See ``Split.steps``."""
        count = order.training_steps if training else order.evaluation_steps
        return count(self.size, batch_size, world)

    def batches(
        self, batch_size: int, *, seed: int, epoch: int, rank: int = 0, world: int = 1, training: bool = True
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """See ``Split.batches``."""
        order.check(batch_size, rank, world)
        if training:
            index = order.training_order(self.size, batch_size, seed, epoch, rank, world)
        else:
            index = torch.arange(rank, self.size, world)
        transform = (
            _training_transform(self.augmentation) if training else _evaluation_transform(self.augmentation)
        )
        decoded = Decoded(self.paths, self.load, transform, order.seed_of("augmentation", seed, epoch))
        return self._stream(decoded, [batch.tolist() for batch in torch.split(index, batch_size)])

    def _stream(self, decoded: Decoded, batches: list[list[int]]) -> Iterator[tuple[Tensor, Tensor]]:
        on_gpu = self.device.type == "cuda"
        loader = DataLoader(
            decoded,
            batch_sampler=batches,
            num_workers=self.workers,
            collate_fn=_collate,
            pin_memory=on_gpu,
            generator=torch.Generator(),  # or it would draw from, and so move, the global random state
        )
        normalize = Normalize.per_channel(255 * torch.tensor(MEAN), 255 * torch.tensor(STD), self.device)
        for batch in loader:
            if isinstance(batch, EquinormError):
                raise batch
            images, labels = (tensor.to(self.device, non_blocking=on_gpu) for tensor in batch)
            yield normalize(images), labels


def _training_transform(augmentation: Augmentation) -> Callable[[Any], Tensor]:
    """Szegedy et al. 2014: a crop of 8 % to 100 % of the area and a ratio of 3/4 to 4/3, resized; and flips."""
    v2 = require("torchvision.transforms.v2")
    crop = v2.RandomResizedCrop(augmentation.crop or CROP, antialias=True)
    flip = [v2.RandomHorizontalFlip()] if augmentation.flip else []
    transform: Callable[[Any], Tensor] = v2.Compose([crop, *flip, v2.PILToTensor()])
    return transform


def _evaluation_transform(augmentation: Augmentation) -> Callable[[Any], Tensor]:
    """The shorter side resized to 256, the centre 224×224, or in proportion for other crops."""
    v2 = require("torchvision.transforms.v2")
    crop = augmentation.crop or CROP
    steps = [v2.Resize(round(RESIZE * crop), antialias=True), v2.CenterCrop(crop), v2.PILToTensor()]
    transform: Callable[[Any], Tensor] = v2.Compose(steps)
    return transform


def read(
    data_dir: Path | None, augmentation: Augmentation, device: torch.device | str, workers: int
) -> Whole:
    """``data_dir/train`` and ``data_dir/val``, each with one folder of images per class."""
    train, test = (_folder(data_dir, part) for part in ("train", "val"))
    if train.classes != test.classes:
        odd = min(set(train.classes) ^ set(test.classes))
        raise ArgumentError(
            f"{data_dir}: class {odd} is in one of train/ and val/ only; they must be the same"
        )
    title = "ImageNet" if len(train) == COMPLETE else f"Image folders of {len(train.classes)} classes"

    def split(folder: Any) -> FolderSplit:
        return FolderSplit(folder.samples, folder.loader, augmentation, torch.device(device), workers)

    assert data_dir is not None  # _folder has seen it
    digest = of_files(data_dir, [path for path, _ in (*train.samples, *test.samples)])
    return Whole(title, COMPLETE, split(train), split(test), len(train.classes), digest)


def _folder(data_dir: Path | None, part: str) -> Any:
    if data_dir is None:
        raise ArgumentError(
            "--data-dir: give ImageNet as a folder that holds train/ and val/; nothing stands in for it"
        )
    folder = data_dir / part
    if not folder.is_dir():
        raise ArgumentError(
            f"{folder}: no such folder; ImageNet is read from {data_dir}/train and {data_dir}/val"
        )
    try:
        return require("torchvision.datasets").ImageFolder(folder)
    except FileNotFoundError as error:  # no classes, or a class without images
        raise ArgumentError(f"{folder}: {str(error).splitlines()[0]}") from None
