"""Small networks that write in place, with the number of free scales that one finds by hand."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from small_nets import Net, Row, lin, param
from torch import Tensor, nn


def _overwritten_after_relu(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    left = torch.relu(h[:, :2])
    h[:, :2] = m.c(x)
    return m.b(torch.relu(h)) + m.d(left)


def _halves_swapped(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    left = h[:, :2].clone()
    h[:, :2] = h[:, 2:]
    h[:, 2:] = left
    return m.b(torch.relu(h))


def _copied_before(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    kept = h.clone()
    h[:, 0] = 0
    return m.b(torch.relu(h)) + m.d(torch.relu(kept))


def _halved_before_sigmoid(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    kept = h[:, :2] * 0.5
    h[:, :2].sigmoid_()
    return m.b(torch.cat([h, kept], 1))


def _through_idle_dropout(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    F.dropout(h, 0.0, m.training)[:, :2] = m.c(x)  # drops nothing: it is h itself
    return m.b(torch.relu(h))


def _rows_filled_in(m: Any, x: Tensor) -> Tensor:
    states, h = torch.zeros(x.shape[0], 3, 4, dtype=x.dtype), m.a(x)
    for step in range(3):
        h = torch.relu(m.w(h) + m.a(x))
        states[:, step] = h
    return m.b(states)


def _sum_in_integers(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.b(h + torch.sum(h, 0, dtype=torch.int64, keepdim=True))


def _running_sum_in_integers(m: Any, x: Tensor) -> Tensor:
    return m.b(m.a(x).cumsum(1, dtype=torch.int64).to(x.dtype))


def _written_by_out(m: Any, x: Tensor) -> Tensor:
    written = torch.zeros(x.shape[0], 4, dtype=x.dtype)
    view = written[:, :2]
    torch.sigmoid(m.a(x), out=written)
    return m.b(view + torch.relu(m.c(x)))


def _absolute_into_out(m: Any, x: Tensor) -> Tensor:
    h, written = m.a(x), torch.empty(x.shape[0], 4, dtype=x.dtype)
    torch.abs(h, out=written)
    return m.b(written)


def _squared_into_out(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.b(torch.mul(h, h, out=torch.empty_like(h)))


def _stacked_into_out(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.b(torch.stack([m.c(x)[:, 0]] * 4, 1, out=h))


def _ones_like(m: Any, x: Tensor) -> Tensor:
    h = torch.relu(m.a(x))
    return m.b(h + torch.zeros_like(h).add_(1.0))


def _scattered_ones(m: Any, x: Tensor) -> Tensor:
    ones = x.new_zeros(x.shape[0], 4).scatter_(1, torch.zeros(x.shape[0], 1, dtype=torch.int64), 1.0)
    return m.b(torch.relu(m.a(x)) + ones)


def _gathered_by_zeros(m: Any, x: Tensor) -> Tensor:
    h = torch.relu(m.a(x))
    return m.b(h.gather(1, torch.zeros_like(h, dtype=torch.int64)))


def _one_hot(m: Any, x: Tensor) -> Tensor:
    second = F.one_hot(torch.zeros_like(x[:, 0], dtype=torch.int64) + 1, 4)
    return m.b(torch.relu(m.a(x)) * second)


def _overlapping(m: Any, x: Tensor) -> Tensor:
    return m.b(torch.relu(F.linear(x, m.w.unfold(0, 4, 1))))


def _pair(**parts: nn.Module) -> dict[str, Any]:
    return {"a": lin(4, 4), "b": lin(4, 7), **parts}


MEMORY = [
    Row("a slice is overwritten after a relu of it",
        lambda: Net(_overwritten_after_relu, **_pair(c=lin(4, 2), d=lin(2, 7, False))), (4,), 6),
    Row("halves are swapped", lambda: Net(_halves_swapped, **_pair()), (4,), 4),
    Row("a copy before a column is zeroed", lambda: Net(_copied_before, **_pair(d=lin(4, 7, False))), (4,), 4, 1,
        "the weights of a zeroed channel have no effect"),
    Row("a half copied before a sigmoid",
        lambda: Net(_halved_before_sigmoid, a=lin(4, 4, False), b=lin(6, 7)), (4,), 2),
    Row("a write through a dropout that drops nothing",
        lambda: Net(_through_idle_dropout, **_pair(c=lin(4, 2))), (4,), 6, 2,
        "biases of overwritten rows have no effect"),
    Row("states written row by row", lambda: Net(_rows_filled_in, w=lin(4, 4), **_pair()), (4,), 4),
    Row("zeros_like, plus one", lambda: Net(_ones_like, a=lin(4, 4), b=lin(4, 7, False)), (4,), 0),
    Row("new_zeros with ones scattered in", lambda: Net(_scattered_ones, a=lin(4, 4), b=lin(4, 7, False)), (4,), 3),
    Row("gathered by zeros", lambda: Net(_gathered_by_zeros, **_pair()), (4,), 4, 6,
        "biases of three rows have no effect; only the sum of four columns has"),
    Row("a one-hot mask of zeros plus one", lambda: Net(_one_hot, **_pair()), (4,), 4, 6,
        "three channels have no effect, on either side"),
    Row("a Toeplitz matrix, one view that overlaps itself", lambda: Net(_overlapping, w=param(7), b=lin(4, 7)),
        (4,), 0, 1, "the whole parameter times one number"),
]  # fmt: skip

UNDIFFERENTIABLE = [
    Row("a sum in integers", lambda: Net(_sum_in_integers, **_pair()), (4,), 0),
    Row("a running sum in integers", lambda: Net(_running_sum_in_integers, **_pair()), (4,), 0),
    Row("out= beside a view", lambda: Net(_written_by_out, a=lin(4, 4), c=lin(4, 2), b=lin(2, 7, False)), (4,), 0),
    Row("out= of an absolute value", lambda: Net(_absolute_into_out, **_pair()), (4,), 4),
    Row("out= of a square", lambda: Net(_squared_into_out, a=lin(4, 4), b=lin(4, 7)), (4,), 0),
    Row("out= of a stack", lambda: Net(_stacked_into_out, **_pair(c=lin(4, 1))), (4,), 0),
]  # fmt: skip
"""Autograd does not follow these, so that law 8's oracle has nothing to say about them."""
