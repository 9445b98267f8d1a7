"""Symmetries built by hand, for tests of everything after the analysis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from equinorm.symmetry import Group, Scaling, Symmetries

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


def weight(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=g) * torch.exp(
        torch.randn(shape[:1] + (1,) * (len(shape) - 1), generator=g)
    )


def convolutions(g: torch.Generator) -> Graph:
    """conv, depthwise conv, grouped conv, flatten, linear; with biases."""
    graph = Graph()
    first, second, third = graph.group(6), graph.group(6), graph.group(8)
    graph.linear(weight(g, 6, 3, 3, 3), first, None)
    graph.bias(weight(g, 6), first)
    graph.add(weight(g, 6, 1, 3, 3), second.view(6, 1, 1, 1), first.view(6, 1, 1, 1))
    grouped = weight(g, 8, 3, 3, 3)  # two groups of 4 filters
    name = graph.add(grouped, third.view(-1, 1, 1, 1), torch.zeros(1, 1, 1, 1, dtype=torch.int64))
    graph.scalings[-1] = Scaling(
        name,
        (2, 4, 3, 3, 3),
        (108, 27, 9, 3, 1),
        0,
        third.view(2, 4, 1, 1, 1),
        second.view(2, 1, 3, 1, 1),
        True,
        (0, 0, 1, 2, 3),
    )
    graph.linear(weight(g, 5, 8 * 4), None, third)
    return graph


def skips(g: torch.Generator, learnt: bool) -> Graph:
    """Two residual blocks."""
    graph = Graph()
    junction = graph.group(5)
    graph.linear(weight(g, 5, 4), junction, None)
    for _ in range(2):
        inner = graph.group(5)
        after = graph.group(5) if learnt else junction
        graph.linear(weight(g, 5, 5), inner, junction)
        graph.linear(weight(g, 5, 5), after, inner)
        if learnt:
            graph.linear(weight(g, 5, 5), after, junction)
        junction = after
    graph.linear(weight(g, 3, 5), None, junction)
    return graph


def concatenated(g: torch.Generator) -> Graph:
    """Every layer reads all earlier ones; the last reads them in shuffled order, some twice."""
    graph, ids = Graph(), []
    for _ in range(3):
        out = graph.group(4)
        graph.linear(weight(g, 4, 3), out, None)
        if ids:
            graph.linear(weight(g, 4, 4 * len(ids)), out, torch.cat(ids))
        ids.append(out)
    order = torch.cat(ids)[torch.randperm(12, generator=g)]
    graph.linear(weight(g, 3, 16), None, torch.cat([order, order[:4]]))
    return graph


def recurrent(g: torch.Generator) -> Graph:
    """h + relu(W h), twice."""
    graph = Graph()
    ids = graph.group(6)
    graph.linear(weight(g, 6, 4), ids, None)
    graph.linear(weight(g, 6, 6), ids, ids)
    graph.linear(weight(g, 6, 6), ids, ids)
    graph.linear(weight(g, 2, 6), None, ids)
    return graph


def attention(g: torch.Generator) -> Graph:
    """Queries and keys of opposite scales, values and output, a layer between them, affine weights."""
    graph = Graph()
    scores, values, hidden = graph.group(4), graph.group(4), graph.group(5)
    graph.linear(weight(g, 4, 6), scores, None)
    graph.linear(weight(g, 4, 6), -scores, None)
    graph.linear(weight(g, 4, 6), values, None)
    graph.linear(weight(g, 5, 4), hidden, values)
    graph.add(weight(g, 5), hidden, torch.zeros(1, dtype=torch.int64))
    graph.linear(weight(g, 6, 5), None, hidden)
    return graph


def mirrored(g: torch.Generator) -> Graph:
    """Weights between a scale and its own inverse (exponent 2), and between inverses of one group."""
    graph = Graph()
    ids = graph.group(4)
    graph.linear(weight(g, 4, 3), ids, None)
    graph.linear(weight(g, 4, 4), ids, -ids)
    graph.linear(weight(g, 4, 4), -ids, ids)
    graph.linear(weight(g, 4, 4), -ids, -ids)
    graph.linear(weight(g, 3, 4), None, ids)
    return graph


def plain(g: torch.Generator) -> Graph:
    return chain([weight(g, 6, 4), weight(g, 7, 6), weight(g, 5, 7), weight(g, 3, 5)])


ZOO: dict[str, Callable[[torch.Generator], Graph]] = {
    "chain": plain,
    "convolutions": convolutions,
    "learnt shortcuts": partial(skips, learnt=True),
    "identity shortcuts": partial(skips, learnt=False),
    "concatenated": concatenated,
    "recurrent": recurrent,
    "attention": attention,
    "mirrored": mirrored,
}


def entries(graph: Graph, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Every counted parameter's name and rescaled magnitudes, by definition."""
    for scaling in graph.scalings:
        if scaling.counted:
            up = scaling.plus.sign() * x[scaling.plus.abs()]
            down = scaling.minus.sign() * x[scaling.minus.abs()]
            view = scaling.view(graph.tensors[scaling.parameter]).double()
            yield scaling.parameter, view.abs() * torch.exp(up - down)


def powers(graph: Graph, x: Tensor, p: float, c: dict[str, float] | None = None) -> Tensor:
    """phi(x) by definition."""
    total = torch.zeros((), dtype=torch.float64)
    for name, values in entries(graph, x):
        total = total + (c or {}).get(name, 1.0) * values.pow(p).sum()
    return total
