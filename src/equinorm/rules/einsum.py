"""Einsum: its equation spelled out, then contracted operand by operand."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from equinorm.derived import PARAMETRIC, contracted, moved
from equinorm.rules.contract import FAMILY, REASON, arrange, contract
from equinorm.rules.registry import rule
from equinorm.values import Scaled, Value

if TYPE_CHECKING:
    from equinorm.analysis import Analysis


@rule(FAMILY, "einsum")
def einsum(a: Analysis, equation: str, tensors: list[Value], path: Any = None) -> Value:
    """Any equation: ``...``, an output left out, several operands, repeated labels."""
    labels, output = spelled_out(equation, [tensor.rank for tensor in tensors])
    rest = [_diagonal(a, tensor, part) for tensor, part in zip(tensors, labels, strict=True)]
    rest.sort(
        key=lambda operand: isinstance(operand[0], PARAMETRIC)
    )  # the order is free: start from an activation
    value, label = rest.pop(0)
    while rest:
        shared = next((i for i, (_, part) in enumerate(rest) if set(part) & set(label)), 0)
        other, part = rest.pop(shared)
        needed = set(output).union(*(later for _, later in rest))
        kept = "".join(c for c in dict.fromkeys(label + part) if c in needed)
        if isinstance(value, PARAMETRIC) and isinstance(other, PARAMETRIC):
            value, label = contracted(a, value, label, other, part, kept), kept
        else:
            value, label = Scaled(contract(a, value, label, other, part, kept)), kept
    if isinstance(value, PARAMETRIC) and set(label) == set(output):
        order = [label.index(c) for c in output]
        return moved(a, value, lambda tensor: tensor.permute(order)) or Scaled(a.ids_of(value).permute(order))
    ids = a.ids_of(value)
    summed = a.uniform(ids, [d for d, c in enumerate(label) if c not in output], REASON)
    return Scaled(arrange(summed, label, output).expand(a.output.shape))


def spelled_out(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The labels of every operand and of the output, with letters for ``...`` and for an output left out."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    parts = inputs.split(",")
    spare = [c for c in string.ascii_letters if c not in equation]
    hidden = [
        rank - len(part.replace("...", "")) if "..." in part else 0
        for part, rank in zip(parts, ranks, strict=True)
    ]
    batch = "".join(spare[: max(hidden, default=0)])
    spelled = [part.replace("...", batch[len(batch) - n :]) for part, n in zip(parts, hidden, strict=True)]
    if arrow:
        return spelled, output.replace("...", batch)
    named = inputs.replace(",", "").replace("...", "")
    return spelled, batch + "".join(c for c in sorted(set(named)) if named.count(c) == 1)


def _diagonal(a: Analysis, tensor: Value, labels: str) -> tuple[Value, str]:
    """A label that an operand repeats names a diagonal."""
    repeated = next((c for c in labels if labels.count(c) > 1), None)
    if repeated is None:
        return tensor, labels
    first = labels.index(repeated)
    second = labels.index(repeated, first + 1)
    labels = labels[:first] + labels[first + 1 : second] + labels[second + 1 :] + repeated
    if isinstance(tensor, PARAMETRIC):
        diagonal = moved(a, tensor, lambda matrix: matrix.diagonal(0, first, second))
        if diagonal is not None:
            return _diagonal(a, diagonal, labels)
    return _diagonal(a, Scaled(a.ids_of(tensor).diagonal(0, first, second)), labels)
