"""ENorm in the Hugging Face Trainer: ``Trainer(..., callbacks=[ENormCallback(example_inputs)])``."""

from __future__ import annotations

from typing import Any

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(
        'equinorm.integrations.transformers needs them and accelerate: pip install "equinorm[transformers]"'
    ) from error

from equinorm.trace import ExampleInputs
from equinorm.training import ENorm

KEY = "equinorm"  # of the state in trainer_state.json


class ENormCallback(TrainerCallback):
    """Normalises after each optimizer step, and keeps its state in the Trainer's checkpoints.

    With ``restore_callback_states_from_checkpoint`` the Trainer says that it ignores that state; this restores it.

    Args:
        example_inputs: of the model's forward, as a dict: a small batch without labels will do.
        options: those of :class:`equinorm.ENorm`. Where the Trainer shards the model, pass ``symmetries``.
    """

    def __init__(self, example_inputs: ExampleInputs | None = None, **options: Any) -> None:
        self.enorm: ENorm | None = None
        self._example_inputs, self._options = example_inputs, options

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        optimizer = kwargs["optimizer"]
        optimizer = getattr(optimizer, "optimizer", optimizer)  # out of Accelerate's wrapper
        self.enorm = ENorm(kwargs["model"], optimizer, self._example_inputs, **self._options)
        stored: Any = state.stateful_callbacks
        if state.global_step and KEY in stored:
            self.enorm.load_state_dict(stored[KEY])
        self._handle = self.enorm.attach()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if control.should_save:
            self._store(state)

    on_epoch_end = on_step_end

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._store(state)  # the Trainer decides afterwards whether this was the best

    def _store(self, state: TrainerState) -> None:
        if self.enorm is not None:
            stored: Any = state.stateful_callbacks
            found = self.enorm.state_dict()
            stored[KEY] = {**found, "total_log_scales": found["total_log_scales"].tolist()}

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._handle.remove()
