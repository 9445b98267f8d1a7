"""Element by element: maps that commute with positive scales, sums whose terms must agree, products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equinorm.derived import PARAMETRIC, Parametric, times, total
from equinorm.rules.registry import is_number, pinned_output, rule
from equinorm.scale_ids import WILD
from equinorm.values import Fixed, Known, Scaled, Value, Weight, compact, shrink

if TYPE_CHECKING:
    from equinorm.analysis import Analysis

PASSES = "positively homogeneous: the ids pass through"
AGREES = "adds or selects: ids that meet must be equal"
MULTIPLIES = "multiplies: the scales multiply too"

HOMOGENEOUS = (
    "relu leaky_relu rrelu rrelu_with_noise abs absolute neg negative dropout feature_dropout real imag conj"
).split()


@rule(PASSES, *HOMOGENEOUS)
def homogeneous(a: Analysis, input: Value, *args: Any, **kwargs: Any) -> Value:
    if isinstance(input, PARAMETRIC) or a.ids_of(input).shape == a.output.shape:
        return input
    return Scaled(a.ids_of(input).expand(a.output.shape))


@rule(PASSES, "view_as_real")
def view_as_real(a: Analysis, input: Value) -> Value:
    """A complex number has one scale: its real and its imaginary part share it."""
    return Scaled(a.ids_of(input).unsqueeze(-1).expand(a.output.shape))


@rule(PASSES, "view_as_complex")
def view_as_complex(a: Analysis, input: Value) -> Value:
    common = a.uniform(a.ids_of(input), [-1], "they become one complex number")
    return Scaled(common.select(-1, 0))


@rule(PASSES, "native_dropout")
def native_dropout(a: Analysis, input: Value, *args: Any) -> tuple[Value, Value]:
    return input, pinned_output(a)[1]


@rule(PASSES, "prelu", "_prelu_kernel")
def prelu(a: Analysis, input: Value, weight: Value) -> Value:
    a.pin(weight, "the slope of a piecewise linear activation: no scale changes it")
    return Scaled(a.ids_of(input))


@rule(PASSES, "clamp", "clamp_min", "clamp_max", "hardtanh", "threshold")
def clamp(a: Analysis, input: Value, *bounds: Any, **named: Any) -> Any:
    """Bounds at zero or infinity commute with positive scales; any other pins, and so do defaults (hardtanh's ±1)."""
    limits = [v for v in (*bounds, *named.values()) if v is not None]
    if limits and all(is_number(v) and (v == 0 or abs(v) == float("inf")) for v in limits):
        return input if isinstance(input, PARAMETRIC) else Scaled(a.ids_of(input))
    for value in (input, *limits):
        a.pin(value, f"{a.operator} has a bound other than zero")
    return pinned_output(a)


@rule(AGREES, "add", "sub", "rsub")
def add(a: Analysis, input: Value, other: Value, alpha: Any = 1) -> Any:
    """Terms must agree. An additive parameter takes the ids of what it is added to: it moves."""
    for value, term in ((input, other), (other, input)):
        if is_number(term):
            if term == 0:
                return value
            a.pin(value, "a nonzero constant is added")
            return pinned_output(a)
    if isinstance(input, PARAMETRIC) and isinstance(other, PARAMETRIC):
        return total(a, input, other, _common_size(input, other))
    for value, term in ((input, other), (other, input)):
        if isinstance(term, PARAMETRIC):
            return add_parameter(a, _broadcast(a.ids_of(value), term.size), term)
    return Scaled(a.unite(a.ids_of(input), a.ids_of(other), "they are added"))


def _common_size(x: Value, y: Value) -> torch.Size:
    sizes = [v.size if isinstance(v, PARAMETRIC) else v.ids.shape if isinstance(v, Scaled) else v.tensor.shape
             for v in (x, y)]  # fmt: skip
    return torch.broadcast_shapes(*sizes)  # type: ignore[no-untyped-call, no-any-return]


def add_parameter(a: Analysis, ids: Tensor, weight: Parametric) -> Value:
    """``x + parameter``: the parameter's entries take the ids that they meet."""
    weight = weight.unrepeated() if isinstance(weight, Weight) else weight
    lead = ids.dim() - len(weight.size)
    dims = [d for d in range(ids.dim()) if d < lead or weight.size[d - lead] == 1]
    met = a.uniform(ids, dims, f"{weight.parameter} is added to all of them") if dims else ids
    plus = met.reshape(met.shape[lead:]) if lead else met
    if bool((compact(plus) == WILD).any()):  # a parameter added to zeros brings scales of its own
        plus = torch.where(plus == WILD, a.fresh(plus.shape), plus)
    if bool((compact(ids) == WILD).any()):  # and what was zero is no longer
        ids = shrink(torch.where(ids == WILD, plus, ids))
    a.move(weight, plus)
    return Scaled(ids)


@rule(AGREES, "maximum", "minimum", "fmax", "fmin")
def extremum(a: Analysis, input: Value, other: Value) -> Value:
    return Scaled(a.unite(a.ids_of(input), a.ids_of(other), f"{a.operator} compares them"))


@rule(AGREES, "where")
def where(a: Analysis, condition: Value, input: Value, other: Value) -> Any:
    a.pin(condition, "it selects entries")
    for value, choice in ((input, other), (other, input)):
        if is_number(choice):
            if choice == 0 or abs(choice) == float("inf"):
                if isinstance(value, PARAMETRIC) and tuple(value.size) == tuple(a.output.shape):
                    return value
                return Scaled(a.ids_of(value).expand(a.output.shape))
            a.pin(value, "some entries are replaced by a constant")
            return pinned_output(a)
    united = a.unite(a.ids_of(input), a.ids_of(other), "entries are selected from both")
    return Scaled(united.expand(a.output.shape))


@rule(AGREES, "lerp")
def lerp(a: Analysis, input: Value, end: Value, weight: Any) -> Value:
    a.pin(weight, "it weighs a sum")
    united = a.unite(a.ids_of(input), a.ids_of(end), "they are interpolated")
    return Scaled(united.expand(a.output.shape))


@rule(MULTIPLIES, "mul", "multiply")
def mul(a: Analysis, input: Value, other: Value) -> Any:
    """Constants pass the scales on; a parameter gives the result scales of its own; activations: one is pinned."""
    for value, factor in ((input, other), (other, input)):
        if is_number(factor) or _is_masked(value, factor):
            return value
    if isinstance(input, PARAMETRIC) and isinstance(other, PARAMETRIC):
        return times(a, input, other, _common_size(input, other))
    for value, factor in ((input, other), (other, input)):
        if isinstance(factor, PARAMETRIC):
            return multiply_parameter(a, _broadcast(a.ids_of(value), factor.size), factor)
    return Scaled(product(a, a.ids_of(input), a.ids_of(other)))


def _broadcast(ids: Tensor, size: Sequence[int]) -> Tensor:
    rank = max(ids.dim(), len(size))
    padded = [1] * (rank - ids.dim()) + list(ids.shape)
    return ids.expand(
        [n if n > 1 else m for n, m in zip(padded, [1] * (rank - len(size)) + list(size), strict=True)]
    )


def _is_masked(value: Value, factor: Value) -> bool:
    """Parameters times constants (pruning's and MADE's masks): they stay what they are."""
    if not isinstance(value, PARAMETRIC) or not isinstance(factor, (Known, Fixed)):
        return False
    return tuple(_common_size(value, factor)) == tuple(value.size)


def multiply_parameter(a: Analysis, ids: Tensor, weight: Parametric) -> Value:
    """``x * parameter``: each entry of the parameter scales by the new scale over the one that it meets."""
    weight = weight.unrepeated() if isinstance(weight, Weight) else weight
    lead = ids.dim() - len(weight.size)
    shared = [d for d in range(ids.dim()) if d < lead or weight.size[d - lead] == 1]
    if _differs_along(a, ids, shared):
        a.pin(weight, "one number multiplies channels of different scale")
        return Scaled(ids)
    minus = a.uniform(ids, shared, f"{weight.parameter} multiplies all of them")
    minus = minus.reshape(minus.shape[lead:])
    plus = a.produced(weight, weight.size)
    a.multiply(weight, plus, minus)
    return Scaled(plus.expand(ids.shape))


def _differs_along(a: Analysis, ids: Tensor, dims: Sequence[int]) -> bool:
    resolved = a.ids.resolve(compact(ids))
    return any(bool((resolved != resolved.narrow(d, 0, 1)).any()) for d in dims if resolved.size(d) > 1)


def product(a: Analysis, x: Tensor, y: Tensor) -> Tensor:
    """Scales of x * y: inverse scales cancel; where both are free otherwise, the first is pinned."""
    x, y = _broadcast(x, y.shape), _broadcast(y, x.shape)
    narrow_x, narrow_y = _narrow_alike(x, y)
    rx, ry = a.ids.resolve(narrow_x), a.ids.resolve(narrow_y)
    wild = (rx == WILD) | (ry == WILD)
    clash = ~wild & (rx != 0) & (ry != 0) & (rx != -ry)
    if bool(clash.any()):
        a.pin(Scaled(narrow_x[clash]), "it multiplies another activation that may be rescaled")
        rx, ry = a.ids.resolve(narrow_x), a.ids.resolve(narrow_y)
    scales = torch.where(rx == 0, ry, torch.where(ry == 0, rx, 0.0))
    return torch.where(wild, WILD, scales).expand(x.shape)


def _narrow_alike(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    for d in range(x.dim()):
        if x.size(d) > 1 and x.stride(d) == 0 and y.stride(d) == 0:
            x, y = x.narrow(d, 0, 1), y.narrow(d, 0, 1)
    return x, y


@rule(MULTIPLIES, "div", "divide", "true_divide")
def div(a: Analysis, input: Value, other: Value, rounding_mode: str | None = None) -> Any:
    if rounding_mode is not None:
        a.pin([input, other], "the quotient is rounded")
        return pinned_output(a)
    if isinstance(other, PARAMETRIC):
        a.pin(other, "it divides")
        other = Fixed(torch.zeros((), dtype=torch.float64).expand(other.size))
    if is_number(other) or _is_masked(input, other):
        return input
    ids = a.ids_of(other)
    inverse = torch.where(ids == WILD, 0.0, -ids)
    return Scaled(product(a, a.ids_of(input), inverse))


@rule(MULTIPLIES, "reciprocal")
def reciprocal(a: Analysis, input: Value) -> Any:
    return div(a, Scaled(torch.zeros(()).double().expand(a.output.shape)), input)


@rule(MULTIPLIES, "addcmul")
def addcmul(a: Analysis, input: Value, tensor1: Value, tensor2: Value, value: Any = 1) -> Any:
    return add(a, input, mul(a, tensor1, tensor2))


@rule(MULTIPLIES, "glu")
def glu(a: Analysis, input: Value, dim: int = -1) -> Value:
    """The first half times the sigmoid of the second."""
    first, gate = a.ids_of(input).chunk(2, dim)
    a.pin(Scaled(gate), "sigmoid is not positively homogeneous")
    return Scaled(first)
