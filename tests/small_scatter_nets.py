"""Small networks that write at places, and fused recurrent cells, with the free scales that one finds by hand."""

from __future__ import annotations

from typing import Any

import torch
from small_nets import Net, Row, lin
from torch import Tensor, nn

NODES = (3, 4)  # nodes (or steps), features
EDGES = ((0, 1), (1, 2), (2, 0), (0, 2))


def _messages(m: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    source, target = (torch.tensor(ends) for ends in zip(*EDGES, strict=True))
    h = torch.relu(m.a(x))
    return h, h[:, source], target


def _summed(m: Any, x: Tensor) -> Tensor:
    h, sent, target = _messages(m, x)
    return m.b(torch.zeros_like(h).index_add(1, target, sent))


def _largest_sent(m: Any, x: Tensor) -> Tensor:
    h, sent, target = _messages(m, x)
    places = target[None, :, None].expand_as(sent)
    return m.b(torch.zeros_like(h).scatter_reduce(1, places, sent, "amax"))


def _multiplied(m: Any, x: Tensor) -> Tensor:
    h, sent, target = _messages(m, x)
    return m.b(torch.ones_like(h).scatter_reduce(1, target[None, :, None].expand_as(sent), sent, "prod"))


def _two_kinds_of_nodes(m: Any, x: Tensor) -> Tensor:
    h = torch.relu(m.a(x)).clone()
    h[:, 1] = torch.relu(m.c(x[:, 1]))
    return m.b(h)


def _two_kinds_by_index(m: Any, x: Tensor) -> Tensor:
    h, places = torch.relu(m.a(x)).clone(), torch.tensor([1])
    h[:, places] = torch.relu(m.c(x[:, places]))
    return m.b(h)


def _copied_by_index(m: Any, x: Tensor) -> Tensor:
    h, first = torch.relu(m.a(x)), torch.tensor([0])
    return m.b(h.index_copy(1, first, torch.relu(m.c(x[:, :1]))))


def _some_examples_rewritten(m: Any, x: Tensor) -> Tensor:
    h, rows = torch.relu(m.a(x)), torch.arange(0, x.shape[0], 2)
    return m.b(h.index_put((rows,), torch.relu(m.c(x[rows]))))


def _smaller_than_its_target(m: Any, x: Tensor) -> Tensor:
    h, written = torch.relu(m.a(x)), torch.relu(m.c(x[:, :1]))
    return m.b(h.scatter(1, torch.ones_like(written, dtype=torch.int64), written))


def _emptied(m: Any, x: Tensor) -> Tensor:
    return m.b(torch.relu(m.a(x)).index_fill(1, torch.tensor([2]), 0.0))


def _filled(m: Any, x: Tensor) -> Tensor:
    return m.b(torch.relu(m.a(x)).index_fill(1, torch.tensor([2]), 2.0))


def _neighbours(m: Any, x: Tensor) -> Tensor:
    h = torch.relu(m.a(x))
    sparse = torch.eye(3, dtype=x.dtype).roll(1, 0).to_sparse()
    return m.b(torch.stack([torch.sparse.mm(sparse, each) for each in h[:2]]))


def _mean_state(m: Any, x: Tensor) -> Tensor:
    return m.out(m.cells(torch.relu(m.embed(x)))[0].mean(1))


def _step_by_step(m: Any, x: Tensor) -> Tensor:
    state: Any = None
    for step in range(x.shape[1]):
        state = m.cell(torch.relu(m.embed(x[:, step])), state)
    return m.out(state[0] if isinstance(state, tuple) else state)


def _layer(kind: Any, **options: Any) -> Any:
    width = 6 if options.get("bidirectional") else 3
    return lambda: Net(
        _mean_state, embed=lin(4, 5), cells=kind(5, 3, bias=False, batch_first=True, **options), out=lin(width, 7)
    )  # fmt: skip


def _cell(kind: Any, **options: Any) -> Any:
    return lambda: Net(_step_by_step, embed=lin(4, 5), cell=kind(5, 3, bias=False, **options), out=lin(3, 7))


def _graph(run: Any, bias: bool = True, **parts: nn.Module) -> Any:
    return lambda: Net(run, a=lin(4, 5), b=lin(5, 7, bias), **parts)


PLACES = [
    Row("messages summed at their targets", _graph(_summed), NODES, 5),
    Row("the largest message", _graph(_largest_sent), NODES, 5),
    Row("a node of another kind", _graph(_two_kinds_of_nodes, c=lin(4, 5)), NODES, 5),
    Row("a node of another kind, by index", _graph(_two_kinds_by_index, c=lin(4, 5)), NODES, 1, 4,
        "an index after a slice: one scale for everything"),
    Row("a node that is copied in", _graph(_copied_by_index, c=lin(4, 5)), NODES, 5),
    Row("examples that are rewritten", _graph(_some_examples_rewritten, c=lin(4, 5)), NODES, 5),
    Row("written where it is smaller than its target", _graph(_smaller_than_its_target, c=lin(4, 5)), NODES, 5),
    Row("a node that is emptied", _graph(_emptied), NODES, 5),
    Row("a node that is filled", _graph(_filled, bias=False), NODES, 0),
]  # fmt: skip

PLACES_UNDIFFERENTIABLE = [
    Row("products of messages", _graph(_multiplied), NODES, 0),
    Row("a sparse adjacency", _graph(_neighbours), NODES, 5),
]
"""Products have symmetries that no id can say, and autograd does not follow a sparse product."""

RECURRENT = [
    Row("lstm", _layer(nn.LSTM), NODES, 5),
    Row("lstm in both directions", _layer(nn.LSTM, bidirectional=True), NODES, 5),
    Row("gru of two layers", _layer(nn.GRU, num_layers=2), NODES, 5),
    Row("tanh recurrence", _layer(nn.RNN), NODES, 5),
    Row("relu recurrence, fused", _layer(nn.RNN, nonlinearity="relu"), NODES, 5, 3,
        "the states' scales lie inside one operator"),
    Row("lstm cell", _cell(nn.LSTMCell), NODES, 5),
    Row("gru cell", _cell(nn.GRUCell), NODES, 5),
    Row("tanh cell", _cell(nn.RNNCell), NODES, 5),
    Row("relu cell", _cell(nn.RNNCell, nonlinearity="relu"), NODES, 8),
]  # fmt: skip
