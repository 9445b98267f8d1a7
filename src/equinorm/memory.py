"""Which tensors of a graph share memory, and what an in-place operator therefore rewrites."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from equinorm.trace import Trace

DROPOUTS = ["aten::dropout", "aten::feature_dropout", "aten::alpha_dropout", "aten::feature_alpha_dropout"]


def written_arguments(node: fx.Node) -> list[fx.Node]:
    """The arguments that an operator writes to: ``relu_(x)``, ``out=``, lists of tensors."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.is_mutable:
        return []
    positional = dict(zip([argument.name for argument in schema.arguments], node.args, strict=False))
    named = positional | node.kwargs
    written = [
        named.get(a.name) for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
    ]
    return [value for value in pytree.tree_leaves(written) if isinstance(value, fx.Node)]


def returned_argument(node: fx.Node) -> fx.Node | None:
    """The argument that an operator returns itself, whatever the fake tensors of the trace say.

    In-place operators do, and so does dropout where it drops nothing.
    """
    written = written_arguments(node)
    schema: Any = getattr(node.target, "_schema", None)
    if len(written) == 1 and len(schema.returns) == 1 and schema.returns[0].alias_info is not None:
        return written[0]
    if schema is not None and schema.name in DROPOUTS:
        named = (
            dict(zip([argument.name for argument in schema.arguments], node.args, strict=False)) | node.kwargs
        )
        return named["input"] if named["p"] == 0 or not named["train"] else None
    return None


def storage_key(node: fx.Node) -> int | None:
    """Equal for nodes whose tensors share memory, None where there is no one tensor to speak of.

    Of several outputs, those of ``split`` are views of one memory; those of ``topk`` each have their own.
    """
    tensors = [v for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, Tensor)]
    try:
        keys = {tensor.untyped_storage()._cdata for tensor in tensors if tensor.layout is torch.strided}
    except NotImplementedError:  # wrapped tensors, as inside torch.vmap
        return None
    return keys.pop() if len(keys) == 1 else None


class Memory:
    """The alias sets of one graph.

    Most in-place operators write to a tensor that nothing else views differently (``relu_`` after a
    convolution): then the nodes that see that memory in the same way take the new value. Where a graph writes
    through one view and reads through another (``h[:, :k] = …``), the ids of that memory are kept in memory
    of their own, and the graph's own views and writes run on it.

    Memory that cannot be followed is abandoned: whoever touches it is pinned.
    """

    def __init__(self, trace: Trace, graph: fx.Graph) -> None:
        self._nodes = list(graph.nodes)
        self._order = {node: index for index, node in enumerate(self._nodes)}
        self._keys = _keys(self._nodes)
        self._sharing: dict[int | None, list[fx.Node]] = {}
        for node in self._nodes:
            self._sharing.setdefault(self._keys[node], []).append(node)
        self._written = {node: written for node in self._nodes if (written := written_arguments(node))}
        constant = self._constants(trace)
        self._mixed = {
            self._keys[target]
            for node, written in self._written.items()
            if node not in constant
            for target in written
            if self._is_viewed_otherwise(node, target)
        }
        self._abandoned = {key for key in self._mixed if any(map(is_symbolic, self._sharing[key]))}
        self._abandoned |= {None} & {self._keys[n] for written in self._written.values() for n in written}

    def written(self, node: fx.Node) -> list[fx.Node]:
        """The arguments that a node writes to."""
        return self._written.get(node, [])

    def written_placeholders(self) -> Iterator[fx.Node]:
        """The inputs, parameters, buffers and constants that the graph changes."""
        for target in {n for written in self._written.values() for n in written}:
            yield from (node for node in self.sharing(target) if node.op == "placeholder")

    def sharing(self, node: fx.Node) -> list[fx.Node]:
        """All nodes of the graph that see the memory of this one."""
        return self._sharing[self._keys[node]]

    def is_mixed(self, node: fx.Node) -> bool:
        """Whether this memory is written through one view and read through another."""
        return bool(self._mixed) and self._keys[node] in self._mixed

    def is_abandoned(self, nodes: Iterable[fx.Node]) -> bool:
        """Whether any of these is in memory that is not followed."""
        return bool(self._abandoned) and any(self._keys[node] in self._abandoned for node in nodes)

    def abandon(self, node: fx.Node) -> None:
        """Stop following the memory of this node."""
        self._abandoned.add(self._keys[node])

    def starts_mixed(self, node: fx.Node) -> bool:
        """Whether such memory begins here."""
        return self.is_mixed(node) and node not in self._written and self.base_of(node) is None

    def base_of(self, node: fx.Node) -> fx.Node | None:
        """The argument that a node is a view of."""
        return next((n for n in node.all_input_nodes if self._keys[n] == self._keys[node]), None)

    def rewritten_by(self, node: fx.Node) -> Iterator[fx.Node]:
        """The earlier nodes that see the memory an in-place operator writes to as it does."""
        for target in self.written(node):
            for other in self.sharing(target):
                if self._order[other] < self._order[node] and _same_view(other, target):
                    yield other

    def _is_viewed_otherwise(self, node: fx.Node, target: fx.Node) -> bool:
        return any(
            self._order[other] < self._order[node]
            and not _same_view(other, target)
            and any(self._order[user] > self._order[node] for user in other.users)
            for other in self.sharing(target)
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


def _keys(nodes: list[fx.Node]) -> dict[fx.Node, int | None]:
    """The storage of every node, those that an operator returns unchanged taken together."""
    keys = {node: storage_key(node) for node in nodes}
    same: dict[int | None, int | None] = {}

    def root(key: int | None) -> int | None:
        while key in same:
            key = same[key]
        return key

    for node in nodes:
        base = returned_argument(node)
        if base is not None and root(keys[node]) != root(keys[base]):
            same[root(keys[node])] = root(keys[base])
    return {node: root(key) for node, key in keys.items()} if same else keys


def is_symbolic(node: fx.Node) -> bool:
    """Whether a size is known only when the model runs (``nonzero``, boolean masks)."""
    tensors = [v for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, Tensor)]
    return any(isinstance(n, torch.SymInt) for tensor in tensors for n in tensor.shape)


def _same_view(a: fx.Node, b: fx.Node) -> bool:
    x, y = a.meta["val"], b.meta["val"]
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return False  # several views at once
    return bool(x.shape == y.shape and x.stride() == y.stride() and x.storage_offset() == y.storage_offset())
