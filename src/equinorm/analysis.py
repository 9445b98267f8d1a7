"""Scale analysis: run a traced graph once, on tensors of scale ids instead of numbers.

Every operator has a small rule (package ``rules``) that says what the scales of its output are and which
scales must agree for that to hold. An operator without a rule pins what enters it, so the result is sound by
construction.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from equinorm import rules
from equinorm.memory import Memory, mutated_argument
from equinorm.scale_ids import WILD, ScaleIds
from equinorm.trace import Trace
from equinorm.uses import Uses
from equinorm.values import Known, Scaled, Value, Weight, compact, shrink

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

    # --- the vocabulary of the rules ---

    @property
    def output(self) -> Any:
        """The fake tensor (or tensors) that the current operator returns."""
        assert self._node is not None
        return self._node.meta.get("val")

    @property
    def dtype_of_input(self) -> torch.dtype | None:
        """The type of the current operator's first argument."""
        assert self._node is not None
        first = self._node.args[0]
        return first.meta["val"].dtype if isinstance(first, fx.Node) else None

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
        if isinstance(value, Weight):
            return self._source(value)
        return torch.zeros((), dtype=torch.float64)

    def fresh(self, size: Sequence[int]) -> Tensor:
        return self.ids.fresh(torch.Size(size).numel()).view(tuple(size))

    def produced(self, weight: Weight, size: Sequence[int]) -> Tensor:
        """Free ids that a parameter gives to what it makes; the same at every use, as all uses must agree."""
        key = (weight.parameter, weight.size, weight.stride, weight.offset, tuple(size))
        if key not in self._produced:
            self._produced[key] = self.fresh(size)
        return self._produced[key]

    def pin(self, value: Any, reason: str) -> None:
        """Nothing that enters here may be scaled."""
        if isinstance(value, Weight):
            zero = torch.zeros([1] * len(value.size), dtype=torch.float64)
            cause = self.fresh([1])
            self.pin_ids(cause, reason)
            self.events[-1].parameter = True
            self.uses.record(value, zero + cause, zero, counted=False)
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
        for dim in dims:
            if ids.stride(dim) == 0:
                ids = ids.narrow(dim, 0, 1)
        if not any(ids.size(dim) > 1 for dim in dims):
            return ids
        small = compact(ids)
        common = small.amin(dims, keepdim=True)  # the wildcard is the largest
        self._unite_now(small, common.expand(small.shape), reason)
        return common.expand([1 if d in dims else ids.size(d) for d in range(ids.dim())])

    def multiply(self, weight: Weight, plus: Tensor, minus: Tensor) -> None:
        """Record that the entries of a multiplicative parameter scale by plus over minus."""
        self.uses.record(weight, plus, minus, counted=True)
        self.depth[weight.parameter] = max(self.depth.get(weight.parameter, 1), self._node_depth)

    def linear_map(self, weight: Weight, plus: Tensor, minus: Tensor) -> None:
        """The same for the matrix of a linear map, which is one layer deeper than its input."""
        self._node_depth += 1
        self.uses.linear.add(weight.parameter)
        self.multiply(weight, plus, minus)

    def move(self, weight: Weight, plus: Tensor) -> None:
        """Record that an additive parameter moves with what it is added to."""
        self.uses.record(weight, plus, torch.zeros([1] * plus.dim(), dtype=torch.float64), counted=False)

    def is_free(self, ids: Tensor) -> bool:
        resolved = self.ids.resolve(compact(ids))
        return bool(((resolved != 0) & (resolved != WILD)).any())

    # --- running a graph ---

    def run(self, trace: Trace) -> None:
        graph_module = trace.graph_module
        inputs: list[Value] = []
        for node in graph_module.graph.find_nodes(op="placeholder"):
            inputs.append(_placeholder(trace, node))
        outputs, written = self._interpret(trace, graph_module, inputs)
        for value in outputs:
            self.pin(value, "it is an output of the model")
        for value in written:
            self.pin(value, "it is written into a buffer or an input")

    def _interpret(
        self, trace: Trace, module: fx.GraphModule, inputs: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """The values that the graph returns, and those left in placeholders that it wrote into."""
        values: dict[fx.Node, Any] = {}
        depths: dict[fx.Node, int] = {}
        memory = Memory(trace, module.graph)
        rewritten: set[fx.Node] = set()
        supply = iter(inputs)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(supply)
            elif node.op == "get_attr":
                values[node] = _attribute(module, str(node.target))
            elif node.op == "output":
                self._node = node
                written = [values[alias] for alias in rewritten if alias.op == "placeholder"]
                return [values[n] for n in node.all_input_nodes], written
            else:
                self._node = node
                self._node_depth = max((depths.get(n, 0) for n in node.all_input_nodes), default=0)
                target = mutated_argument(node)
                in_place = target is not None and isinstance(values[target], Known)
                values[node] = self._call(trace, node, values, memory)
                depths[node] = self._node_depth
                # Known numbers that an operator changes in place have been written themselves.
                if not (in_place and isinstance(values[node], Known)):
                    for alias in memory.rewritten_by(node):
                        values[alias], depths[alias] = values[node], depths[node]
                        rewritten.add(alias)
            if memory.starts_mixed(node):
                values[node] = Scaled(
                    self.ids_of(values[node]).expand(node.meta["val"].shape).contiguous().clone()
                )
        raise AssertionError("a graph ends with its output")

    def _call(self, trace: Trace, node: fx.Node, values: dict[fx.Node, Any], memory: Memory) -> Any:
        if memory.is_mixed(node) and mutated_argument(node) is None and memory.base_of(node) is not None:
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: _bare_ids(values[n]))
            return pytree.tree_map(Scaled, node.target(*args, **kwargs))  # type: ignore[operator]
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: values[n])
        result = self._by_rule(trace, node, args, kwargs)
        written = mutated_argument(node)
        target = None if written is None else values[written]
        if memory.is_mixed(node) and isinstance(target, Scaled):
            target.ids.copy_(self.ids_of(result).expand(target.ids.shape))
            return target
        return result

    def _by_rule(self, trace: Trace, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return self._call_wrapped(trace, node, args, kwargs)
        if node.target is operator.getitem:
            return args[0][args[1]]
        if any(_is_symbolic(n) for n in (node, *node.all_input_nodes)):
            return rules.pin_all(self, (args, kwargs), "the shape depends on the data")
        known = rules.evaluate(node, args, kwargs)
        if known is not None:
            return known
        rule = rules.find(node)
        if rule is None:
            return rules.pin_unknown(self, node, args, kwargs)
        return rule(self, *args, **kwargs)

    def _call_wrapped(self, trace: Trace, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """Regions such as autocast hold their operators in a graph of their own."""
        for position, value in enumerate(args):
            if isinstance(value, fx.GraphModule) and rules.operator_name(node).startswith("wrap"):
                outputs, _ = self._interpret(trace, value, args[position + 1 :])
                self._node = node
                return tuple(outputs)
        return rules.pin_unknown(self, node, args, kwargs)

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

    def _source(self, weight: Weight) -> Tensor:
        size = [1 if stride == 0 else n for n, stride in zip(weight.size, weight.stride, strict=True)]
        if torch.Size(size).numel() > ENTRYWISE_SOURCE_LIMIT:
            self.pin(weight, "a large parameter that is read entry by entry")
            return torch.zeros(()).double().expand(weight.size)
        ids = self.produced(weight, size)
        self.move(Weight(weight.parameter, tuple(size), weight.stride, weight.offset), ids)
        return ids.expand(weight.size)


def _is_symbolic(node: fx.Node) -> bool:
    """Whether a size is known only when the model runs (``nonzero``, boolean masks)."""
    tensors = [v for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, Tensor)]
    return any(isinstance(n, torch.SymInt) for tensor in tensors for n in tensor.shape)


def _bare_ids(value: Any) -> Any:
    return pytree.tree_map(lambda v: v.ids if isinstance(v, Scaled) else v, value)


def _compact_pair(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    for dim in range(a.dim()):
        if a.size(dim) > 1 and a.stride(dim) == 0 and b.stride(dim) == 0:
            a, b = a.narrow(dim, 0, 1), b.narrow(dim, 0, 1)
    return a, b


def _placeholder(trace: Trace, node: fx.Node) -> Any:
    value: Any = node.meta.get("val")
    if node.name in trace.parameters:
        return Weight.whole(trace.parameters[node.name], value.shape)
    if node.name in trace.constants:
        return Known(trace.constants[node.name].clone())
    buffer = trace.buffers.get(node.name)
    if buffer is not None and not buffer.is_floating_point():
        return Known(buffer.clone())  # an index table or a mask; floating-point buffers may change
    if not isinstance(value, Tensor):
        return value
    return Scaled(torch.zeros((), dtype=torch.float64).expand(value.shape))


def _attribute(module: fx.GraphModule, target: str) -> Any:
    value: Any = module
    for name in target.split("."):
        value = getattr(value, name)
    return Known(value.detach().clone()) if isinstance(value, Tensor) else value


def _module_path(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else ""
