"""The learning rate at every step: a warm-up if wanted, and the paper's decays.

The rate changes before every step (Algorithm 2, "Update learning rate"), not only once an epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equinorm.experiments.recipes import Settings

DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda left: left,
    "quadratic": lambda left: left * left,
    "constant": lambda left: 1.0,
}
"""How much of the way from the final to the initial rate is left, by the share of the steps that are left."""


def learning_rate(settings: Settings, step: int, steps_per_epoch: int) -> float:
    """The learning rate of a step, counted from 0 over the whole training."""
    left = 1.0 - step / (settings.epochs * steps_per_epoch)
    rate = settings.final_lr + (settings.lr - settings.final_lr) * DECAYS[settings.schedule](left)
    warm_steps = settings.warmup * steps_per_epoch
    return rate * min(1.0, (step + 1) / warm_steps) if warm_steps else rate
