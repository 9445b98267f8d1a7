"""Random small networks: directed acyclic graphs of the operators whose symmetries we know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

Choose = Callable[[Sequence[Any]], Any]
INPUT = (4, 6, 6)
CLASSES = 3


class Add(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


class Cat(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, b], 1)


class Shift(nn.Module):
    """An additive parameter per channel."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(shape[0], *[1] * (len(shape) - 1)))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


class Net(nn.Module):
    """Runs ``steps``: (layer's number, earlier values that it reads); reads out the last two values."""

    def __init__(
        self, layers: list[nn.Module], steps: list[tuple[int, tuple[int, ...]]], features: int
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.steps = steps
        self.head = nn.Linear(features, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for layer, sources in self.steps:
            values.append(self.layers[layer](*(values[s] for s in sources)))
        return self.head(torch.cat([v.flatten(1) for v in values[-2:]], 1))


@dataclass
class Growth:
    """A network under construction: the layers so far, and the shape of every value."""

    choose: Choose
    layers: list[nn.Module] = field(default_factory=list)
    steps: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=lambda: [INPUT])

    def grow(self) -> None:
        """One more step, on one of the last three values."""
        last = len(self.shapes)
        source = self.choose(range(max(0, last - 3), last))
        shape = self.shapes[source]
        joins = [s for s in range(1, last) if s != source and self._joinable(shape, self.shapes[s])]
        if joins and self.choose([False, False, True]):
            other = self.choose(joins)
            same = self.shapes[other] == shape
            self._append(Add() if same and self.choose([True, False]) else Cat(), (source, other))
            return
        shared = [layer for layer, sources in self.steps if [self.shapes[s] for s in sources] == [shape]]
        if shared and self.choose([False, False, False, True]):
            self._step(self.choose(shared), (source,))
            return
        makers = MAKERS_2D if len(shape) == 3 else MAKERS_0D
        for layer in self.choose(makers)(self.choose, shape):
            self._append(layer, (source,))
            source = len(self.shapes) - 1

    def _joinable(self, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        return a[1:] == b[1:] and a[0] + b[0] <= 16

    def _append(self, layer: nn.Module, sources: tuple[int, ...]) -> None:
        self.layers.append(layer)
        self._step(len(self.layers) - 1, sources)

    def _step(self, layer: int, sources: tuple[int, ...]) -> None:
        inputs = [torch.zeros(2, *self.shapes[s]) for s in sources]
        with torch.no_grad():
            shape = tuple(self.layers[layer](*inputs).shape[1:])
        self.steps.append((layer, sources))
        self.shapes.append(shape)

    def done(self) -> Net:
        features = sum(torch.Size(shape).numel() for shape in self.shapes[-2:])
        return Net(self.layers, self.steps, features)


Maker = Callable[[Choose, tuple[int, ...]], list[nn.Module]]


def _activation(choose: Choose) -> nn.Module:
    kinds: list[nn.Module] = [nn.ReLU(), nn.LeakyReLU(0.2), nn.ReLU(inplace=False), nn.PReLU()]
    return choose(kinds)


def _conv(choose: Choose, shape: tuple[int, ...]) -> list[nn.Module]:
    channels = shape[0]
    groups = choose([g for g in (1, 1, 2, channels) if channels % g == 0])
    out = choose([n for n in (2, 4, 6, channels) if n % groups == 0])
    stride = choose([1, 2]) if shape[-1] > 2 else 1
    conv = nn.Conv2d(channels, out, 3, stride, 1, groups=groups, bias=choose([True, False]))
    return [conv, _activation(choose)]


def _transposed(choose: Choose, shape: tuple[int, ...]) -> list[nn.Module]:
    groups = choose([g for g in (1, 2) if shape[0] % g == 0])
    stride = 2 if shape[-1] <= 4 else 1
    conv = nn.ConvTranspose2d(shape[0], 4, 2, stride, groups=groups, bias=choose([True, False]))
    return [conv, _activation(choose)]


def _norm_2d(choose: Choose, shape: tuple[int, ...]) -> list[nn.Module]:
    return [nn.BatchNorm2d(shape[0]), _activation(choose)]


def _pool(choose: Choose, shape: tuple[int, ...]) -> list[nn.Module]:
    pools: list[nn.Module] = [nn.AvgPool2d(3, 1, 1), nn.MaxPool2d(3, 1, 1), nn.AdaptiveAvgPool2d(2)]
    return [choose(pools)]


def _shift(choose: Choose, shape: tuple[int, ...]) -> list[nn.Module]:
    return [Shift(shape), _activation(choose)]


def _flatten(choose: Choose, shape: tuple[int, ...]) -> list[nn.Module]:
    inputs = torch.Size(shape).numel()
    return [nn.Flatten(), nn.Linear(inputs, choose([3, 5]), bias=choose([True, False])), _activation(choose)]


def _linear(choose: Choose, shape: tuple[int, ...]) -> list[nn.Module]:
    out = choose([3, 5, shape[0]])
    return [nn.Linear(shape[0], out, bias=choose([True, False])), _activation(choose)]


def _norm_0d(choose: Choose, shape: tuple[int, ...]) -> list[nn.Module]:
    return [choose([nn.BatchNorm1d, nn.LayerNorm])(shape[0]), _activation(choose)]


MAKERS_2D: list[Maker] = [_conv, _conv, _conv, _transposed, _norm_2d, _pool, _shift, _flatten]
MAKERS_0D: list[Maker] = [_linear, _linear, _norm_0d, _shift]


@st.composite
def networks(draw: st.DrawFn, most: int = 8) -> Net:
    """A network in float64, its channels of very different magnitude, its batch norms calibrated."""

    def choose(options: Sequence[Any]) -> Any:
        return options[draw(st.integers(0, len(options) - 1))]

    torch.manual_seed(draw(st.integers(0, 2**16)))
    growth = Growth(choose)
    for _ in range(draw(st.integers(2, most))):
        growth.grow()
    net = growth.done().double()
    disturb(net)
    return net.train(draw(st.booleans()))


def disturb(net: nn.Module) -> None:
    """Unequal channels, nontrivial biases and affine weights, and statistics measured on data."""
    with torch.no_grad():
        for parameter in net.parameters():
            spread = torch.randn(parameter.shape[:1] + (1,) * (parameter.dim() - 1), dtype=parameter.dtype)
            if parameter.dim() > 1:
                parameter.mul_(spread.exp())
            elif parameter.numel() > 1:
                parameter.add_(0.3 * spread)
        net.train()
        for _ in range(3):
            net(inputs(net))


def inputs(net: nn.Module, count: int = 5) -> Tensor:
    return torch.randn(count, *INPUT, dtype=next(net.parameters()).dtype)


def outputs(net: nn.Module, x: Tensor) -> list[Tensor]:
    """In evaluation and in training mode; buffers and the flag as before."""
    flag, state = net.training, {k: v.clone() for k, v in net.state_dict().items()}
    with torch.no_grad():
        found = [net.train(mode)(x) for mode in (False, True)]
    net.load_state_dict(state)
    net.train(flag)
    return found


def change(before: list[Tensor], after: list[Tensor]) -> float:
    """Relative to the part of the output that depends on the input."""
    return max(
        float((a - b).abs().max() / (b - b.mean(0)).abs().max().clamp(min=1e-300))
        for a, b in zip(after, before, strict=True)
    )
