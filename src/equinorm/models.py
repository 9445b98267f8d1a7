"""The networks of the paper's experiments, each with the normalisations it is compared under.

Sources, and what they leave open (marked "ours"):

* ``mnist_autoencoder``, ``cifar10_fc``: the paper's sections "MNIST auto-encoder" and "CIFAR-10 Fully
  Connected". Ours: biases everywhere, the 30-dimensional code and the output linear and without a norm.
* ``cifar_nv``: Gitman & Ginsburg 2017 (arXiv 1709.08145): three 3×3 convolutions of 128 channels, max
  pooling, three of 256, max pooling, a 3×3 and a 1×1 convolution of 320, on 28×28 crops; NVIDIA published
  the same stack with OpenSeq2Seq. Ours: pooling is 3×3, stride 2, padding 1, and the classifier is a global
  average pool before one FC layer, the FC layer that the paper puts its last BatchNorm behind.
* ``resnet18c``, ``resnet50c``: ResNets of type C (He et al. 2015), every shortcut a learnt 1×1 convolution.
  ``resnet18``, ``resnet50``: type B, identity shortcuts but where the shape changes. Ours: bottleneck
  blocks stride in their 3×3 convolution; identity-initialised shortcuts that widen repeat their input
  channels (zero rows would be dead weights, and undefined under weight normalisation).

Convolutions have no bias (the paper's appendix on CNNs) unless ``bias=True``. Weights follow He's
initialisation, normal with variance 2 / fan_in, biases start at zero.

The paper cross-validates 20 groups for the auto-encoder, whose 250 channels they do not divide. Ours: such a layer
gets the greatest common divisor, here 10; where that is a single group, which would be layer normalisation, the number
is refused.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from equinorm.errors import ArgumentError

Norm = Literal["none", "bn", "gn", "wn", "wn+bn"]
ShortcutInit = Literal["default", "identity"]


Parts = list[tuple[str, nn.Module]]
Layer = nn.Linear | nn.Conv2d


def he_(layer: Layer) -> None:
    """He's initialisation, in place."""
    nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def identity_(layer: Layer) -> None:
    """The 1×1 convolution that copies its input, k times for k times as many output channels; in place."""
    nn.init.dirac_(layer.weight, groups=layer.weight.shape[0] // layer.weight.shape[1])
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


@dataclass(frozen=True)
class Normalization:
    """A normalisation scheme: what it does to a layer's weight, and what follows the layer."""

    norm: Norm = "none"
    groups: int = 32

    def __post_init__(self) -> None:
        if self.norm not in ("none", "bn", "gn", "wn", "wn+bn"):
            raise ArgumentError(f"norm={self.norm!r} is unknown: use none, bn, gn, wn or wn+bn")
        if self.groups < 1:
            raise ArgumentError(f"groups={self.groups}: must be at least 1")

    def weight(self, layer: Layer) -> nn.Module:
        """The layer, its weight in polar form where the scheme is weight normalisation."""
        return weight_norm(layer) if self.norm.startswith("wn") else layer

    def after(self, layer: Layer) -> list[nn.Module]:
        """The activation norm that follows a layer, if any."""
        channels = layer.weight.shape[0]
        if self.norm.endswith("bn"):
            flat = isinstance(layer, nn.Linear)
            return [nn.BatchNorm1d(channels) if flat else nn.BatchNorm2d(channels)]
        if self.norm == "gn":
            fitting = math.gcd(self.groups, channels)
            if fitting == 1 < self.groups:
                raise ArgumentError(f"groups={self.groups} does not divide a layer of {channels} channels")
            return [nn.GroupNorm(fitting, channels)]
        return []

    def layer(self, name: str, layer: Layer, init: Callable[[Layer], None] = he_) -> Parts:
        """The initialised layer and its norm, named after it."""
        init(layer)
        norms = self.after(layer)
        return [(name, self.weight(layer)), *((f"{name}_norm", norm) for norm in norms)]


def _sequential(parts: Parts) -> nn.Sequential:
    return nn.Sequential(OrderedDict(parts))


def _classifier(scheme: Normalization, features: int, classes: int, final_bn: bool) -> Parts:
    """Global average pool, FC layer, and behind it the BatchNorm of the paper's Baseline and ENorm."""
    fc = nn.Linear(features, classes)
    he_(fc)
    parts: Parts = [("pool", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten())]
    parts.append(("fc", scheme.weight(fc)))
    return [*parts, ("final_bn", nn.BatchNorm1d(classes))] if final_bn else parts


def _fully_connected(widths: list[int], linear: set[int], scheme: Normalization) -> nn.Sequential:
    """FC layers of the given widths; norm and ReLU behind each but those in ``linear``."""
    parts: Parts = [("flatten", nn.Flatten())]
    for k, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        layer = nn.Linear(inputs, outputs)
        if k in linear:
            he_(layer)
            parts.append((f"fc{k}", scheme.weight(layer)))
        else:
            parts += [*scheme.layer(f"fc{k}", layer), (f"relu{k}", nn.ReLU())]
    return _sequential(parts)


def mnist_autoencoder(norm: Norm = "none", groups: int = 10) -> nn.Sequential:
    """784-1000-500-250-30 and back; input (N, 784) or (N, 1, 28, 28), output (N, 784)."""
    half = [784, 1000, 500, 250, 30]
    return _fully_connected(half + half[-2::-1], {4, 8}, Normalization(norm, groups))


def cifar10_fc(depth: int = 5, norm: Norm = "none", groups: int = 20, num_classes: int = 10) -> nn.Sequential:
    """3072×500, ``depth`` (the paper's p) layers of 500×500, 500×10."""
    if depth < 0:
        raise ArgumentError(f"depth={depth}: the number of 500×500 layers cannot be negative")
    widths = [3072] + [500] * (depth + 1) + [num_classes]
    return _fully_connected(widths, {depth + 2}, Normalization(norm, groups))


CIFAR_NV = ((3, 128), (3, 128), (3, 128), None, (3, 256), (3, 256), (3, 256), None, (3, 320), (1, 320))
"""(kernel, channels) of each convolution of CIFAR-NV; None is a max pooling."""


def cifar_nv(
    norm: Norm = "none", groups: int = 32, final_bn: bool = False, bias: bool = False, num_classes: int = 10
) -> nn.Sequential:
    """CIFAR-NV on 28×28 crops."""
    scheme = Normalization(norm, groups)
    parts: Parts = []
    channels = 3
    for k, spec in enumerate(CIFAR_NV, start=1):
        if spec is None:
            parts.append((f"pool{k}", nn.MaxPool2d(3, 2, 1)))
            continue
        kernel, width = spec
        layer = nn.Conv2d(channels, width, kernel, padding=kernel // 2, bias=bias)
        parts += [*scheme.layer(f"conv{k}", layer), (f"relu{k}", nn.ReLU())]
        channels = width
    return _sequential(parts + _classifier(scheme, channels, num_classes, final_bn))


@dataclass(frozen=True)
class Block:
    """The convolutions of a residual block: (kernel, multiple of the block's width, carries the stride)."""

    convs: tuple[tuple[int, int, bool], ...]


BASIC = Block(((3, 1, True), (3, 1, False)))
BOTTLENECK = Block(((1, 1, False), (3, 1, True), (1, 4, False)))


class Residual(nn.Module):
    """relu(body(x) + shortcut(x))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return out


@dataclass(frozen=True)
class ResNetPlan:
    """Everything that the ResNets differ in."""

    block: Block
    depths: tuple[int, ...]
    learnt_shortcuts: bool  # type C: every shortcut is a 1×1 convolution
    scheme: Normalization
    shortcut_init: ShortcutInit
    bias: bool

    def shortcut(self, inputs: int, outputs: int, stride: int) -> nn.Module:
        if not self.learnt_shortcuts and inputs == outputs and stride == 1:
            return nn.Identity()
        conv = nn.Conv2d(inputs, outputs, 1, stride, bias=self.bias)
        init = identity_ if self.shortcut_init == "identity" else he_
        return _sequential(self.scheme.layer("conv", conv, init))

    def residual(self, inputs: int, width: int, stride: int) -> tuple[nn.Module, int]:
        parts: Parts = []
        channels = inputs
        for k, (kernel, multiple, strided) in enumerate(self.block.convs, start=1):
            if k > 1:
                parts.append((f"relu{k - 1}", nn.ReLU()))
            conv = nn.Conv2d(
                channels, width * multiple, kernel, stride if strided else 1, kernel // 2, bias=self.bias
            )
            parts += self.scheme.layer(f"conv{k}", conv)
            channels = width * multiple
        return Residual(_sequential(parts), self.shortcut(inputs, channels, stride)), channels


def _resnet(plan: ResNetPlan, num_classes: int, final_bn: bool) -> nn.Sequential:
    stem = plan.scheme.layer("conv1", nn.Conv2d(3, 64, 7, 2, 3, bias=plan.bias))
    parts = [*stem, ("relu1", nn.ReLU()), ("maxpool", nn.MaxPool2d(3, 2, 1))]
    channels = 64
    for stage, depth in enumerate(plan.depths):
        blocks = []
        for index in range(depth):
            block, channels = plan.residual(channels, 64 << stage, 2 if stage > 0 and index == 0 else 1)
            blocks.append((str(index + 1), block))
        parts.append((f"stage{stage + 1}", _sequential(blocks)))
    return _sequential(parts + _classifier(plan.scheme, channels, num_classes, final_bn))


def _family(block: Block, depths: tuple[int, ...], learnt: bool, doc: str) -> Callable[..., nn.Sequential]:
    def build(
        norm: Norm = "none",
        groups: int = 32,
        final_bn: bool = False,
        shortcut_init: ShortcutInit = "default",
        bias: bool = False,
        num_classes: int = 1000,
    ) -> nn.Sequential:
        if shortcut_init not in ("default", "identity"):
            raise ArgumentError(f"shortcut_init={shortcut_init!r} is unknown: use default or identity")
        scheme = Normalization(norm, groups)
        plan = ResNetPlan(block, depths, learnt, scheme, shortcut_init, bias)
        return _resnet(plan, num_classes, final_bn)

    build.__doc__ = doc
    return build


resnet18c = _family(BASIC, (2, 2, 2, 2), True, "ResNet-18 of type C: every shortcut is learnt.")
resnet50c = _family(BOTTLENECK, (3, 4, 6, 3), True, "ResNet-50 of type C: every shortcut is learnt.")
resnet18 = _family(BASIC, (2, 2, 2, 2), False, "ResNet-18 with identity shortcuts (type B).")
resnet50 = _family(BOTTLENECK, (3, 4, 6, 3), False, "ResNet-50 with identity shortcuts (type B).")

MODELS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "mnist_autoencoder": (mnist_autoencoder, (1, 784)),
    "cifar10_fc": (cifar10_fc, (1, 3, 32, 32)),
    "cifar_nv": (cifar_nv, (1, 3, 28, 28)),
    "resnet18c": (resnet18c, (1, 3, 224, 224)),
    "resnet50c": (resnet50c, (1, 3, 224, 224)),
    "resnet18": (resnet18, (1, 3, 224, 224)),
    "resnet50": (resnet50, (1, 3, 224, 224)),
}
"""Every network by name, with the shape of one input."""
