"""Scale analysis: a traced graph runs once, on tensors of scale ids instead of numbers.

Every operator has a small rule (package ``rules``) that says what the scales of its output are and which
scales must agree for that to hold. An operator without a rule pins what enters it, so the result is sound by
construction. Here is the state of the run and the vocabulary of the rules; ``interpret`` calls them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from equinorm import rules
from equinorm.derived import Parametric, broadcast
from equinorm.scale_ids import WILD, ScaleIds
from equinorm.uses import Uses
from equinorm.values import Derived, Known, Record, Scaled, Weight, compact, shrink

ENTRYWISE_SOURCE_LIMIT = 2**20


@dataclass
class Event:
    """One operator that pinned something."""

    node: str
    op: str
    module: str
    reason: str
    count: int = 0
    parameter: bool = False  # a parameter itself, rather than an activation


class Analysis:
    """The state of the run, and the vocabulary in which the rules are written."""

    def __init__(self, batch_norm: str) -> None:
        self.batch_norm = batch_norm
        self.ids = ScaleIds()
        self.events: list[Event] = []
        self.uses = Uses(self.ids, self._unite_now)
        self.depth: dict[str, int] = {}
        self._produced: dict[tuple[Any, ...], Tensor] = {}
        self._node: fx.Node | None = None
        self._node_depth = 0

    def enter(self, node: fx.Node, depth: int) -> None:
        """The operator whose rule runs from here on, and how many linear maps lie before it."""
        self._node, self._node_depth = node, depth

    @property
    def depth_reached(self) -> int:
        """The linear maps before the current operator, and those that it has turned out to be."""
        return self._node_depth

    # --- the vocabulary of the rules ---

    def back_to(self, depth: int) -> None:
        """What follows within this operator lies beside what came before it, not behind."""
        self._node_depth = depth

    @property
    def output(self) -> Any:
        """The fake tensor (or tensors) that the current operator returns."""
        assert self._node is not None
        return self._node.meta.get("val")

    @property
    def fakes(self) -> tuple[Any, ...]:
        """The fake tensors that the current operator is called with."""
        assert self._node is not None
        found: tuple[Any, ...] = fx.map_arg(self._node.args, lambda node: node.meta["val"])
        return found

    @property
    def operator(self) -> str:
        """The current operator's name."""
        assert self._node is not None
        return rules.operator_name(self._node)

    @property
    def schema(self) -> Any:
        """The current operator's schema: the names of its arguments."""
        assert self._node is not None
        return getattr(self._node.target, "_schema", None)

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """The current operator, run on other tensors."""
        assert self._node is not None
        return self._node.target(*args, **kwargs)  # type: ignore[operator]

    def ids_of(self, value: Any) -> Tensor:
        """The ids of every entry; a parameter that is read as data gets ids of its own."""
        if isinstance(value, Scaled):
            return value.ids
        if isinstance(value, Known):
            return value.ids()
        if isinstance(value, (Weight, Derived)):
            return self._source(value)
        return torch.zeros((), dtype=torch.float64)

    def fresh(self, size: Sequence[int]) -> Tensor:
        return self.ids.fresh(torch.Size(size).numel()).view(tuple(size))

    def produced(self, weight: Parametric, size: Sequence[int]) -> Tensor:
        """Free ids that a parameter gives to what it makes; the same at every use, as all uses must agree."""
        if isinstance(weight, Derived):
            return self.fresh(size)
        key = (weight.parameter, weight.size, weight.stride, weight.offset, tuple(size))
        if key not in self._produced:
            self._produced[key] = self.fresh(size)
        return self._produced[key]

    def pin(self, value: Any, reason: str) -> None:
        """Nothing that enters here may be scaled."""
        if isinstance(value, (Weight, Derived)):
            zero = torch.zeros([1] * value.rank, dtype=torch.float64)
            cause = self.fresh([1])
            self.pin_ids(cause, reason)
            self.events[-1].parameter = True
            value.assign(self._note, zero + cause.view(zero.shape), zero)
        elif isinstance(value, Scaled):
            self.pin_ids(compact(value.ids), reason)
        elif isinstance(value, (list, tuple)):
            for item in value:
                self.pin(item, reason)

    def unite(self, a: Tensor, b: Tensor, reason: str) -> Tensor:
        """Entries that meet must have one scale; returns it (broadcast), wildcards giving way."""
        shape = torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
        a, b = _compact_pair(a.expand(shape), b.expand(shape))
        self._unite_now(a, b, reason)
        united = torch.where(a == WILD, b, a)
        if united.numel() > 4096:
            united = shrink(self.ids.resolve(united))
        return united.expand(shape)

    def uniform(self, ids: Tensor, dims: Sequence[int], reason: str) -> Tensor:
        """Entries along ``dims`` must have one scale; returns it with those dimensions of size one."""
        dims = [d % ids.dim() for d in dims] if ids.dim() else []
        if 0 in ids.shape:  # nothing meets
            return ids.new_full([1 if d in dims else ids.size(d) for d in range(ids.dim())], WILD)
        for dim in dims:
            if ids.stride(dim) == 0:
                ids = ids.narrow(dim, 0, 1)
        if not any(ids.size(dim) > 1 for dim in dims):
            return ids
        small = compact(ids)
        common = small.amin(dims, keepdim=True)  # the wildcard is the largest
        self._unite_now(small, common.expand(small.shape), reason)
        return common.expand([1 if d in dims else ids.size(d) for d in range(ids.dim())])

    def multiply(self, weight: Parametric, plus: Tensor, minus: Tensor) -> None:
        """Record that the entries of a multiplicative parameter scale by plus over minus."""
        if isinstance(weight, Derived):
            weight.assign(self.multiply, plus, minus)
            return
        self._record(weight, plus, minus, counted=True)
        self.depth[weight.parameter] = max(self.depth.get(weight.parameter, 1), self._node_depth)

    def linear_map(self, weight: Parametric, plus: Tensor, minus: Tensor) -> None:
        """The same for the matrix of a linear map, which is one layer deeper than its input."""
        self._node_depth += 1
        weight.assign(self._matrix, plus, minus)

    def move(self, weight: Parametric, plus: Tensor) -> None:
        """Record that an additive parameter moves with what it is added to."""
        weight.assign(self._note, plus, torch.zeros([1] * plus.dim(), dtype=torch.float64))

    def _matrix(self, weight: Weight, plus: Tensor, minus: Tensor) -> None:
        self.uses.linear.add(weight.parameter)
        self.multiply(weight, plus, minus)

    def _note(self, weight: Weight, plus: Tensor, minus: Tensor) -> None:
        self._record(weight, plus, minus, counted=False)

    def _record(self, weight: Weight, plus: Tensor, minus: Tensor, counted: bool) -> None:
        def record(view: Weight, plus: Tensor, minus: Tensor) -> None:
            self.uses.record(view, plus, minus, counted)

        broadcast(self, weight, weight.size).assign(record, plus, minus)

    def counting(self, record: Record) -> Record:
        """Factors of a product count in the norm, even where the product is only added to something."""
        return self.multiply if record == self._note else record

    def is_free(self, ids: Tensor) -> bool:
        resolved = self.ids.resolve(compact(ids))
        return bool(((resolved != 0) & (resolved != WILD)).any())

    # --- pins ---

    def pin_ids(self, ids: Tensor, reason: str) -> None:
        """Pin these ids, for a reason found at the current operator."""
        event = self._event(reason)
        event.count += self.ids.pin(ids, len(self.events))
        self._forget_if_idle(event)

    def _unite_now(self, a: Tensor, b: Tensor, reason: str) -> None:
        event = self._event(reason)
        shape = torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
        a, b = a.expand(shape), b.expand(shape)
        event.count += self.ids.unite(a, b, len(self.events))
        self._forget_if_idle(event)

    def _event(self, reason: str) -> Event:
        node = self._node
        if node is None:
            event = Event("", "", "", reason)
        else:
            event = Event(node.name, rules.operator_name(node), _module_path(node), reason)
        self.events.append(event)
        return event

    def _forget_if_idle(self, event: Event) -> None:
        if event.count == 0:
            self.events.pop()

    def _source(self, weight: Parametric) -> Tensor:
        narrow = weight.unrepeated() if isinstance(weight, Weight) else weight
        if torch.Size(narrow.size).numel() > ENTRYWISE_SOURCE_LIMIT:
            self.pin(weight, "a large parameter that is read entry by entry")
            return torch.zeros((), dtype=torch.float64).expand(weight.size)
        ids = self.produced(narrow, narrow.size)
        self.move(narrow, ids)
        return ids.expand(weight.size)


def _compact_pair(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    for dim in range(a.dim()):
        if a.size(dim) > 1 and a.stride(dim) == 0 and b.stride(dim) == 0:
            a, b = a.narrow(dim, 0, 1), b.narrow(dim, 0, 1)
    return a, b


def _module_path(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else ""
