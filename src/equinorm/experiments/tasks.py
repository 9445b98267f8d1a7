"""What a network is trained for: the loss, and the metric that the paper reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Task:
    """A loss and a metric, each of (outputs, inputs, labels).

    ``loss`` is the mean over the examples; ``metric`` one value per example, averaged by the caller.
    """

    loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    metric: Callable[[Tensor, Tensor, Tensor], Tensor]
    metric_name: str
    higher_is_better: bool


def _squared_error(outputs: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.float() - inputs.flatten(1)).square().mean(1)


def _cross_entropy(outputs: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs.float(), labels)


def _correct(outputs: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    return 100.0 * (outputs.argmax(1) == labels)


RECONSTRUCTION = Task(
    lambda outputs, inputs, labels: _squared_error(outputs, inputs, labels).mean(),
    _squared_error,
    "squared error",
    higher_is_better=False,
)
"""Auto-encoders: the squared error between normalised images, mean over their pixels."""

CLASSIFICATION = Task(_cross_entropy, _correct, "top-1 accuracy (%)", higher_is_better=True)
"""Labelled images: cross-entropy, and top-1 accuracy in percent."""
