"""Symmetries built by hand, for tests of everything after the analysis."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from equinorm.symmetry import Group, Member, Scaling, Symmetries

SEED = 0


def generator(seed: int = SEED) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@dataclass
class Graph:
    """Groups are added first, then weights between them; ``None`` is the pinned group."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    scalings: list[Scaling] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    free: int = 0

    def group(self, size: int) -> Tensor:
        ids = torch.arange(self.free + 1, self.free + 1 + size)
        self.groups.append(Group(self.free + 1, size, ()))
        self.free += size
        return ids

    def add(self, tensor: Tensor, plus: Tensor, minus: Tensor, counted: bool = True, name: str = "") -> str:
        """A parameter with ids that broadcast to its shape."""
        name = name or f"w{len(self.tensors)}"
        self.tensors[name] = tensor
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        dims = tuple(range(tensor.dim()))
        self.scalings.append(Scaling(name, shape, stride, 0, plus, minus, counted, dims))
        return name

    def linear(self, weight: Tensor, out: Tensor | None, inp: Tensor | None, name: str = "") -> str:
        """A linear or convolution weight [out, in, ...]; an id may stand for several consecutive columns."""
        rest = [1] * (weight.dim() - 2)
        pinned = torch.zeros(1, dtype=torch.int64)
        rows = pinned if out is None else out
        cols = pinned if inp is None else inp.repeat_interleave(weight.shape[1] // inp.numel())
        return self.add(weight, rows.view(-1, 1, *rest), cols.view(1, -1, *rest), name=name)

    def bias(self, bias: Tensor, out: Tensor) -> str:
        return self.add(bias, out, torch.zeros(1, dtype=torch.int64), counted=False)

    def done(self) -> Symmetries:
        shapes = {name: tensor.shape for name, tensor in self.tensors.items()}
        return Symmetries(self.free, tuple(self.groups), tuple(self.scalings), (), {}, shapes)


def chain(weights: list[Tensor]) -> Graph:
    """W_1 … W_q of a network with q - 1 hidden layers."""
    graph = Graph()
    before: Tensor | None = None
    for k, weight in enumerate(weights):
        after = graph.group(weight.shape[0]) if k < len(weights) - 1 else None
        graph.linear(weight, after, before)
        before = after
    return graph


def random_chain(depth: int, width: int, seed: int = SEED, dtype: torch.dtype = torch.float32) -> Graph:
    g = generator(seed)
    weights = [torch.randn(width, width, generator=g) * (2 / width) ** 0.5 for _ in range(depth)]
    return chain([weight.to(dtype) for weight in weights])


def scaled(graph: Graph, x: Tensor) -> dict[str, Tensor]:
    """The tensors in float64, multiplied by the scales, by the definition in symmetry.py."""
    out = {name: tensor.double().clone() for name, tensor in graph.tensors.items()}
    for scaling in graph.scalings:
        up = scaling.plus.sign() * x[scaling.plus.abs()]
        down = scaling.minus.sign() * x[scaling.minus.abs()]
        scaling.view(out[scaling.parameter]).mul_(torch.exp(up - down).expand(scaling.size))
    return out


__all__ = ["Graph", "Member", "chain", "generator", "random_chain", "scaled"]
