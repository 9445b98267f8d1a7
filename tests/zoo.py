"""The zoo: every classification model of torchvision, one model of each timm family, small Hugging Face models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import hf_models
import timm
import torch
import vision  # noqa: F401  (before torchvision)
from torch import Tensor, nn
from torchvision import models as torchvision_models
from zoo_table import TIMM


@dataclass(frozen=True)
class Entry:
    """A model and an input for it, made when asked for."""

    source: str
    name: str
    build: Callable[[], tuple[nn.Module, Tensor]]


def torchvision_model(name: str, size: int = 224, batch: int = 1) -> tuple[nn.Module, Tensor]:
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    size = max(size, 299) if name == "inception_v3" else size
    return torchvision_models.get_model(name, weights=None, **options), _images(size, batch)


def timm_model(name: str, size: int, batch: int = 1) -> tuple[nn.Module, Tensor]:
    return timm.create_model(name), _images(size, batch)


def hf_model(name: str) -> tuple[nn.Module, Tensor]:
    model = hf_models.MODELS[name]().double()
    return model, hf_models.inputs(name)


def _images(size: int, batch: int) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(11))


def entries() -> Iterator[Entry]:
    for name in torchvision_models.list_models(module=torchvision_models):
        yield Entry("torchvision", name, lambda name=name: torchvision_model(name))
    for row in TIMM:
        yield Entry("timm", row.name, lambda row=row: timm_model(row.name, row.size))
    for name in hf_models.MODELS:
        yield Entry("Hugging Face (small configurations)", name, lambda name=name: hf_model(name))
