"""What each setting may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from equinorm.errors import ArgumentError
from equinorm.experiments.schedules import DECAYS

Rule = tuple[str, Callable[[Any], bool]]  # what is expected, and the test of it


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(least: int) -> Rule:
    return f"a whole number from {least}", lambda v: type(v) is int and v >= least


def _one_of(*names: str) -> Rule:
    return f"one of {', '.join(names)}", lambda v: v in names


def _optional(rule: Rule) -> Rule:
    text, test = rule
    return text, lambda v: v is None or test(v)


NAME: Rule = ("a name", lambda v: isinstance(v, str))
POSITIVE: Rule = ("a positive number", lambda v: _number(v) and v > 0)
FROM_ZERO: Rule = ("a number from 0", lambda v: _number(v) and v >= 0)
COUNT = _whole(1)

RULES: dict[str, Rule] = {
    "recipe": NAME,
    "method": NAME,
    "lr": POSITIVE,
    "final_lr": FROM_ZERO,
    "schedule": _one_of(*DECAYS),
    "warmup": FROM_ZERO,
    "epochs": COUNT,
    "batch_size": COUNT,
    "accumulate": COUNT,
    "momentum": ("a number from 0, below 1", lambda v: _number(v) and 0 <= v < 1),
    "weight_decay": FROM_ZERO,
    "c": ("a positive number or adaptive", lambda v: v in (None, "adaptive") or (_number(v) and v > 0)),
    "cycles": _optional(COUNT),
    "groups": _optional(COUNT),
    "depth": _optional(_whole(0)),
    "shortcut_init": _optional(_one_of("default", "identity")),
    "crop": _optional(COUNT),
    "flip": ("true or false", lambda v: isinstance(v, bool)),
    "validation": _whole(0),
    "limit": _optional(COUNT),
    "seed": _whole(0),
    "dtype": _one_of("float32", "bfloat16"),
}


def check(values: Mapping[str, Any]) -> None:
    """Refuse values that no run can have, and values that contradict each other."""
    for name, value in values.items():
        expected, fits = RULES[name]
        if not fits(value):
            raise ArgumentError(f"{name}={value!r}: expected {expected}")
    if values.get("final_lr", 0) > values.get("lr", math.inf):
        raise ArgumentError(
            f"final_lr={values['final_lr']}: above lr={values['lr']}, from which the rate decays; lower it"
        )
    if values.get("warmup", 0) > values.get("epochs", math.inf):
        raise ArgumentError(
            f"warmup={values['warmup']}: longer than the training's {values['epochs']} epochs"
        )
    if values.get("accumulate", 1) > values.get("batch_size", math.inf):
        raise ArgumentError(
            f"accumulate={values['accumulate']}: more parts than a batch of {values['batch_size']} has examples"
        )
