"""A plan's two functions as graphs of their own, for ``torch.compile``.

Whatever the plan decides, it decides while it is traced; what is left takes lists of tensors. The compiler's checks
before every call then are those of its tensors alone, and no two plans share compiled code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from equinorm.training.matrix import Entries

Find = Callable[[Sequence[Entries]], tuple[Tensor, Tensor]]
Work = Sequence[tuple[int, int, Entries]]  # matrix, exponent, and what to scale by it
Scale = Callable[[Tensor, Work], None]


def compiled_find(find: Find) -> Find:
    """``find``, traced at its first call."""
    graphs: dict[tuple[torch.dtype, ...], Any] = {}

    def run(entries: Sequence[Entries]) -> tuple[Tensor, Tensor]:
        wholes = [each.whole for each in entries]
        key = tuple(whole.dtype for whole in wholes)
        if key not in graphs:
            graphs[key] = _compiled(lambda given: find([Entries(whole) for whole in given]), wholes)
        found: tuple[Tensor, Tensor] = graphs[key](wholes)
        return found

    return run


def compiled_scale(scale: Scale) -> Scale:
    """``scale``, traced at its first call for each list of work."""
    graphs: dict[tuple[tuple[int, int, torch.dtype], ...], Any] = {}

    def run(x: Tensor, work: Work) -> None:
        wholes = [entries.whole for _, _, entries in work]
        key = tuple((number, exponent, entries.whole.dtype) for number, exponent, entries in work)
        if key not in graphs:

            def flat(x: Tensor, given: Sequence[Tensor]) -> None:
                scale(x, [(n, e, Entries(whole)) for (n, e, _), whole in zip(work, given, strict=True)])

            graphs[key] = _compiled(flat, x, wholes)
        graphs[key](x, wholes)

    return run


def _compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    # Constants of the plan stay real tensors, which the graph holds on to.
    graph = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments)
    return torch.compile(graph, dynamic=False, fullgraph=True)
