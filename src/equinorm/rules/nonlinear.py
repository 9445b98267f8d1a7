"""Operators that are known not to be positively homogeneous: they pin, and say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from equinorm.rules.registry import pin_all, rule

if TYPE_CHECKING:
    from equinorm.analysis import Analysis

FAMILY = "not positively homogeneous: what enters is pinned"

ACTIVATIONS = (
    "sigmoid hard_sigmoid hardsigmoid log_sigmoid silu hardswish gelu mish elu celu selu softplus tanh hardshrink "
    "softshrink softmax _softmax log_softmax _log_softmax softmin alpha_dropout feature_alpha_dropout"
).split()
FUNCTIONS = (
    "exp exp2 expm1 log log2 log10 log1p logsumexp sqrt rsqrt pow square erf erfc sin cos tan asin acos atan atan2 "
    "sinh cosh floor ceil round trunc frac fmod remainder floor_divide var var_mean std_mean cumprod prod"
).split()


@rule(FAMILY, *ACTIVATIONS, *FUNCTIONS)
def nonlinear(a: Analysis, *args: Any, **kwargs: Any) -> Any:
    return pin_all(a, (args, kwargs), f"{a.operator} is not positively homogeneous")
