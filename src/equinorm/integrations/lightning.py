"""ENorm in PyTorch Lightning: ``Trainer(callbacks=[ENormCallback(example_inputs)])``."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError(
        'equinorm.integrations.lightning needs Lightning: pip install "equinorm[lightning]"'
    ) from error

from equinorm.trace import ExampleInputs
from equinorm.training import ENorm


class ENormCallback(Callback):
    """Normalises after each optimizer step, and keeps its state in Lightning's checkpoints.

    Args:
        example_inputs: of the module's forward; by default its ``example_input_array``.
        options: those of :class:`equinorm.ENorm`. Under a strategy that shards, pass ``symmetries``.
    """

    def __init__(self, example_inputs: ExampleInputs | None = None, **options: Any) -> None:
        super().__init__()
        self.enorm: ENorm | None = None
        self._example_inputs, self._options = example_inputs, options
        self._loaded: dict[str, Any] = {}
        self._handle: Any = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        example = pl_module.example_input_array if self._example_inputs is None else self._example_inputs
        if example is not None:
            example = trainer.strategy.batch_to_device(example)
        self.enorm = ENorm(pl_module, trainer.optimizers, example, **self._options)
        loaded, self._loaded = self._loaded, {}  # for this fit only
        if loaded:
            self.enorm.load_state_dict(loaded)
        self._handle = self.enorm.attach()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._detach()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._detach()  # a fit that fails is not torn down

    def state_dict(self) -> dict[str, Any]:
        return self._loaded if self.enorm is None else self.enorm.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict  # Lightning restores callbacks before there are optimizers

    def _detach(self) -> None:
        if self._handle is not None:
            self._handle.remove()
