"""Small networks trained on scikit-learn's handwritten digits (offline, 1797 images of 8×8)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equinorm.bench.families import Build, Case, Dense, Residual, random_chain
from equinorm.errors import EquinormError

PIXELS, BATCH = 64, 128


def trained_cases(depths: tuple[int, ...], epochs: int) -> Iterator[Case]:
    """Chains of every depth and graphs, with 64 channels per layer."""
    builds: dict[str, Build] = {f"{d} layers": partial(random_chain, d, PIXELS) for d in depths}
    builds["residual, learnt shortcuts"] = partial(Residual, 8, PIXELS, True)
    builds["residual, identity shortcuts"] = partial(Residual, 8, PIXELS, False)
    builds["dense"] = partial(Dense, 8, PIXELS)
    for label, build in builds.items():
        yield Case(f"trained, {label}", "trained", partial(trained, build, epochs), PIXELS)


def digits() -> tuple[Tensor, Tensor]:
    """Standardised images and their labels."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError:
        raise EquinormError(
            'trained networks need scikit-learn: pip install "equinorm[experiments]"'
        ) from None
    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(images).float()
    return (x - x.mean()) / x.std(), torch.from_numpy(labels).long()


def trained(build: Build, epochs: int) -> nn.Module:
    """The network after so many epochs of Adam; its 64 outputs are read as classes, of which 10 occur."""
    x, y = digits()
    model = build()
    order = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        shuffled = torch.randperm(len(y), generator=order)
        for batch in torch.split(shuffled, BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """On the training images: that it has learnt at all."""
    x, y = digits()
    return float((model(x).argmax(1) == y).float().mean())
