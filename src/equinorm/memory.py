"""Which tensors of a graph share memory, and what an in-place operator therefore rewrites."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from equinorm.trace import Trace


def mutated_argument(node: fx.Node) -> fx.Node | None:
    """The argument that an in-place operator writes to."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.is_mutable:
        return None
    for argument, value in zip(schema.arguments, node.args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, fx.Node):
            return value
    return None


def storage_key(node: fx.Node) -> int | None:
    """Equal for nodes whose tensors share memory, None where there is no one tensor to speak of.

    Of several outputs, those of ``split`` are views of one memory; those of ``topk`` each have their own.
    """
    tensors = [v for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, Tensor)]
    keys = {tensor.untyped_storage()._cdata for tensor in tensors if tensor.layout is torch.strided}
    return keys.pop() if len(keys) == 1 else None


class Memory:
    """The alias sets of one graph.

    Most in-place operators write to a tensor that nothing else views differently (``relu_`` after a
    convolution): then the nodes that see that memory in the same way take the new value. Where a graph writes
    through one view and reads through another (``h[:, :k] = …``), the ids of that memory are kept in memory
    of their own, and the graph's own views and writes run on it.
    """

    def __init__(self, trace: Trace, graph: fx.Graph) -> None:
        self._nodes = list(graph.nodes)
        self._order = {node: index for index, node in enumerate(self._nodes)}
        self._sharing: dict[int | None, list[fx.Node]] = {}
        for node in self._nodes:
            self._sharing.setdefault(storage_key(node), []).append(node)
        constant = self._constants(trace)
        self._mixed = {
            storage_key(node)
            for node in self._nodes
            if node not in constant and self._writes_beside_views(node)
        }

    def is_mixed(self, node: fx.Node) -> bool:
        """Whether this memory is written through one view and read through another."""
        return bool(self._mixed) and storage_key(node) in self._mixed

    def starts_mixed(self, node: fx.Node) -> bool:
        """Whether such memory begins here."""
        return self.is_mixed(node) and mutated_argument(node) is None and self.base_of(node) is None

    def base_of(self, node: fx.Node) -> fx.Node | None:
        """The argument that a node is a view of."""
        key = storage_key(node)
        return next((n for n in node.all_input_nodes if storage_key(n) == key), None)

    def rewritten_by(self, node: fx.Node) -> Iterator[fx.Node]:
        """The earlier nodes that see the memory an in-place operator writes to as it does."""
        target = mutated_argument(node)
        if target is not None:
            for other in self._sharing[storage_key(target)]:
                if self._order[other] < self._order[node] and _same_view(other, target):
                    yield other

    def _writes_beside_views(self, node: fx.Node) -> bool:
        target = mutated_argument(node)
        if target is None:
            return False
        return any(
            self._order[other] < self._order[node]
            and not _same_view(other, target)
            and any(self._order[user] > self._order[node] for user in other.users)
            for other in self._sharing[storage_key(target)]
        )

    def _constants(self, trace: Trace) -> set[fx.Node]:
        """Nodes computed from constants alone; writing anything else into such memory takes it out."""
        constant: set[fx.Node] = set()
        for node in self._nodes:
            if node.op == "placeholder" and node.name in trace.constants:
                constant.add(node)
            elif node.op == "call_function" and all(n in constant for n in node.all_input_nodes):
                tags = getattr(node.target, "tags", ())
                constant.update(() if torch.Tag.nondeterministic_seeded in tags else (node,))
        return constant


def _same_view(a: fx.Node, b: fx.Node) -> bool:
    x, y = a.meta["val"], b.meta["val"]
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return False  # several views at once
    return bool(x.shape == y.shape and x.stride() == y.stride() and x.storage_offset() == y.storage_offset())
