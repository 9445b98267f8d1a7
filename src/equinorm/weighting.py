"""The weights c_k of the layers in the norm: the paper's "Asymmetric scaling"."""

from __future__ import annotations

import math
from collections.abc import Mapping

from equinorm.errors import ArgumentError
from equinorm.scalars import is_real
from equinorm.symmetry import Symmetries


def log_weights(c: float | str | Mapping[str, float], p: float, symmetries: Symmetries) -> dict[str, float]:
    """log c_k of every counted parameter (for p = inf: log a_k, which multiplies the entries themselves).

    A number is the uniform scaling c_k = c^(p (q - k)), a_k = c^(q - k), with k the length of the longest
    path of linear maps up to the layer and q the longest of all; "adaptive" is c_k = 1 / numel(W_k).
    """
    counted = [scaling.parameter for scaling in symmetries.scalings if scaling.counted]
    if isinstance(c, Mapping):
        return _given(c, counted)
    if c == "adaptive":
        if math.isinf(p):
            raise ArgumentError('c: "adaptive" has no meaning for p = inf; give a number or a mapping')
        return {name: -math.log(symmetries.shapes[name].numel()) for name in counted}
    if not is_real(c):
        raise ArgumentError(
            f'c: expected a positive number, "adaptive" or a mapping from parameter names, got {c!r}'
        )
    if not 0 < c < math.inf:
        raise ArgumentError(f"c: expected a positive number, got {c}")
    deepest = max(symmetries.depth.values(), default=0)
    factor = math.log(c) * (1.0 if math.isinf(p) else p)
    return {name: factor * (deepest - symmetries.depth[name]) for name in counted}


def _given(c: Mapping[str, float], counted: list[str]) -> dict[str, float]:
    for name, weight in c.items():
        if name not in counted:
            raise ArgumentError(
                f"c: {name!r} is not among the {len(set(counted))} parameters that count in the norm (a tied one "
                "goes by the first of its names)"
            )
        if not is_real(weight) or not 0 < weight < math.inf:
            raise ArgumentError(f"c: the weight of {name} must be a positive number, got {weight!r}")
    return {name: math.log(c.get(name, 1.0)) for name in counted}
