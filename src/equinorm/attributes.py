"""What a forward pass leaves on a model's modules: training flags, counters, caches, activations that it stores.

A run on the side must leave none of it, least of all the fake tensors of a trace. What is stored is also a way
out of the model that its outputs do not show.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from equinorm.interrupts import interrupts_deferred

TABLES = ("_parameters", "_buffers", "_modules")  # torch.nn.Module's own, which torch.export follows itself


class Attributes:
    """The attributes of all modules at one time, with the contents of the lists and dicts among them."""

    def __init__(self, model: nn.Module) -> None:
        self._holders: dict[int, tuple[Any, Any]] = {}
        self._tables: set[int] = set()
        self._flags = [(module, module.training) for module in model.modules()]  # TorchScript keeps its own
        for module in model.modules():
            self._tables.update(id(vars(module)[name]) for name in TABLES if name in vars(module))
            self._keep(vars(module))

    def _keep(self, holder: Any) -> None:
        if not isinstance(holder, (dict, list, set, deque)) or id(holder) in self._holders:
            return
        self._holders[id(holder)] = (holder, holder.copy())
        for value in holder.values() if isinstance(holder, dict) else holder:
            self._keep(value)

    def restore(self) -> None:
        """Put everything back, in the same lists and dicts."""
        for holder, before in self._holders.values():
            if isinstance(holder, dict):
                for extra in holder.keys() - before.keys():
                    del holder[extra]
                holder.update(before)
            elif isinstance(holder, list):
                holder[:] = before
            else:
                holder.clear()
                (holder.update if isinstance(holder, set) else holder.extend)(before)
        for module, flag in self._flags:
            if module.training is not flag:
                module.training = flag

    def tensors(self) -> list[Tensor]:
        """All that are neither parameters nor buffers, each once."""
        found = {
            id(value): value
            for key, (_, contents) in self._holders.items()
            if key not in self._tables
            for value in (contents.values() if isinstance(contents, dict) else contents)
            if isinstance(value, Tensor)
        }
        return list(found.values())


@contextmanager
def attributes_kept(model: nn.Module) -> Iterator[None]:
    """Restore on exit every attribute of every module, training flags and registered buffers included."""
    before = Attributes(model)
    try:
        yield
    finally:
        with interrupts_deferred():
            before.restore()


class Stored:
    """The tensors that a model's forward leaves on its modules."""

    def __init__(self) -> None:
        self.count = 0
        self.replaced: list[Tensor] = []  # what lay there before the pass

    def returned_by(self, model: nn.Module) -> Callable[..., Any]:
        """The model's forward, which returns them beside its output if there are any."""
        forward = model.forward

        @functools.wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            before = {id(tensor): tensor for tensor in Attributes(model).tensors()}
            output = forward(*args, **kwargs)
            after = {id(tensor): tensor for tensor in Attributes(model).tensors()}
            self.replaced = [before[key] for key in before.keys() - after.keys()]
            stored = [after[key] for key in after.keys() - before.keys()]
            self.count = len(stored)
            return (output, stored) if stored else output

        return run
