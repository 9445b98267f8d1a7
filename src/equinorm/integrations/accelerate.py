"""ENorm with Accelerate: ``enorm = attach(accelerator, model, optimizer, example_inputs)`` after ``prepare``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

try:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
except ImportError as error:
    raise ImportError(
        'equinorm.integrations.accelerate needs Accelerate: pip install "equinorm[accelerate]"'
    ) from error

from equinorm.trace import ExampleInputs
from equinorm.training import ENorm


def attach(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    example_inputs: ExampleInputs | None = None,
    **options: Any,
) -> ENorm:
    """Normalise after each real optimizer step, and with ``accelerator.save_state`` and ``load_state``.

    Args:
        accelerator: what prepared the model and the optimizer.
        model, optimizer: as ``prepare`` returned them.
        example_inputs, options: those of :class:`equinorm.ENorm`. With mixed precision or a sharded model, pass
            ``symmetries`` found before ``prepare``.

    Returns:
        The attached ENorm; its ``attach()`` returns the handle that detaches it.
    """
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    enorm = ENorm(
        accelerator.unwrap_model(model),
        [o.optimizer if isinstance(o, AcceleratedOptimizer) else o for o in optimizers],
        example_inputs,
        **options,
    )
    enorm.attach()
    accelerator.register_for_checkpointing(enorm)
    return enorm
