"""Products that contract: matrix products, written with a label for every dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equinorm.derived import PARAMETRIC, Parametric, contracted, moved
from equinorm.rules.elementwise import add
from equinorm.rules.registry import is_number, rule
from equinorm.scale_ids import WILD
from equinorm.values import Scaled, Value, Weight, compact

if TYPE_CHECKING:
    from equinorm.analysis import Analysis

FAMILY = "contracts two tensors: a parameter is a linear map; activations must cancel or be uniform"

REASON = "they meet in one sum"


def contract(a: Analysis, x: Value, lx: str, y: Value, ly: str, lo: str) -> Tensor:
    """Ids of the product of ``x`` and ``y`` summed over the labels that ``lo`` lacks.

    A label names one dimension. The result has the dimensions ``lo``, of size one where its ids do not vary.
    """
    if isinstance(x, PARAMETRIC) and not isinstance(y, PARAMETRIC):
        x, lx, y, ly = y, ly, x, lx
    if isinstance(y, PARAMETRIC):
        return _through_parameter(a, a.ids_of(x), lx, y, ly, lo)
    return _of_activations(a, a.ids_of(x), lx, a.ids_of(y), ly, lo)


def _through_parameter(a: Analysis, x: Tensor, lx: str, weight: Parametric, lw: str, lo: str) -> Tensor:
    """A linear map: consumes the ids of x along the labels they share, and produces fresh ones.

    Labels of all three tensors are batches of maps (as in grouped convolutions); labels of x alone are tokens,
    on which the map acts alike, so its input scales must agree over them.
    """
    weight, lw = _without_broadcast(a, weight, lw, x, lx)
    tokens = [d for d, label in enumerate(lx) if label not in lw]
    consumed = a.uniform(x, tokens, f"{weight.parameter} acts on all of them alike")
    plus = a.produced(
        weight, [size if label in lo else 1 for label, size in zip(lw, weight.size, strict=True)]
    )
    a.linear_map(weight, plus, arrange(consumed, lx, lw))
    return arrange(plus, lw, lo)


def _without_broadcast(
    a: Analysis, weight: Parametric, lw: str, x: Tensor, lx: str
) -> tuple[Parametric, str]:
    """Drop the parameter's dimensions of size one that broadcast against larger ones."""
    weight = weight.unrepeated() if isinstance(weight, Weight) else weight
    dims = [d for d, c in enumerate(lw) if weight.size[d] == 1 and c in lx and x.size(lx.index(c)) > 1]
    if not dims:
        return weight, lw
    squeezed = moved(a, weight, lambda matrix: matrix.squeeze(dims))
    return squeezed, "".join(c for d, c in enumerate(lw) if d not in dims)


def _of_activations(a: Analysis, x: Tensor, lx: str, y: Tensor, ly: str, lo: str) -> Tensor:
    x, y = _broadcast(x, lx, y, ly), _broadcast(y, ly, x, lx)
    summed = [label for label in lx if label in ly and label not in lo]
    if a.is_free(x) and a.is_free(y):
        if all(_varies(a, ids, labels, summed) for ids, labels in ((x, lx), (y, ly))):
            _cancel(a, x, lx, y, ly)
            return torch.zeros([1] * len(lo), dtype=torch.float64)
        loser = x if _varies(a, x, lx, summed) or not _varies(a, y, ly, summed) else y
        a.pin(Scaled(loser), "it is multiplied with another activation that may be rescaled")
    free, labels = (x, lx) if a.is_free(x) else (y, ly)
    summed_out = [d for d, label in enumerate(labels) if label not in lo]
    return arrange(a.uniform(free, summed_out, REASON), labels, lo)


def _broadcast(x: Tensor, lx: str, y: Tensor, ly: str) -> Tensor:
    """Expand the dimensions of x that have size one where y's are larger."""
    return x.expand(
        [max(n, y.size(ly.index(label))) if label in ly else n for n, label in zip(x.shape, lx, strict=True)]
    )


def _cancel(a: Analysis, x: Tensor, lx: str, y: Tensor, ly: str) -> None:
    """Queries and keys: scales along the contraction are inverse to each other."""
    shared = "".join(label for label in lx if label in ly)
    x = a.uniform(x, [d for d, label in enumerate(lx) if label not in shared], REASON)
    y = a.uniform(y, [d for d, label in enumerate(ly) if label not in shared], REASON)
    y = arrange(y, ly, shared)
    inverse = torch.where(y == WILD, WILD, -y)
    a.unite(arrange(x, lx, shared), inverse, "their scales must cancel in a product")


def _varies(a: Analysis, ids: Tensor, labels: str, along: Sequence[str]) -> bool:
    resolved = a.ids.resolve(compact(ids))
    return any(
        bool((resolved != resolved.narrow(d, 0, 1)).any())
        for d, label in enumerate(labels)
        if label in along and resolved.size(d) > 1
    )


def arrange(ids: Tensor, labels: str, target: str) -> Tensor:
    """Dimensions in the order of ``target``: labels it lacks must have size one, labels it adds get size one."""
    kept = [label for label in target if label in labels]
    dropped = [d for d, label in enumerate(labels) if label not in target]
    ids = ids.permute(*[labels.index(label) for label in kept], *dropped)
    for _ in dropped:
        ids = ids.select(-1, 0)
    for position, label in enumerate(target):
        if label not in labels:
            ids = ids.unsqueeze(position)
    return ids


def matmul_labels(rank_x: int, rank_y: int) -> tuple[str, str, str]:
    """Labels of ``torch.matmul``: batch dimensions, then rows, contraction, columns."""
    batch = "abcdefgh"[: max(rank_x, rank_y, 2) - 2]
    lx = "k" if rank_x == 1 else batch[len(batch) - rank_x + 2 :] + "mk"
    ly = "k" if rank_y == 1 else batch[len(batch) - rank_y + 2 :] + "kn"
    kept = batch if max(rank_x, rank_y) > 2 else ""
    return lx, ly, kept + ("m" if rank_x > 1 else "") + ("n" if rank_y > 1 else "")


@rule(FAMILY, "matmul", "mm", "bmm", "mv", "dot", "vdot", "_sparse_mm")
def matmul(a: Analysis, input: Value, other: Value) -> Value:
    lx, ly, lo = matmul_labels(input.rank, other.rank)
    if isinstance(input, PARAMETRIC) and isinstance(other, PARAMETRIC):
        return contracted(a, input, lx, other, ly, lo)
    return Scaled(contract(a, input, lx, other, ly, lo).expand(a.output.shape))


@rule(FAMILY, "addmm", "baddbmm", "addmv")
def addmm(a: Analysis, input: Value, x: Value, y: Value, beta: Any = 1, alpha: Any = 1) -> Any:
    result = matmul(a, x, y)
    return result if is_number(beta) and beta == 0 else add(a, result, input)
