"""``Trainer``: a model, its optimizer and companion, trained epoch by epoch."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from equinorm.errors import ArgumentError
from equinorm.experiments.companions import Companion
from equinorm.experiments.data import Data, Split
from equinorm.experiments.data.order import seed_of
from equinorm.experiments.methods import METHODS
from equinorm.experiments.recipes import RECIPES, Settings
from equinorm.experiments.result import Row
from equinorm.experiments.schedules import learning_rate
from equinorm.experiments.shared_batch_norm import share_
from equinorm.experiments.world import World

CHECK_EVERY = 50
"""Steps between two looks at whether the loss is finite, which make a GPU wait."""
EVALUATION_BATCH = 1000


class Diverged(Exception):
    """The loss or the weights are no longer finite; ``where`` counts epochs and steps from 1."""

    def __init__(self, epoch: int, step: int) -> None:
        super().__init__()
        self.where = {"epoch": epoch + 1, "step": step + 1}


class Progress(Protocol):
    """Who is told about every step: the mean loss and metric of the epoch so far are computed if they are shown."""

    def step(self, epoch: int, rate: float, means: Means) -> None:
        """A step is done."""


class Means:
    """Mean loss and metric over examples, kept on the device in double precision."""

    def __init__(self, device: torch.device) -> None:
        wide = torch.float32 if device.type == "mps" else torch.float64  # which MPS does not have
        self._sums = torch.zeros(3, dtype=wide, device=device)

    def add(self, loss: Tensor, metrics: Tensor) -> None:
        """A batch's mean loss and its examples' metrics."""
        count = torch.full_like(self._sums[0], len(metrics))
        self._sums += torch.stack([loss.detach() * count, metrics.sum(dtype=self._sums.dtype), count])

    def local(self) -> tuple[float, float]:
        """Of this process."""
        return self._of(self._sums)

    def over(self, world: World) -> tuple[float, float]:
        """Over all processes."""
        return self._of(world.sum(self._sums))

    @staticmethod
    def _of(sums: Tensor) -> tuple[float, float]:
        loss, metric, count = sums.tolist()
        return loss / count, metric / count


class Trainer:
    """Everything that changes while a run goes on.

    All that is random in an epoch is drawn from (seed, epoch, rank): a checkpoint needs no generator's state.
    """

    def __init__(self, settings: Settings, data: Data, world: World) -> None:
        self.settings, self.data, self.world = settings, data, world
        self._task = RECIPES[settings.recipe].task
        self._share = _share(settings, world)
        self._steps = data.train.steps(self._share, world.size)
        if min(self._share // settings.accumulate, data.train.size // world.size) < 2:
            raise ArgumentError(
                f"batch_size={settings.batch_size}, of {data.train.size} training examples: batch norms need at "
                f"least two examples in each of {settings.accumulate} parts on each of {world.size} processes"
            )
        self.epoch = 0
        self.history: list[Row] = []
        self._model, self._companion = self._built()
        self._optimizer = torch.optim.SGD(
            [
                {"params": list(self._model.parameters()), "weight_decay": self._companion.weight_decay()},
                {"params": self._companion.parameters(), "weight_decay": 0.0},
            ],
            lr=settings.lr,
            momentum=settings.momentum,
        )
        self._companion.attach(self._optimizer)
        self._wrapped = world.wrap(self._model)

    def _built(self) -> tuple[nn.Module, Companion]:
        recipe, method = RECIPES[self.settings.recipe], METHODS[self.settings.method]
        torch.manual_seed(seed_of("initialisation", self.settings.seed))
        final_bn = recipe.final_bn and method.final_bn
        model = recipe.build(self.settings, method.norm, final_bn, self.data.classes).to(self.world.device)
        if method.data_init:
            from equinorm.experiments.weight_norm import initialize_

            first, _ = next(self._batches(self.data.train, self._share, 0))
            initialize_(model, first)
        example = torch.zeros(2, *self.data.shape, device=self.world.device)
        companion = method.companion(model, example, self.settings)
        final = getattr(model, "final_bn", None)
        if self.world.size > 1 and isinstance(final, nn.BatchNorm1d):
            model.final_bn = share_(final)
        return model, companion

    def run_epoch(self, progress: Progress) -> Row:
        """Train for an epoch and evaluate; raises ``Diverged``."""
        start = time.perf_counter()
        torch.manual_seed(seed_of("epoch", self.settings.seed, self.epoch, self.world.rank))
        self._wrapped.train()
        means = Means(self.world.device)
        batches = self._batches(self.data.train, self._share, self.epoch)
        for step, (x, y) in enumerate(batches):
            rate = learning_rate(self.settings, self.epoch * self._steps + step, self._steps)
            self._step(x, y, rate, means)
            if (step + 1) % CHECK_EVERY == 0 and not math.isfinite(means.over(self.world)[0]):
                raise Diverged(self.epoch, step)
            progress.step(self.epoch, rate, means)
        row: Row = {"epoch": self.epoch + 1, "lr": rate}
        row["train_loss"], row["train_metric"] = means.over(self.world)
        row["norm"] = squared_norm(self._model)
        if math.isfinite(row["norm"]):
            row |= self._evaluated()
        if not all(map(math.isfinite, row.values())):
            raise Diverged(self.epoch, self._steps - 1)
        row["seconds"] = time.perf_counter() - start
        self.epoch += 1
        self.history.append(row)
        return row

    @property
    def steps(self) -> int:
        """Steps per epoch."""
        return self._steps

    def _batches(self, split: Split, size: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        return split.batches(
            size, seed=self.settings.seed, epoch=epoch, rank=self.world.rank, world=self.world.size
        )

    def _step(self, x: Tensor, y: Tensor, rate: float, means: Means) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad()
        count = max(1, min(self.settings.accumulate, len(x) // 2))  # an epoch's last batch may be small
        parts = list(zip(x.tensor_split(count), y.tensor_split(count), strict=True))
        for k, (inputs, labels) in enumerate(parts, start=1):
            with self._gradients_kept_here(k < len(parts)):
                outputs = self._forward(self._wrapped, inputs)
                loss = self._task.loss(outputs, inputs, labels)
                means.add(loss, self._task.metric(outputs.detach(), inputs, labels))
                loss = loss * (len(inputs) / len(x))
                penalty = self._companion.penalty() if k == len(parts) else None
                (loss if penalty is None else loss + penalty).backward()  # type: ignore[no-untyped-call]
        self._companion.before_step()
        self._optimizer.step()
        self._companion.after_step()

    def _gradients_kept_here(self, kept: bool) -> contextlib.AbstractContextManager[Any]:
        """Processes exchange gradients only once per step."""
        if kept and isinstance(self._wrapped, DistributedDataParallel):
            return self._wrapped.no_sync()
        return contextlib.nullcontext()

    def _forward(self, model: nn.Module, inputs: Tensor) -> Tensor:
        low = self.settings.dtype == "bfloat16"
        with torch.autocast(self.world.device.type, torch.bfloat16, enabled=low):
            outputs: Tensor = model(inputs)
        return outputs

    @torch.no_grad()
    def _evaluated(self) -> Row:
        """Loss and metric of the validation and test examples."""
        self._model.eval()
        self.world.share_buffers(self._model)
        row: Row = {}
        for name, split in (("validation", self.data.validation), ("test", self.data.test)):
            if split is None:
                continue
            means = Means(self.world.device)
            size = min(EVALUATION_BATCH, max(self._share, 2))
            batches = split.batches(
                size, seed=0, epoch=0, rank=self.world.rank, world=self.world.size, training=False
            )
            for x, y in batches:
                outputs = self._forward(self._model, x)
                means.add(self._task.loss(outputs, x, y), self._task.metric(outputs, x, y))
            row[f"{name}_loss"], row[f"{name}_metric"] = means.over(self.world)
        return row

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        return {
            "epoch": self.epoch,
            "history": self.history,
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "companion": self._companion.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, to the bit as if there had been no interruption."""
        self.epoch, self.history = state["epoch"], list(state["history"])
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._companion.load_state_dict(state["companion"])


def squared_norm(model: nn.Module) -> float:
    """The sum of the squared weights of all linear and convolutional layers (the paper's energy, p = 2)."""
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    with torch.no_grad():
        return sum(layer.weight.double().square().sum().item() for layer in layers)


def _share(settings: Settings, world: World) -> int:
    """Examples per step of each process."""
    share, rest = divmod(settings.batch_size, world.size)
    if rest:
        raise ArgumentError(
            f"batch_size={settings.batch_size}: cannot be dealt out evenly to {world.size} processes; "
            "choose a multiple"
        )
    return share
