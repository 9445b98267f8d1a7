"""What ``ENorm`` was asked for, checked before the model is traced."""

from __future__ import annotations

from collections.abc import Sequence

from torch.optim import Optimizer

from equinorm.errors import ArgumentError
from equinorm.solve import METHODS


def optimizers_of(optimizer: Optimizer | Sequence[Optimizer]) -> list[Optimizer]:
    """The optimizers of an argument that may be one or several."""
    several = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
    found = [each for each in several if isinstance(each, Optimizer)]
    if not found or len(found) < len(several):
        raise ArgumentError(
            f"optimizer: expected a torch.optim.Optimizer or a list of them, got {optimizer!r}"
        )
    return found


def check_arguments(
    *,
    p: float,
    cycles: int,
    every: int,
    solver: str,
    scales: str,
    biases: bool,
    compile: bool,
    max_scale: float,
    nonfinite: str,
) -> None:
    """Raise for the first argument of :class:`~equinorm.ENorm` that it cannot work with."""
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not p > 0:
        raise ArgumentError(f"p: expected a positive number or infinity, got {p!r}")
    for name, number in (("cycles", cycles), ("every", every)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ArgumentError(f"{name}: expected a whole number from 1, got {number!r}")
    for name, value, known in (
        ("solver", solver, tuple(METHODS)),
        ("scales", scales, ("real", "pow2")),
        ("nonfinite", nonfinite, ("raise", "skip")),
    ):
        if value not in known:
            raise ArgumentError(f"{name}: expected one of {', '.join(map(repr, known))}, got {value!r}")
    for name, flag in (("biases", biases), ("compile", compile)):
        if not isinstance(flag, bool):
            raise ArgumentError(f"{name}: expected True or False, got {flag!r}")
    if isinstance(max_scale, bool) or not isinstance(max_scale, (int, float)) or not max_scale >= 2:
        raise ArgumentError(f"max_scale: expected a number from 2, got {max_scale!r}")
