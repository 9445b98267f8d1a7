"""What a step found where it looked, to know at the next step that looking again would find the same.

Looking up and checking every tensor takes longer than scaling a small network; comparing identities does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any

from torch import Tensor


class Seen:
    """What was read, by identity; members of lists, sizes of mappings; how and where tensors lie in memory."""

    def __init__(self) -> None:
        self._reads: list[Callable[[Any], Any]] = []
        self._arguments: list[object] = []
        self._found: list[object] = []
        self._sizes: list[tuple[Mapping[Any, Any], int]] = []
        self._lists: list[tuple[Sequence[object], list[object]]] = []
        self._tensors: list[Tensor] = []
        self._places: list[tuple[object, ...]] = []

    def read(self, function: Callable[[Any], Any], argument: object) -> Any:
        """What a function returns, which must be the same object again."""
        found = function(argument)
        self._reads.append(function)
        self._arguments.append(argument)
        self._found.append(found)
        return found

    def attribute(self, owner: object, name: str) -> Any:
        """An object's attribute."""
        return self.read(partial(getattr, owner), name)

    def entry(self, mapping: Mapping[Any, Any], key: object) -> Any:
        """The value of a key, None if it has none."""
        return self.read(mapping.get, key)

    def size(self, mapping: Mapping[Any, Any]) -> None:
        """How many keys a mapping has."""
        self._sizes.append((mapping, len(mapping)))

    def members(self, listed: Sequence[Any]) -> Sequence[Any]:
        """All members of a list."""
        self._lists.append((listed, list(listed)))
        return listed

    def memory(self, tensors: Iterable[Tensor]) -> None:
        """How and where tensors lie, which can change while the objects stay (``tensor.data = other``)."""
        for tensor in tensors:
            if isinstance(getattr(tensor, "_local_tensor", None), Tensor):
                tensor = self.attribute(tensor, "_local_tensor")  # of a shard
            self._tensors.append(tensor)
            self._places.append(_place(tensor))

    def again(self) -> bool:
        """Whether everything would be found as it was."""
        now = [read(argument) for read, argument in zip(self._reads, self._arguments, strict=True)]
        return (
            all(map(is_, now, self._found))
            and all(len(mapping) == size for mapping, size in self._sizes)
            and all(len(now) == len(then) and all(map(is_, now, then)) for now, then in self._lists)
            and [_place(tensor) for tensor in self._tensors] == self._places
        )


def _place(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad
