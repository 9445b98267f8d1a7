"""What runs beside the optimizer: nothing, ENorm, its implicit variant, or Path-SGD's rescaled gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

import equinorm

if TYPE_CHECKING:
    from equinorm.experiments.recipes import Settings


class Companion:
    """The hooks of the training loop; this one leaves them all empty.

    Made from the model before it is wrapped for several processes; ``attach`` follows when its optimizer exists.
    """

    def __init__(self, model: nn.Module, example: Tensor, settings: Settings) -> None:
        self.model = model
        self.settings = settings

    def weight_decay(self) -> float:
        """The weight decay that the optimizer applies to the model's parameters."""
        return self.settings.weight_decay

    def parameters(self) -> list[nn.Parameter]:
        """Parameters to train beside the model's, without weight decay."""
        return []

    def attach(self, optimizer: Optimizer) -> None:
        """Learn which optimizer to accompany."""

    def penalty(self) -> Tensor | None:
        """A term to add to every step's loss."""
        return None

    def before_step(self) -> None:
        """Called when the gradients are complete, before the optimizer uses them."""

    def after_step(self) -> None:
        """Called when the optimizer has changed the weights."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""


class Explicit(Companion):
    """Algorithm 2: cycles of ENorm after every step."""

    batch_norm = "preserve"

    def __init__(self, model: nn.Module, example: Tensor, settings: Settings) -> None:
        super().__init__(model, example, settings)
        self._symmetries = equinorm.symmetries(model, example, batch_norm=self.batch_norm)

    def attach(self, optimizer: Optimizer) -> None:
        """Make the ``ENorm`` of the model and this optimizer."""
        assert self.settings.c is not None and self.settings.cycles is not None
        self._enorm = equinorm.ENorm(
            self.model,
            optimizer,
            symmetries=self._symmetries,
            batch_norm=self.batch_norm,
            c=self.settings.c,
            cycles=self.settings.cycles,
            nonfinite="skip",  # the loop notices divergence by itself, and records it
        )

    def after_step(self) -> None:
        """The cycles."""
        self._enorm.step()

    def state_dict(self) -> dict[str, Any]:
        """ENorm's own."""
        return self._enorm.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """ENorm's own."""
        self._enorm.load_state_dict(state)


class ExplicitIgnoringNorms(Explicit):
    """The paper's ENorm + BN: the cycles run as if the batch norms were not there."""

    batch_norm = "ignore"


class Implicit(Companion):
    """ENorm-Impl (appendix "Implicit Equi-normalization"): the weight decay with learnt scales.

    The penalty is lambda ||rescaled W||². Ours: lambda is half the weight decay, so that at scales of one (where they
    start) the weights feel exactly what the optimizer's weight decay does for the other methods. Biases and norms,
    which the paper's regulariser leaves out, are not decayed.
    """

    def __init__(self, model: nn.Module, example: Tensor, settings: Settings) -> None:
        super().__init__(model, example, settings)
        assert settings.c is not None
        self._implicit = equinorm.ImplicitENorm(
            model, example, weight_decay=settings.weight_decay / 2, c=settings.c
        )

    def weight_decay(self) -> float:
        """None of the optimizer's: the penalty is the weight decay."""
        return 0.0

    def parameters(self) -> list[nn.Parameter]:
        """The log-scales."""
        return list(self._implicit.parameters())

    def penalty(self) -> Tensor | None:
        """The regulariser."""
        value: Tensor = self._implicit()
        return value

    def state_dict(self) -> dict[str, Any]:
        """The log-scales."""
        return self._implicit.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The log-scales."""
        self._implicit.load_state_dict(state)


class PathSGD(Companion):
    """Path-SGD (Neyshabur et al. 2015): every gradient divided by the path norm's curvature."""

    def __init__(self, model: nn.Module, example: Tensor, settings: Settings) -> None:
        super().__init__(model, example, settings)
        from equinorm.experiments.path_sgd import PathScale

        self._scale = PathScale(model, example)

    def before_step(self) -> None:
        """The division."""
        self._scale.scale_gradients()
