"""The networks that are trained: the paper's, under any of its normalisations, and MLPs of any size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equinorm.models import Norm, cifar10_fc, cifar_nv, mnist_autoencoder, resnet18c

MLP_LAYERS = 10


@dataclass(frozen=True)
class Network:
    """A network of the paper, and what it is trained on here: noise, for time does not depend on the data."""

    label: str
    build: Callable[[Norm], nn.Module]
    shape: tuple[int, ...]
    classes: int | None  # None: it reconstructs its input
    batches: tuple[int, ...]
    is_large: bool = False  # a step takes seconds

    def data(self, batch: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(batch, *self.shape, generator=generator).to(device)
        if self.classes is None:
            return x, x
        return x, torch.randint(0, self.classes, (batch,), generator=generator).to(device)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy, or the squared error of a reconstruction."""
        return F.mse_loss(output, target) if self.classes is None else F.cross_entropy(output, target)


def _resnet(norm: Norm) -> nn.Module:
    return resnet18c(norm, final_bn=norm == "none")  # the paper's Baseline and ENorm end in a batch norm


def _cifar_nv(norm: Norm) -> nn.Module:
    return cifar_nv(norm, final_bn=norm == "none")


def _cifar_fc(norm: Norm) -> nn.Module:
    return cifar10_fc(11, norm)


def paper_networks(image: int = 224, batches: tuple[int, ...] = (16, 32, 64, 128, 256)) -> list[Network]:
    """ResNet-18 of type C on images of this size and these batches, and the small ones at the paper's batches."""
    return [
        Network("ResNet-18-C", _resnet, (3, image, image), 1000, batches, image > 100),
        Network("CIFAR-NV", _cifar_nv, (3, 28, 28), 10, (32, 128)),
        Network("CIFAR-10 FC, 11 layers", _cifar_fc, (3, 32, 32), 10, (32, 256)),
        Network("MNIST auto-encoder", mnist_autoencoder, (784,), None, (32, 256)),
    ]


def mlp(parameters: int, layers: int = MLP_LAYERS) -> tuple[nn.Module, tuple[int, ...]]:
    """A ReLU network of about so many parameters in square layers, and its input's shape."""
    width = max(2, round((parameters / layers) ** 0.5))
    return square_mlp(width, layers), (width,)


def square_mlp(width: int, layers: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    """``layers`` layers of width × width, He's initialisation."""
    modules: list[nn.Module] = []
    for _ in range(layers):
        layer = nn.Linear(width, width, dtype=dtype)
        nn.init.normal_(layer.weight, std=(2 / width) ** 0.5)
        modules += [layer, nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def count(model: nn.Module) -> int:
    """How many parameters a model has."""
    return sum(parameter.numel() for parameter in model.parameters())
