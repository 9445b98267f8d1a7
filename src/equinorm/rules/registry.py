"""Where rules are registered and looked up, and what happens to operators that have none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from equinorm.values import Derived, Known, Scaled, Weight

if TYPE_CHECKING:
    from equinorm.analysis import Analysis

RuleFunction = Callable[..., Any]

EVALUATED_LIMIT = 2**24
UNKNOWN = (Scaled, Weight, Derived, torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class Rule:
    """What happens to the ids at one operator."""

    function: RuleFunction
    family: str


RULES: dict[str, Rule] = {}


def rule(family: str, *operators: str) -> Callable[[RuleFunction], RuleFunction]:
    """Register a function as the rule of these operators, described under ``family``."""

    def register(function: RuleFunction) -> RuleFunction:
        for operator in operators:
            assert operator not in RULES, operator
            RULES[operator] = Rule(function, family)
        return function

    return register


def operator_name(node: fx.Node) -> str:
    """The operator's name without namespace ``aten``, overload and in-place underscore: ``relu``, ``conv2d``."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return getattr(node.target, "__name__", str(node.target))
    name = str(schema.name).removeprefix("aten::")
    return name.removesuffix("_") if schema.is_mutable and not name.startswith("__") else name


def find(node: fx.Node) -> RuleFunction | None:
    """The rule of the operator that the node calls."""
    found = RULES.get(operator_name(node))
    return found.function if found else None


def evaluate(node: fx.Node, args: Any, kwargs: Any) -> Any:
    """The operator's result if all that enters it is known, else None: masks, position tables, zeros."""
    target = node.target
    leaves = pytree.tree_leaves((args, kwargs))
    if not isinstance(target, torch._ops.OpOverload) or any(isinstance(v, UNKNOWN) for v in leaves):
        return None
    outputs = [v for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, Tensor)]
    if torch.Tag.nondeterministic_seeded in target.tags or operator_name(node).startswith(
        ("empty", "new_empty")
    ):
        return None
    if not outputs or any(isinstance(n, torch.SymInt) for v in outputs for n in v.shape):
        return None
    if sum(v.numel() for v in outputs) > EVALUATED_LIMIT:
        return None
    numbers = pytree.tree_map(lambda v: v.tensor if isinstance(v, Known) else v, (args, kwargs))
    result = target(*numbers[0], **numbers[1])
    return pytree.tree_map(lambda v: Known(v) if isinstance(v, Tensor) else v, result)


def pin_unknown(analysis: Analysis, arguments: Any) -> Any:
    """No rule: whatever enters keeps scale one, and so does what comes out."""
    reason = f"{analysis.operator} has no rule: it may not be positively homogeneous"
    return pin_all(analysis, arguments, reason)


def pin_all(analysis: Analysis, arguments: Any, reason: str) -> Any:
    """Pin what enters the current operator; so is what comes out."""
    for value in pytree.tree_leaves(arguments):
        analysis.pin(value, reason)
    return pinned_output(analysis)


def pinned_output(analysis: Analysis) -> Any:
    """The current operator's outputs at scale one."""
    return pinned_like(analysis.output)


def pinned_like(fake: Any) -> Any:
    """Tensors of these shapes at scale one."""
    zero = torch.zeros((), dtype=torch.float64)
    return pytree.tree_map(lambda v: Scaled(zero.expand(_sizes(v))) if isinstance(v, Tensor) else v, fake)


def _sizes(tensor: Tensor) -> list[int]:
    """The sizes, one where they are known only when the model runs."""
    return [n if isinstance(n, int) else 1 for n in tensor.shape]


def is_number(value: Any) -> TypeGuard[float]:
    """Whether an argument is a plain number rather than a tensor of the graph."""
    return isinstance(value, (int, float, bool, complex))
