"""Recurrent layers that torch runs as one operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from equinorm.rules.contract import contract
from equinorm.rules.elementwise import add
from equinorm.rules.layers import linear
from equinorm.rules.registry import pin_all, rule
from equinorm.values import Scaled, Value

if TYPE_CHECKING:
    from equinorm.analysis import Analysis

FAMILY = "recurrent layers: their input may be scaled, and with relu their states too"

GATED = "sigmoid and tanh are not positively homogeneous"


@rule(FAMILY, "rnn_relu_cell")
def relu_cell(
    a: Analysis,
    input: Value,
    state: Value,
    w_input: Value,
    w_state: Value,
    b_input: Value | None = None,
    b_state: Value | None = None,
) -> Any:
    """relu(W x + U h): the old and the new state have scales of their own, until a loop makes them one."""
    depth = a.depth_reached
    made = linear(a, input, w_input, b_input)
    a.back_to(depth)
    return add(a, made, linear(a, state, w_state, b_state))


@rule(FAMILY, "lstm_cell", "gru_cell", "rnn_tanh_cell")
def cell(a: Analysis, input: Value, state: Any, w_input: Value, *rest: Any) -> Any:
    """The input's scales are divided out by the weights that read it; all else is pinned."""
    return _read_by(a, input, [w_input], (state, rest))


@rule(FAMILY, "lstm", "gru", "rnn_tanh", "rnn_relu")
def layers(
    a: Analysis,
    input: Value,
    state: Any,
    weights: Any,
    biases: bool,
    count: Any,
    dropout: Any,
    train: bool,
    bidirectional: bool,
    *layout: Any,
) -> Any:
    """The same for whole layers. Packed sequences are pinned."""
    if a.schema.overload_name == "data":
        return pin_all(a, (input, state, weights, biases), "a packed sequence is not analysed")
    directions = 2 if bidirectional else 1
    each = len(weights) // (count * directions)
    first = {each * direction for direction in range(directions)}
    rest = [weight for place, weight in enumerate(weights) if place not in first]
    return _read_by(a, input, [weights[place] for place in first], (state, rest))


def _read_by(a: Analysis, input: Value, maps: list[Value], rest: Any) -> Any:
    depth = a.depth_reached
    tokens = "bt"[: input.rank - 1]
    for weight in maps:
        a.back_to(depth)
        a.pin(Scaled(contract(a, input, tokens + "i", weight, "oi", tokens + "o")), _reason(a))
    return pin_all(a, rest, _reason(a))


def _reason(a: Analysis) -> str:
    if "relu" in a.operator:
        return f"{a.operator} is one fused operator, whose inner scales are not analysed"
    return f"{a.operator}: {GATED}"
