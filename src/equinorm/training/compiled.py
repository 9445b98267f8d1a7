"""A plan's two functions as graphs of their own, for ``torch.compile``.

Whatever the plan decides, it decides while it is traced; what is left takes lists of tensors. The compiler's checks
before every call then are those of its tensors alone, and no two plans share compiled code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from equinorm.training.matrix import Entries
from equinorm.training.scaling import Work

Find = Callable[[], tuple[Tensor, Tensor]]  # of tensors that it is bound to
Scale = Callable[[Tensor], None]


def bind_compiled_find(
    find: Callable[[Sequence[Entries]], tuple[Tensor, Tensor]],
) -> Callable[[Sequence[Entries]], Find]:
    """``find``, traced when it is first bound to tensors."""
    graphs: dict[tuple[torch.dtype, ...], Any] = {}

    def bind(entries: Sequence[Entries]) -> Find:
        wholes = [each.whole for each in entries]
        key = tuple(whole.dtype for whole in wholes)
        if key not in graphs:
            graphs[key] = _compiled(lambda given: find([Entries(whole) for whole in given]), wholes)
        return partial(graphs[key], wholes)

    return bind


def bind_compiled_scale(scale: Callable[[Tensor, Work], None], example: Tensor) -> Callable[[Work], Scale]:
    """``scale``, traced on example log-scales when it is first bound to a list of work."""
    graphs: dict[tuple[tuple[int, int, torch.dtype], ...], Any] = {}

    def bind(work: Work) -> Scale:
        wholes = [entries.whole for _, _, entries in work]
        key = tuple((number, exponent, entries.whole.dtype) for number, exponent, entries in work)
        if key not in graphs:

            def flat(x: Tensor, given: Sequence[Tensor]) -> None:
                scale(x, [(n, e, Entries(whole)) for (n, e, _), whole in zip(work, given, strict=True)])

            graphs[key] = _compiled(flat, example, wholes)
        graph = graphs[key]
        return lambda x: graph(x, wholes)

    return bind


def _compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    # Constants of the plan stay real tensors, which the graph holds on to.
    graph = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments)
    return torch.compile(graph, dynamic=False, fullgraph=True)
