"""The hook of an attached ENorm: at most one per model on an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer


class AfterStep:
    """A step post hook that normalises a model."""

    def __init__(self, model: nn.Module, step: Callable[[], None]) -> None:
        self.model, self._step = model, step

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._step()


def attach(hook: AfterStep, optimizers: Sequence[Optimizer]) -> Any:
    """Run the hook after each step of the last optimizer; what was attached for the same model no longer runs.

    A notebook's cell that is run again, or a training that was broken off, must not leave two of them.
    """
    for optimizer in optimizers:
        hooks = optimizer._optimizer_step_post_hooks
        for key in [
            k for k, other in hooks.items() if isinstance(other, AfterStep) and other.model is hook.model
        ]:
            del hooks[key]
    return optimizers[-1].register_step_post_hook(hook)
