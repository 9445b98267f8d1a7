"""The normalisations that are compared, and a training step with each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equinorm import ENorm, ImplicitENorm, Symmetries, symmetries
from equinorm.bench.networks import Network
from equinorm.bench.timing import synchronize
from equinorm.models import Norm

WEIGHT_DECAY = 1e-4
LEARNING_RATE = 1e-6  # weights then stay where time is measured, also without any normalisation


@dataclass(frozen=True)
class Method:
    """A row of the comparison: what is in the network, and what accompanies the optimizer."""

    norm: Norm
    grows: bool  # whether its cost grows with the batch
    penalty: Callable[[nn.Module, Symmetries], ImplicitENorm] | None = None
    normaliser: Callable[[nn.Module, torch.optim.Optimizer, Symmetries], ENorm] | None = None

    @property
    def is_timed_inside(self) -> bool:
        """Whether its own time can be read off inside the step, rather than from the difference of two steps."""
        return self.penalty is not None or self.normaliser is not None


def _implicit(model: nn.Module, found: Symmetries) -> ImplicitENorm:
    return ImplicitENorm(model, weight_decay=WEIGHT_DECAY, symmetries=found)


def _enorm(
    model: nn.Module, optimizer: torch.optim.Optimizer, found: Symmetries, compiled: bool = False
) -> ENorm:
    return ENorm(model, optimizer, symmetries=found, compile=compiled)


NONE, BN, GN, WN, ENORM, COMPILED, IMPLICIT = (
    "none",
    "BN",
    "GN",
    "WN",
    "ENorm",
    "ENorm, compiled",
    "ENorm-Impl",
)
METHODS: dict[str, Method] = {
    NONE: Method("none", grows=True),
    BN: Method("bn", grows=True),
    GN: Method("gn", grows=True),
    WN: Method("wn", grows=False),
    ENORM: Method("none", grows=False, normaliser=_enorm),
    COMPILED: Method("none", grows=False, normaliser=partial(_enorm, compiled=True)),
    IMPLICIT: Method("none", grows=False, penalty=_implicit),
}


class Seconds(NamedTuple):
    """One training step, and how much of it was the normalisation's own, where that can be told."""

    step: float
    own: float


class Training:
    """One method on one network: SGD with momentum and weight decay, as the paper trains."""

    def __init__(self, network: Network, method: Method, device: torch.device) -> None:
        torch.manual_seed(0)
        self._network, self._device = network, device
        self.model = network.build(method.norm).to(device)
        found = symmetries(self.model, network.data(2, device)[0]) if method.is_timed_inside else None
        parameters = list(self.model.parameters())
        self._penalty = method.penalty(self.model, found) if method.penalty and found else None
        decay = WEIGHT_DECAY if self._penalty is None else 0.0  # the penalty is the weight decay
        if self._penalty is not None:
            parameters += list(self._penalty.parameters())
        self._optimizer = torch.optim.SGD(
            parameters, lr=LEARNING_RATE, momentum=0.9, weight_decay=decay, foreach=True
        )
        self._normaliser = (
            method.normaliser(self.model, self._optimizer, found) if method.normaliser and found else None
        )

    def step(self, x: Tensor, y: Tensor) -> Seconds:
        """Train on one batch."""
        start, own = self._now(), 0.0
        self._network.loss(self.model(x), y).backward()  # type: ignore[no-untyped-call]
        if self._penalty is not None:
            before = self._now()
            self._penalty().backward()
            own += self._now() - before
        self._optimizer.step()
        if self._normaliser is not None:
            before = self._now()
            self._normaliser.step()
            own += self._now() - before
        self._optimizer.zero_grad()
        return Seconds(self._now() - start, own)

    def _now(self) -> float:
        synchronize(self._device)
        return time.perf_counter()
