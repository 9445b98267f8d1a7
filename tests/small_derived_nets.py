"""Small networks whose weights are expressions of parameters, with the free scales that one finds by hand."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from small_conv_nets import conv
from small_nets import Net, Row, lin, param
from torch import Tensor, nn
from torch.nn.utils import prune


class Masked(nn.Linear):
    """A layer of MADE: the mask is a floating-point buffer."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__(i, o)
        self.register_buffer("mask", torch.ones(o, i).tril())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.mask, self.bias)


def _pruned() -> nn.Module:
    net = nn.Sequential(lin(4, 5), nn.ReLU(), lin(5, 6), nn.ReLU(), lin(6, 7))
    with torch.no_grad():  # the pruned weight is then a leaf, which deepcopy asks for
        for place in (0, 2, 4):
            prune.l1_unstructured(net[place], "weight", 0.1)
    return net


def _between(weight: Any, **parts: Any) -> Net:
    """``weight(m)`` of size (5, 4) as the second of three layers."""
    return Net(
        lambda m, x: m.out(torch.relu(F.linear(torch.relu(m.stem(x)), weight(m)))),
        stem=lin(4, 4),
        out=lin(5, 7),
        **parts,
    )


def _convolved(weight: Any, groups: int = 1, **parts: Any) -> Net:
    return Net(
        lambda m, x: m.out(torch.relu(F.conv2d(torch.relu(m.stem(x)), weight(m), groups=groups))),
        stem=conv(3, 4),
        out=conv(6, 7),
        **parts,
    )


def _chain(m: Any, x: Tensor) -> Tensor:
    return m.out(torch.relu(torch.einsum("...i,oi->...o", x, torch.einsum("or,ri->oi", m.b, m.a))))


def _shared(m: Any, x: Tensor) -> Tensor:
    weight = m.w * m.g[:, None]
    return m.out(torch.relu(F.linear(torch.relu(F.linear(torch.relu(m.stem(x)), weight)), weight)))


DERIVED = [
    Row("masks of MADE", lambda: nn.Sequential(Masked(4, 5), nn.ReLU(), Masked(5, 6), nn.ReLU(), Masked(6, 7)), (4,),
        11),
    Row("pruned layers", _pruned, (4,), 11),
    Row("a weight over a constant", lambda: _between(lambda m: m.w / torch.tensor(3.0), w=param(5, 4)), (4,), 9),
    Row("a weight over a parameter", lambda: _between(lambda m: m.w / m.g[:, None], w=param(5, 4), g=param(5)), (4,), 9,
        5, "a parameter that divides is pinned"),
    Row("a gain for every row", lambda: _between(lambda m: m.w * m.g[:, None], w=param(5, 4), g=param(5)), (4,), 14),
    Row("a gain for every column", lambda: _between(lambda m: m.w * m.g, w=param(5, 4), g=param(4)), (4,), 13),
    Row("one gain", lambda: _between(lambda m: m.w * m.g, w=param(5, 4), g=param(1)), (4,), 9, 1,
        "three scales meet in one product"),
    Row("a gain that is repeated",
        lambda: Net(lambda m, x: m.b(torch.relu(m.a(x) * m.g.expand(x.shape[0], 5))), a=lin(4, 5), g=param(1, 5),
                    b=lin(5, 7)), (4,), 10),
    Row("a product of gains", lambda: Net(lambda m, x: m.b(torch.relu(m.a(x) * (m.g * m.h))), a=lin(4, 5), g=param(5),
                                          h=param(5), b=lin(5, 7)), (4,), 15),
    Row("weights side by side", lambda: _between(lambda m: torch.cat([m.v, m.w]), v=param(2, 4), w=param(3, 4)), (4,),
        9),
    Row("weights and biases side by side",
        lambda: Net(lambda m, x: m.out(torch.relu(F.linear(x, torch.cat([m.v, m.w], 1), torch.cat([m.c, m.d])))),
                    v=param(5, 2), w=param(5, 2), c=param(2), d=param(3), out=lin(5, 7)), (4,), 5),
    Row("a merged adapter", lambda: _between(lambda m: m.w + 2 * (m.b @ m.a), w=param(5, 4), b=param(5, 2),
                                             a=param(2, 4)), (4,), 11),
    Row("a merged adapter, transposed", lambda: _between(lambda m: m.w + (m.a @ m.b).t(), w=param(5, 4), a=param(4, 2),
                                                         b=param(2, 5)), (4,), 11),
    Row("a low-rank weight by einsum", lambda: Net(_chain, b=param(5, 2), a=param(2, 4), out=lin(5, 7)), (4,), 7),
    Row("a product of three matrices", lambda: _between(lambda m: m.u @ m.v @ m.w, u=param(5, 2), v=param(2, 3),
                                                        w=param(3, 4)), (4,), 14),
    Row("a triangle of a weight",
        lambda: Net(lambda m, x: m.out(torch.relu(F.linear(torch.relu(m.stem(x)), m.w.tril()))),
                    stem=lin(4, 4), w=param(4, 4), out=lin(4, 7)), (4,), 8),
    Row("a derived weight used twice", lambda: Net(_shared, stem=lin(4, 4), w=param(4, 4), g=param(4), out=lin(4, 7)),
        (4,), 8, 1, "the whole matrix times one number"),
    Row("a kernel and its mirror image",
        lambda: Net(lambda m, x: m.out(torch.relu(F.conv2d(x, m.w) + F.conv2d(x, m.w.flip(-1)))), w=param(4, 3, 2, 2),
                    out=conv(4, 7)), (3, 4, 4), 4),
    Row("a sum of grouped kernels", lambda: _convolved(lambda m: m.v.weight + m.w.weight, 2,
                                                       v=conv(4, 6, 2, False, groups=2),
                                                       w=conv(4, 6, 2, False, groups=2)), (3, 3, 3), 10),
    Row("a kernel that is repeated", lambda: Net(lambda m, x: m.out(torch.relu(F.conv2d(x, m.w.repeat(4, 1, 1, 1)))),
                                                 w=param(1, 3, 1, 1), out=conv(4, 7)), (3, 2, 2), 1, 3,
        "only the sum of four equal columns has an effect"),
]  # fmt: skip
