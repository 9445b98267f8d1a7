"""Copies and averages of a model that receive the same scales."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from equinorm.errors import ArgumentError
from equinorm.training.analysed import unwrapped
from equinorm.training.companions import obstacle
from equinorm.training.seen import Seen
from equinorm.training.shards import local

Copy = nn.Module | Mapping[str, Tensor]
Places = list[tuple[object, ...]]


class Followers:
    """Their tensors are looked up anew at every step: a cast or a loaded state may have replaced them."""

    def __init__(self, parameters: Mapping[str, Tensor], names: Iterable[str]) -> None:
        self._parameters = {name: parameters[name] for name in names}
        self._copies: list[tuple[Copy, tuple[str, ...]]] = []
        self._checked: Places = []

    def add(self, copy: Copy) -> None:
        """Let a copy follow, with those of its tensors that do not follow already."""
        if not isinstance(copy, (nn.Module, Mapping)):
            raise ArgumentError(
                f"averaged: expected a module or a mapping of names to tensors, got {type(copy).__name__}"
            )
        known = {(name, _place(t)) for found in self._look_up() for name, t in found.items()}
        mine = _tensors(copy, self._parameters)
        new = {name: tensor for name, tensor in mine.items() if (name, _place(tensor)) not in known}
        if new:
            self._check([*self._look_up(), new])
            self._copies.append((copy, tuple(new)))

    def tensors(self) -> list[dict[str, Tensor]]:
        """What this process holds of every copy, by name."""
        found = self._look_up()
        places: Places = [_place(tensor) for copy in found for tensor in copy.values()]
        if places != self._checked:
            self._check(found)
            self._checked = places
        return [{name: local(tensor) for name, tensor in copy.items()} for copy in found]

    def look(self, seen: Seen) -> None:
        """Note where the copies keep their tensors."""
        for copy, names in seen.members(self._copies):
            source = seen.read(unwrapped, copy) if isinstance(copy, nn.Module) else copy
            for name in names:
                if isinstance(source, nn.Module):
                    *parents, key = name.split(".")
                    module = source
                    for parent in parents:
                        module = seen.entry(seen.attribute(module, "_modules"), parent)
                    seen.memory([seen.entry(seen.attribute(module, "_parameters"), key)])
                else:
                    seen.memory([seen.entry(source, name)])

    def _look_up(self) -> list[dict[str, Tensor]]:
        return [_tensors(copy, names) for copy, names in self._copies]

    def _check(self, copies: list[dict[str, Tensor]]) -> None:
        for copy in copies:
            for name, tensor in copy.items():
                reason = obstacle(tensor, self._parameters[name])
                if reason:
                    raise ArgumentError(
                        f"averaged: its {name} {reason}; a copy follows only if it is laid out like the model"
                    )
        spans = [_span(tensor, name, True) for copy in copies for name, tensor in copy.items()]
        _check_apart([*spans, *(_span(p, name, False) for name, p in self._parameters.items())])


Span = tuple[str, int, int, str, bool]  # device, first and last byte, name, whether a copy's


def _tensors(copy: Copy, names: Iterable[str]) -> dict[str, Tensor]:
    source = unwrapped(copy) if isinstance(copy, nn.Module) else copy
    return {name: _tensor(source, name) for name in names}


def _tensor(source: Copy, name: str) -> Tensor:
    try:
        found = _parameter(source, name) if isinstance(source, nn.Module) else source[name]
    except (AttributeError, KeyError):
        found = None
    if not isinstance(found, Tensor):
        raise ArgumentError(f"averaged: it has no parameter {name}, as the model has")
    return found


def _parameter(module: nn.Module, name: str) -> Tensor | None:
    """As ``get_parameter``, which would leave a string in Python's cache of attributes at every step."""
    *parents, key = name.split(".")
    for parent in parents:
        module = module._modules[parent]  # type: ignore[assignment]
    return module._parameters[key]


def _place(tensor: Tensor) -> tuple[object, ...]:
    held = local(tensor)
    return held.data_ptr(), held.shape, held.dtype, held.device


def _span(tensor: Tensor, name: str, copied: bool) -> Span:
    held = local(tensor)
    reach = sum((size - 1) * step for size, step in zip(held.shape, held.stride(), strict=True)) + 1
    last = held.data_ptr() + (reach * held.element_size() if held.numel() else 0)
    return str(held.device), held.data_ptr(), last, name, copied


def _check_apart(spans: list[Span]) -> None:
    """Raise if a copy's tensor shares memory with another: it would be scaled twice."""
    before: Span | None = None  # of those that start earlier, the one that ends last
    for span in sorted(span for span in spans if span[1]):
        if before is not None and before[0] == span[0] and span[1] < before[2] and (before[4] or span[4]):
            raise ArgumentError(
                f"averaged: its {span[3] if span[4] else before[3]} shares memory with the model or with another copy, "
                "and would be scaled twice; let a copy.deepcopy follow instead"
            )
        if before is None or before[0] != span[0] or span[2] > before[2]:
            before = span
