"""What a step found where it looked, to know at the next step that looking again would find the same.

Looking up and checking every tensor takes longer than scaling a small network; comparing identities does not.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any

from torch import Tensor


class Seen:
    """Entries of mappings and members of lists by identity, and where tensors lie in memory."""

    def __init__(self) -> None:
        self._reads: list[Any] = []
        self._keys: list[Hashable] = []
        self._values: list[object] = []
        self._sizes: list[tuple[Any, int]] = []
        self._lists: list[tuple[Sequence[object], list[object]]] = []
        self._tensors: list[Tensor] = []
        self._pointers: list[int] = []

    def entry(self, mapping: Mapping[Any, Any], key: Hashable) -> Any:
        """The value of a key, None if it has none."""
        return self._read(mapping.get, key)

    def attribute(self, owner: object, name: str) -> Any:
        """An object's attribute."""
        return self._read(partial(getattr, owner), name)

    def entries(self, mapping: Mapping[Any, Any]) -> list[Any]:
        """All values of a mapping, which must keep its size, too."""
        self._sizes.append((mapping, len(mapping)))
        return [self.entry(mapping, key) for key in mapping]

    def members(self, listed: Sequence[Any]) -> Sequence[Any]:
        """All members of a list."""
        self._lists.append((listed, list(listed)))
        return listed

    def memory(self, tensors: Iterable[Tensor]) -> None:
        """Where tensors lie: ``tensor.data = other`` keeps the object."""
        for tensor in tensors:
            self._tensors.append(tensor)
            self._pointers.append(tensor.data_ptr())

    def _read(self, read: Any, key: Hashable) -> Any:
        value = read(key)
        self._reads.append(read)
        self._keys.append(key)
        self._values.append(value)
        return value

    def again(self) -> bool:
        """Whether everything is still there."""
        return (
            all(
                map(is_, [read(key) for read, key in zip(self._reads, self._keys, strict=True)], self._values)
            )
            and all(len(mapping) == size for mapping, size in self._sizes)
            and all(len(now) == len(then) and all(map(is_, now, then)) for now, then in self._lists)
            and [tensor.data_ptr() for tensor in self._tensors] == self._pointers
        )
