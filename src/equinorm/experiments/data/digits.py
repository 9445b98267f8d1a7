"""scikit-learn's digits, real scans of 8×8: what the recipes run on where no data directory is given."""

from __future__ import annotations

import torch
from torch.nn import functional

from equinorm.experiments.data.memory import Images
from equinorm.experiments.data.order import generator
from equinorm.experiments.extra import require

TEST = 300
"""Of 1797 images."""


def read(channels: int, size: int) -> tuple[Images, Images]:
    """Training and test images, always the same ones, enlarged and repeated over the channels."""
    digits = require("sklearn.datasets").load_digits()
    scans = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) * (255 / 16)
    large = functional.interpolate(scans, (size, size), mode="bilinear", align_corners=False)
    pixels = large.round().byte().expand(-1, channels, -1, -1).contiguous()
    images = Images(pixels, torch.tensor(digits.target, dtype=torch.int64))
    shuffled = torch.randperm(len(images), generator=generator("digits"))
    return images.select(shuffled[TEST:]), images.select(shuffled[:TEST])
