"""The rules of the scale analysis: what each ATen operator does to scale ids.

A rule is a function of the analysis and the operator's own arguments. It returns the operator's output as a
:class:`~equinorm.values.Value`, after telling the analysis which ids must agree, which are pinned, and how
parameters are used. Rules are registered by operator name without overload or trailing underscore.
"""

from __future__ import annotations

from equinorm.rules import (  # noqa: F401  (importing a family registers its rules)
    attention,
    compare,
    contract,
    einsum,
    elementwise,
    layers,
    movement,
    nonlinear,
    norms,
    recurrent,
    reduce,
    scatter,
)
from equinorm.rules.registry import (
    RULES,
    Rule,
    evaluate,
    find,
    operator_name,
    pin_all,
    pin_unknown,
    pinned_like,
    pinned_output,
)

__all__ = [
    "RULES",
    "Rule",
    "evaluate",
    "find",
    "operator_name",
    "pin_all",
    "pin_unknown",
    "pinned_like",
    "pinned_output",
]
