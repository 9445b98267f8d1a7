"""Small networks with the number of free scales that one finds by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm


class Net(nn.Module):
    """Modules and parameters by name, and a forward that is written in one line."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self._run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self._run(self, *inputs)


@dataclass(frozen=True)
class Row:
    """A network, the shape of one input (without the batch), its free scales, and those known to be missed."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    free: int
    missed: int = 0
    why: str = ""
    batch: int = 144

    def inputs(self, seed: int) -> tuple[Tensor, ...]:
        draws = torch.Generator().manual_seed(100 + seed)
        return (2 * torch.randn(self.batch, *self.shape, generator=draws, dtype=torch.float64),)


def param(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape))


def lin(i: int, o: int, bias: bool = True) -> nn.Linear:
    return nn.Linear(i, o, bias=bias)


def _in_place(m: Any, x: Tensor) -> Tensor:
    h = F.linear(x, m.a, m.b)
    h *= 2
    h[:, :2] = m.side(x)
    h.add_(torch.zeros(5, dtype=x.dtype))
    h.relu_()
    return F.linear(h, m.c)


def _einsum_attention(m: Any, x: Tensor) -> Tensor:
    q, k, v = (part(x).unflatten(-1, (2, 2)) for part in (m.q, m.k, m.v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k).softmax(-1)
    return m.out(torch.einsum("bhqk,bkhd->bqhd", scores, v).flatten(2))


def _scatter_constant(m: Any, x: Tensor) -> Tensor:
    places = torch.zeros(x.shape[0], 1, dtype=torch.int64)
    return m.b(torch.relu(m.a(x)).scatter(1, places, 3.0))


def _write_input(m: Any, x: Tensor) -> Tensor:
    h = torch.relu(m.a(x))
    return m.b(h.index_put((_rows(x), torch.zeros(x.shape[0], dtype=torch.int64)), x[:, 0]))


def _rows(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0])


def _recurrence(m: Any, x: Tensor) -> Tensor:
    h = torch.zeros(x.shape[0], 4, dtype=x.dtype)
    for t in range(x.shape[1]):
        h = torch.relu(m.u(x[:, t]) + m.w(h))
    return m.out(h)


def _tied_autoencoder(m: Any, x: Tensor) -> Tensor:
    return F.linear(torch.relu(F.linear(x, m.w)), m.w.t())


def _tied_heads(m: Any, x: Tensor) -> Tensor:
    return m.head(m.norm(m.mid(torch.relu(m.stem(x)))))


def tied() -> nn.Module:
    net = Net(
        _tied_heads,
        stem=lin(4, 5),
        mid=lin(5, 4, False),
        norm=nn.LayerNorm(4, eps=0.1),
        head=lin(4, 5, False),
    )
    net.head.weight = net.stem.weight
    return net


MLPS = [
    Row("mlp", lambda: nn.Sequential(lin(4, 5), nn.ReLU(), lin(5, 4), nn.ReLU(), lin(4, 7)), (4,), 9),
    Row("mlp without biases", lambda: nn.Sequential(lin(4, 5, False), nn.ReLU(), lin(5, 7, False)), (4,), 5),
    Row("leaky and parametric relu",
        lambda: nn.Sequential(lin(4, 5), nn.LeakyReLU(), lin(5, 4), nn.PReLU(4), lin(4, 7)), (4,), 9),
    Row("no activation", lambda: nn.Sequential(lin(4, 4, False), lin(4, 7)), (4,), 4),
    Row("method calls", lambda: Net(lambda m, x: m.b(m.a(x).clamp(min=0).abs().neg()), a=lin(4, 5), b=lin(5, 7)),
        (4,), 5),
    Row("relu6", lambda: nn.Sequential(lin(4, 5), nn.ReLU6(), lin(5, 7)), (4,), 0),
    Row("hardtanh by its defaults",
        lambda: Net(lambda m, x: m.b(torch.ops.aten.hardtanh(m.a(x))), a=lin(4, 5), b=lin(5, 7)), (4,), 0),
    Row("relu(h) + 1", lambda: Net(lambda m, x: m.b(torch.relu(m.a(x)) + 1.0), a=lin(4, 5), b=lin(5, 7, False)),
        (4,), 0),
    Row("relu(h) + 1 before a bias", lambda: Net(lambda m, x: m.b(torch.relu(m.a(x)) + 1.0), a=lin(4, 5), b=lin(5, 7)),
        (4,), 0, 5, "a bias further on can absorb a constant"),
    Row("h * h", lambda: Net(lambda m, x: m.b(m.a(x) * m.a(x)), a=lin(4, 5), b=lin(5, 7)), (4,), 0, 5,
        "an id has no way to say twice a scale"),
    Row("a hidden activation is an output too",
        lambda: Net(lambda m, x: (m.c(torch.relu(m.b(h := torch.relu(m.a(x))))), h), a=lin(4, 5), b=lin(5, 4),
                    c=lin(4, 7)), (4,), 4),
    Row("functional calls and writes in place",
        lambda: Net(_in_place, a=param(5, 4), b=param(5), c=param(7, 5), side=lin(4, 2)), (4,), 7, 2,
        "rows that are overwritten have no effect at all"),
    Row("a constant is scattered", lambda: Net(_scatter_constant, a=lin(4, 5), b=lin(5, 7, False)), (4,), 0, 6,
        "one scale for the tensor that is written to: channels beside are pinned too, the overwritten one is dead"),
    Row("the input is written beside", lambda: Net(_write_input, a=lin(4, 5), b=lin(5, 7)), (4,), 0, 6,
        "the same"),
    Row("a gain that is computed", lambda: Net(lambda m, x: m.b(F.layer_norm(m.a(x), (5,), m.g * m.h, None, 0.1)),
                                               a=lin(4, 5, False), g=param(5), h=param(5), b=lin(5, 7, False)),
        (4,), 10),
    Row("einsum with dots", lambda: Net(lambda m, x: torch.einsum("...h,oh->...o",
        torch.relu(torch.einsum("...i,hi->...h", x, m.a)), m.b), a=param(5, 4), b=param(7, 5)), (3, 4), 5),
    Row("einsum without an output",
        lambda: Net(lambda m, x: torch.einsum("bh,ho", torch.relu(torch.einsum("bi,ih", x, m.a)), m.b),
                    a=param(4, 5), b=param(5, 7)), (4,), 5),
    Row("einsum of three", lambda: Net(lambda m, x: torch.einsum("hi,oh,bi->bo", m.a, m.b, x), a=param(5, 4),
                                       b=param(7, 5)), (4,), 5),
    Row("einsum of a diagonal", lambda: Net(lambda m, x: m.out(torch.relu(torch.einsum("bi,ii->bi", x, m.a))),
                                            a=param(4, 4), out=lin(4, 7)), (4,), 4, 3,
        "entries off the diagonal have no effect"),
    Row("einsum of attention", lambda: Net(_einsum_attention, q=lin(4, 4, False), k=lin(4, 4, False),
                                           v=lin(4, 4, False), out=lin(4, 7)), (3, 4), 8),
    Row("einsum", lambda: Net(lambda m, x: torch.einsum("bh,ho->bo", torch.relu(torch.einsum("bi,hi->bh", x, m.a)),
                                                        m.b), a=param(5, 4), b=param(5, 7)), (4,), 5),
    Row("additive parameters",
        lambda: Net(lambda m, x: (torch.relu(x @ m.w + m.c) + m.d) @ m.v, w=param(4, 4), c=param(4), d=param(1, 4),
                    v=param(4, 7)), (4,), 4),
    Row("low-rank adapter",
        lambda: Net(lambda m, x: m.out(torch.relu(m.w(x) + m.b(m.a(x)))), w=lin(4, 4), a=lin(4, 2, False),
                    b=lin(2, 4, False), out=lin(4, 7)), (4,), 6),
    Row("x + relu(Wx)", lambda: Net(lambda m, x: m.out((h := m.stem(x)) + torch.relu(m.w(h))), stem=lin(4, 4, False),
                                    w=lin(4, 4), out=lin(4, 7)), (4,), 4),
    Row("unrolled recurrence", lambda: Net(_recurrence, u=lin(4, 4, False), w=lin(4, 4), out=lin(4, 7)), (3, 4), 4),
    Row("a layer used twice", lambda: Net(lambda m, x: m.out(torch.relu(m.w(torch.relu(m.w(torch.relu(m.stem(x))))))),
                                          stem=lin(4, 4), w=lin(4, 4), out=lin(4, 7)), (4,), 4),
    Row("a layer without bias used twice",
        lambda: Net(lambda m, x: m.out(torch.relu(m.w(torch.relu(m.w(torch.relu(m.stem(x))))))), stem=lin(4, 4),
                    w=lin(4, 4, False), out=lin(4, 7)), (4,), 4, 1, "the whole matrix times one number"),
    Row("a tied autoencoder", lambda: Net(_tied_autoencoder, w=param(6, 4)), (4,), 0),
    Row("a tied head", tied, (4,), 0, 1, "all of the tied weight times one number"),
    Row("weight norm before a linear layer",
        lambda: nn.Sequential(weight_norm(lin(4, 5)), nn.ReLU(), lin(5, 7)), (4,), 5, 5,
        "the length of the direction, which is divided out"),
    Row("weight norm before weight norm",
        lambda: nn.Sequential(weight_norm(lin(4, 5)), nn.ReLU(), weight_norm(lin(5, 7))), (4,), 0, 17,
        "the length of the direction, which is divided out"),
]  # fmt: skip
