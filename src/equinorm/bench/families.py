"""Networks on which solvers are compared: random ones of every depth, hard ones, and trained ones.

All are real modules; what joins what is found by the analysis, as for any model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

Build = Callable[[], nn.Module]


@dataclass(frozen=True)
class Case:
    """A network with one input of a given width."""

    label: str
    kind: str  # "random", "hard" or "trained"
    build: Build
    width: int


def linear(weight: Tensor) -> nn.Linear:
    """A layer with this weight and no bias."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer


def chain(weights: Sequence[Tensor]) -> nn.Sequential:
    """A ReLU network with these weights."""
    layers: list[nn.Module] = []
    for weight in weights:
        layers += [linear(weight), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def random_chain(depth: int, width: int) -> nn.Module:
    """He's initialisation."""
    return chain([weight * (2 / width) ** 0.5 for weight in _normal(depth, width, width)])


def heavy(depth: int, width: int, freedom: int) -> nn.Module:
    """Student-t weights (1: Cauchy)."""
    g = _generator()
    tail = torch.randn(depth, freedom, width, width, generator=g).square().mean(1).sqrt()
    return chain(list(torch.randn(depth, width, width, generator=g) / tail))


def sparse(depth: int, width: int) -> nn.Module:
    """Nine weights of ten are zero."""
    g = _generator()
    kept = torch.rand(depth, width, width, generator=g) < 0.1
    return chain(list(torch.randn(depth, width, width, generator=g) * kept))


def low_rank(depth: int, width: int) -> nn.Module:
    """Every layer has rank 2."""
    return chain(list(_normal(depth, width, 2) @ _normal(depth, 2, width, seed=1)))


def bottleneck(depth: int, width: int) -> nn.Module:
    """Every fourth layer is 25 times narrower."""
    g = _generator()
    sizes = [width if k % 4 else max(2, width // 25) for k in range(1, depth + 2)]
    return chain([torch.randn(b, a, generator=g) for a, b in pairwise(sizes)])


def grouped(depth: int, width: int, parts: int, joined: float = 0.0) -> nn.Module:
    """Inner layers of ``parts`` blocks, joined by weights ``joined`` times as large."""
    mask = torch.kron(torch.eye(parts), torch.ones(width // parts, width // parts))
    weights = _normal(depth, width, width)
    weights[1:-1] *= mask
    return chain(list(weights + joined * _normal(depth, width, width, seed=1)))


def unbalanced(depth: int, width: int) -> nn.Module:
    """Channels multiplied by e^(4 N(0, 1))."""
    return chain(list(_normal(depth, width, width) * _normal(depth, width, 1, seed=1).mul(4).exp()))


class Residual(nn.Module):
    """Blocks of two layers, with learnt or identity shortcuts."""

    def __init__(self, depth: int, width: int, learnt: bool) -> None:
        super().__init__()
        weights = _normal(3 * depth + 2, width, width) * (2 / width) ** 0.5
        self.first, self.last = linear(weights[0]), linear(weights[1])
        self.inner = nn.ModuleList(map(linear, weights[2::3]))
        self.outer = nn.ModuleList(map(linear, weights[3::3]))
        self.shortcut = nn.ModuleList(linear(w) if learnt else nn.Identity() for w in weights[4::3])

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        for inner, outer, shortcut in zip(self.inner, self.outer, self.shortcut, strict=True):
            h = (outer(inner(h).relu()) + shortcut(h)).relu()
        return self.last(h)  # type: ignore[no-any-return]


class Dense(nn.Module):
    """Every layer reads the input and all earlier layers."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        g = _generator()
        self.inputs = nn.ModuleList(linear(torch.randn(width, width, generator=g)) for _ in range(depth))
        self.layers = nn.ModuleList(
            linear(torch.randn(width, k * width, generator=g) / (k * width) ** 0.5)
            for k in range(1, depth + 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        seen = [self.inputs[0](x).relu()]
        for from_input, layer in zip(self.inputs[1:], self.layers[:-1], strict=True):
            seen.append((from_input(x) + layer(torch.cat(seen, 1))).relu())
        return self.layers[-1](torch.cat(seen, 1))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """h + relu(W h), again and again on one group of channels."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        weights = _normal(depth + 2, width, width)
        self.first, self.last = linear(weights[0]), linear(weights[1])
        self.steps = nn.ModuleList(linear(weight) for weight in weights[2:])

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        for step in self.steps:
            h = h + step(h).relu()
        return self.last(h)  # type: ignore[no-any-return]


def random_cases(depths: Sequence[int], width: int) -> Iterator[Case]:
    """ReLU chains of every depth."""
    for depth in depths:
        yield Case(f"random, {depth} layers of {width}", "random", partial(random_chain, depth, width), width)


def hard_cases(depth: int, width: int) -> Iterator[Case]:
    """Where a solver may be slow: heavy tails, zeros, bottlenecks, blocks, shortcuts, recurrence."""
    builds: dict[str, tuple[Build, int]] = {
        "student-t 2": (partial(heavy, depth, width, 2), width),
        "Cauchy": (partial(heavy, depth, width, 1), width),
        "90 % zeros": (partial(sparse, depth, width), width),
        "rank 2": (partial(low_rank, depth, width), width),
        "bottlenecks": (partial(bottleneck, depth, width), width),
        "4 blocks": (partial(grouped, depth, width, 4), width),
        "20 blocks": (partial(grouped, depth, width, 20), width),
        "4 blocks, joined by 1e-3": (partial(grouped, depth, width, 4, 1e-3), width),
        "channels scaled by e^±4": (partial(unbalanced, depth, width), width),
        "width 8, twice as deep": (partial(random_chain, 2 * depth - 1, 8), 8),
        "5 blocks of width 8, twice as deep": (partial(grouped, 2 * depth - 1, 40, 5), 40),
        "residual, learnt shortcuts": (partial(Residual, depth - 1, width, True), width),
        "residual, identity shortcuts": (partial(Residual, depth - 1, width, False), width),
        "dense": (partial(Dense, 15, width // 2), width // 2),
        "recurrent": (partial(Recurrent, 4, width), width),
    }
    for label, (build, inputs) in builds.items():
        yield Case(label, "hard", build, inputs)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=_generator(seed))
