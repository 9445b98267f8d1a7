"""Images held in memory as bytes, and cropped, flipped and normalised a batch at a time on their device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equinorm.errors import ArgumentError
from equinorm.experiments.data import order
from equinorm.experiments.data.interface import Augmentation


@dataclass(frozen=True, eq=False)
class Images:
    """Bytes of images (N, channels, height, width) and their classes (N,)."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, index: Tensor) -> Images:
        """The images of the given indices; no copy if they are all, in order."""
        if len(index) == len(self):
            return self
        index = index.to(self.labels.device)
        return Images(self.pixels[index], self.labels[index])

    def to(self, device: torch.device | str) -> Images:
        """The same images on a device."""
        return Images(self.pixels.to(device), self.labels.to(device))


@dataclass(frozen=True, eq=False)
class Normalize:
    """Subtract the mean and divide by the standard deviation, channel by channel."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, images: Images) -> Normalize:
        """The statistics of images over all examples and positions, exact: through histograms."""
        values = torch.arange(256, dtype=torch.float64)
        counts = torch.stack(
            [torch.bincount(channel.flatten(), minlength=256) for channel in images.pixels.unbind(1)]
        )
        shares = counts.cpu().double() / counts.cpu().sum(1, keepdim=True)
        mean = shares @ values
        std = (shares * (values - mean[:, None]).square()).sum(1).sqrt()
        return cls.per_channel(mean, torch.where(std > 0, std, 1.0), images.pixels.device)

    @classmethod
    def per_channel(cls, mean: Tensor, std: Tensor, device: torch.device | str) -> Normalize:
        """From one number per channel, in units of byte values."""
        return cls(mean.float().view(-1, 1, 1).to(device), std.float().view(-1, 1, 1).to(device))

    def __call__(self, pixels: Tensor) -> Tensor:
        return pixels.float().sub_(self.mean).div_(self.std)


@dataclass(frozen=True, eq=False)
class MemorySplit:
    """A ``Split`` of images in memory. Nothing is done per example in Python."""

    images: Images
    normalize: Normalize
    augmentation: Augmentation

    def __post_init__(self) -> None:
        height, width = self.images.pixels.shape[-2:]
        crop = self.augmentation.crop
        if crop is not None and not 1 <= crop <= min(height, width):
            raise ArgumentError(f"crop={crop}: the images are {height}×{width}")

    @property
    def size(self) -> int:
        """The number of images."""
        return len(self.images)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image as it comes out."""
        channels, height, width = self.images.pixels.shape[1:]
        crop = self.augmentation.crop
        return (channels, crop or height, crop or width)

    def select(self, index: Tensor) -> MemorySplit:
        """The images of the given indices, with the same statistics."""
        return replace(self, images=self.images.select(index))

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
            return self._training(batch_size, seed, epoch, rank, world)
        return self._evaluation(batch_size, rank, world)

    def _training(
        self, batch_size: int, seed: int, epoch: int, rank: int, world: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        index = order.training_order(self.size, batch_size, seed, epoch, rank, world)
        draws = self._draws(len(index), order.generator("augmentation", seed, epoch, rank))
        device = self.images.labels.device
        streams = (index.to(device), *(draw.to(device) for draw in draws))
        for chosen, top, left, flip in zip(*(torch.split(s, batch_size) for s in streams), strict=True):
            yield self.normalize(self._augmented(chosen, top, left, flip)), self.images.labels[chosen]

    def _draws(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """The whole epoch's random crops and flips: drawn on the CPU, so that every device gets the same."""
        height, width = self.images.pixels.shape[-2:]
        crop = self.augmentation.crop
        top = torch.randint((height - crop if crop else 0) + 1, (count,), generator=generator)
        left = torch.randint((width - crop if crop else 0) + 1, (count,), generator=generator)
        return top, left, torch.rand(count, generator=generator) < 0.5

    def _augmented(self, chosen: Tensor, top: Tensor, left: Tensor, flip: Tensor) -> Tensor:
        pixels, crop = self.images.pixels, self.augmentation.crop
        # A view of every crop of every image; indexing it copies only those chosen.
        batch = pixels.unfold(2, crop, 1).unfold(3, crop, 1)[chosen, :, top, left] if crop else pixels[chosen]
        return (
            torch.where(flip[:, None, None, None], batch.flip(-1), batch) if self.augmentation.flip else batch
        )

    def _evaluation(self, batch_size: int, rank: int, world: int) -> Iterator[tuple[Tensor, Tensor]]:
        pixels, labels = self.images.pixels[rank::world], self.images.labels[rank::world]
        crop = self.augmentation.crop
        if crop is not None:
            top, left = ((size - crop) // 2 for size in pixels.shape[-2:])
            pixels = pixels[:, :, top : top + crop, left : left + crop]
        for start in range(0, len(labels), batch_size):
            here = slice(start, start + batch_size)
            yield self.normalize(pixels[here]), labels[here]
