"""Run traced graphs on scale ids, node by node: each operator by its rule, each write where it lands."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from equinorm import rules
from equinorm.analysis import Analysis
from equinorm.errors import ArgumentError
from equinorm.memory import Memory, is_symbolic
from equinorm.trace import Trace
from equinorm.values import Derived, Fixed, Known, Scaled, Weight

UNFOLLOWED = "it is in memory that is written in ways that are not followed"


def interpret(analysis: Analysis, traces: Sequence[Trace]) -> None:
    """Run all graphs of a model, and unite what they demand."""
    runs = [GraphRun(analysis, trace, trace.graph_module) for trace in traces]
    changing = {storage for run in runs for storage in run.written_storages()}
    changing |= {_storage(tensor) for trace in traces for tensor in trace.replaced}
    for trace, run in zip(traces, runs, strict=True):
        placeholders = trace.graph_module.graph.find_nodes(op="placeholder")
        outputs, written = run.run([_placeholder(trace, node, changing) for node in placeholders])
        returned = len(outputs) - trace.stored
        analysis.pin(outputs[:returned], "it is an output of the model")
        follows = run.follows_inputs(changing)
        stored = [value for value, yes in zip(outputs[returned:], follows[returned:], strict=True) if yes]
        analysis.pin(stored, "it is stored on the model, from where others may read it")
        analysis.pin(written, "it is written into a buffer or an input")


def _placeholder(trace: Trace, node: fx.Node, changing: set[int]) -> Any:
    """Parameters; constants whose numbers are known, unless a forward pass changes them; everything else is data."""
    value: Any = node.meta.get("val")
    if node.name in trace.parameters:
        return Weight.whole(trace.parameters[node.name], value.shape)
    table = trace.constants.get(node.name, trace.buffers.get(node.name))
    # Floating-point buffers may be loaded or updated between two calls: only masks and tables of whole numbers stay.
    lasting = table is not None and (node.name in trace.constants or not table.is_floating_point())
    if table is not None and lasting and table.layout is torch.strided and _storage(table) not in changing:
        return Known(table.clone())
    if not isinstance(value, Tensor):
        return value
    if table is None and value.numel() == 0:
        raise ArgumentError(
            f"example_inputs: {node.name} is empty, of shape {tuple(value.shape)}: what the model does with data "
            "cannot be seen on none; give at least one sample"
        )
    pinned = torch.zeros((), dtype=torch.float64).expand(value.shape)
    return Scaled(pinned) if table is None else Fixed(pinned)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else id(tensor)


class GraphRun:
    """One pass over one graph: the value and the depth of every node so far."""

    def __init__(self, analysis: Analysis, trace: Trace, module: fx.GraphModule) -> None:
        self._a = analysis
        self._trace = trace
        self._module = module
        self._memory = Memory(trace, module.graph)
        self._values: dict[fx.Node, Any] = {}
        self._depths: dict[fx.Node, int] = {}
        self._rewritten: set[fx.Node] = set()

    def written_storages(self) -> set[int]:
        """The buffers and constants that this graph changes."""
        tables = {**self._trace.buffers, **self._trace.constants}
        written = {node.name for node in self._memory.written_placeholders()}
        return {_storage(tables[name]) for name in written if name in tables}

    def follows_inputs(self, changing: set[int]) -> list[bool]:
        """Whether each output depends on the inputs, or on what a forward pass changes: not on parameters alone."""
        tables = {**self._trace.buffers, **self._trace.constants}
        lasting = {name for name, tensor in tables.items() if _storage(tensor) not in changing}
        lasting |= self._trace.parameters.keys()
        found: set[fx.Node] = set()
        for node in self._module.graph.nodes:
            if any(n in found for n in node.all_input_nodes):
                found.add(node)
                found.update(n for target in self._memory.written(node) for n in self._memory.sharing(target))
            elif node.op == "placeholder" and node.name not in lasting:
                found.add(node)
        (output,) = self._module.graph.find_nodes(op="output")
        return [value in found for value in pytree.tree_leaves(output.args[0])]

    def run(self, inputs: Sequence[Any], depth: int = 0) -> tuple[list[Any], list[Any]]:
        """The values that the graph returns, in order, and those left in placeholders that it wrote into.

        ``depth``: how many linear maps lie before the inputs.
        """
        supply = iter(inputs)
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                self._values[node], self._depths[node] = next(supply), depth
            elif node.op == "get_attr":
                self._values[node] = _attribute(self._module, str(node.target))
            elif node.op == "output":
                self._a.enter(node, self._depth_before(node))
                written = [self._values[n] for n in self._rewritten if n.op == "placeholder"]
                outputs = pytree.tree_leaves(node.args[0])
                return [self._values[v] if isinstance(v, fx.Node) else v for v in outputs], written
            else:
                self._enter(node)
            if self._memory.starts_mixed(node) and not self._memory.is_abandoned([node]):
                ids = self._a.ids_of(self._values[node]).expand(node.meta["val"].shape)
                self._values[node] = Scaled(ids.contiguous().clone())
        raise AssertionError("a graph ends with its output")

    def _enter(self, node: fx.Node) -> None:
        """Call an operator, and give its result to all that see the memory it wrote to."""
        self._a.enter(node, self._depth_before(node))
        written = self._memory.written(node)
        in_place = any(isinstance(self._values[target], Known) for target in written)
        try:
            result = self._call(node, written)
        except Exception as error:  # a wrong rule must cost a symmetry, not the user's session
            said = str(error).strip().partition("\n")[0]
            result = self._give_up(
                node, f"{self._a.operator} could not be analysed: {type(error).__name__}: {said}"
            )
        self._values[node], self._depths[node] = result, self._a.depth_reached
        # Known numbers that an operator changes in place have been written themselves.
        if not (in_place and isinstance(result, Known)) and not self._memory.is_abandoned(written):
            for alias in self._memory.rewritten_by(node):
                self._values[alias], self._depths[alias] = result, self._depths[node]
                self._rewritten.add(alias)

    def _call(self, node: fx.Node, written: list[fx.Node]) -> Any:
        memory = self._memory
        if memory.is_abandoned([node, *written]):
            return self._give_up(node, UNFOLLOWED)
        if memory.is_mixed(node) and not written and memory.base_of(node) is not None:
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: _bare_ids(self._values[n]))
            return pytree.tree_map(Scaled, node.target(*args, **kwargs))  # type: ignore[operator]
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), self._read)
        known = rules.evaluate(node, args, kwargs)
        if known is not None:
            return known
        if written and (len(written) > 1 or memory.base_of(node) is not written[0]):
            return self._give_up(node, f"{self._a.operator} writes to memory other than its result's")
        result = self._by_rule(node, args, kwargs)
        target = self._values[written[0]] if written else None
        if memory.is_mixed(node) and isinstance(target, Scaled):
            target.ids.copy_(self._a.ids_of(result).expand(target.ids.shape))
            return target
        return result

    def _depth_before(self, node: fx.Node) -> int:
        return max((self._depths.get(n, 0) for n in node.all_input_nodes), default=0)

    def _read(self, node: fx.Node) -> Any:
        """A node's value now: what is made of it must not be a view of ids that a later write changes."""
        value = self._values[node]
        return _copied(value) if self._memory.is_mixed(node) else value

    def _by_rule(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return self._call_wrapped(node, args, kwargs)
        if node.target is operator.getitem:
            return args[0][args[1]]
        if any(is_symbolic(n) for n in (node, *node.all_input_nodes)):
            return rules.pin_all(self._a, (args, kwargs), "the shape depends on the data")
        rule = rules.find(node)
        if rule is None:
            return rules.pin_unknown(self._a, (args, kwargs))
        return rule(self._a, *args, **{name: value for name, value in kwargs.items() if name != "out"})

    def _call_wrapped(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """Regions such as autocast hold their operators in a graph of their own."""
        for position, value in enumerate(args):
            if isinstance(value, fx.GraphModule) and rules.operator_name(node).startswith("wrap"):
                inner = GraphRun(self._a, self._trace, value)
                outputs, written = inner.run(args[position + 1 :], self._a.depth_reached)
                self._a.enter(node, self._a.depth_reached)
                if written:
                    self._a.pin(written, UNFOLLOWED)
                    return self._give_up(node, UNFOLLOWED, node.all_input_nodes)
                return tuple(outputs)
        return rules.pin_unknown(self._a, (args, kwargs))

    def _give_up(self, node: fx.Node, reason: str, written: Sequence[fx.Node] | None = None) -> Any:
        """Pin all that an operator saw, and abandon the memory that it wrote to, with everything in it."""
        touched = [
            n for target in (written or self._memory.written(node)) for n in self._memory.sharing(target)
        ]
        touched = [n for n in touched if n in self._values]
        self._a.pin([self._values[n] for n in (*node.all_input_nodes, *touched)], reason)
        for other in touched:
            self._memory.abandon(other)
            if isinstance(self._values[other], (Known, Weight, Derived, Scaled)):
                self._values[other] = rules.pinned_like(other.meta["val"])
                self._rewritten.add(other)
        return rules.pinned_output(self._a)


def _bare_ids(value: Any) -> Any:
    return pytree.tree_map(lambda v: v.ids if isinstance(v, Scaled) else v, value)


def _copied(value: Any) -> Any:
    return pytree.tree_map(lambda v: Scaled(v.ids.clone()) if isinstance(v, Scaled) else v, value)


def _attribute(module: fx.GraphModule, target: str) -> Any:
    value: Any = module
    for name in target.split("."):
        value = getattr(value, name)
    return Known(value.detach().clone()) if isinstance(value, Tensor) else value
