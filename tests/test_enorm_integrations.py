"""The callbacks in the real libraries: the same weights as ENorm in a loop written by hand, also after a stop."""

from __future__ import annotations

import builtins
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import vision  # noqa: F401  (Lightning and the Trainer import torchvision)
from enorm_nets import CASES, assert_same, descend, loss_of, weights_of
from torch import Tensor, nn

import equinorm

CASE = CASES["mlp"]
X = CASE.data()[0][:2].float()
STEPS = 8
pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
)


def by_hand(net: nn.Module | None = None) -> tuple[dict[str, Tensor], Tensor]:
    net = net or CASE.net().float()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    enorm = equinorm.ENorm(net, optimizer, X)
    for x, y in batches():
        descend(net, optimizer, (x, y))
        enorm.step()
    return weights_of(net), enorm.state_dict()["total_log_scales"]


def batches() -> list[tuple[Tensor, Tensor]]:
    return [(x.float(), y) for x, y in (CASE.data(k) for k in range(STEPS))]


class Samples(torch.utils.data.Dataset[Any]):
    """All batches one after the other, as dictionaries for the Trainer or pairs."""

    def __init__(self, named: bool) -> None:
        self.named = named
        self.x, self.y = (torch.cat(part) for part in zip(*batches(), strict=True))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        return {"x": self.x[i], "labels": self.y[i]} if self.named else (self.x[i], self.y[i])


# Lightning -----------------------------------------------------------------------------------------------------


def lightning_run(path: Path, epochs: int, example: bool, checkpoint: str | None = None) -> Any:
    import lightning.pytorch as pl

    from equinorm.integrations.lightning import ENormCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = CASE.net().float()
            self.example_input_array = X if example else None

        def forward(self, x: Tensor) -> Any:
            return self.net(x)

        def training_step(self, batch: Any, index: int) -> Tensor:
            return loss_of(self, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    module, callback = Module(), ENormCallback(None if example else X)
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", callbacks=[callback], default_root_dir=path, logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(Samples(False), batch_size=16)
    trainer.fit(module, loader, ckpt_path=checkpoint)
    return trainer, module, callback


@pytest.mark.parametrize("example", [True, False])
def test_lightning_trains_as_by_hand(example: bool, tmp_path: Path) -> None:
    _, module, callback = lightning_run(tmp_path, 1, example)
    weights, total = by_hand()
    assert_same(weights_of(module.net), weights)
    assert torch.equal(callback.enorm.state_dict()["total_log_scales"], total)
    optimizer = callback.enorm._ownership.optimizers[0]
    optimizer.step()  # detached when the fit was over
    assert callback.enorm.state_dict()["steps"] == STEPS


def test_lightning_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    _, whole, callback = lightning_run(tmp_path, 2, True)
    trainer = lightning_run(tmp_path, 1, True)[0]
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    _, module, resumed = lightning_run(tmp_path, 2, True, str(tmp_path / "last.ckpt"))
    assert_same(weights_of(module.net), weights_of(whole.net))
    assert resumed.enorm.state_dict()["steps"] == 2 * STEPS
    assert torch.equal(
        resumed.enorm.total_scales()["net.0.bias"][0], callback.enorm.total_scales()["net.0.bias"][0]
    )


# Hugging Face --------------------------------------------------------------------------------------------------


class Named(nn.Module):
    """A model as the Trainer calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = CASE.net().float()

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.net(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def trainer_run(path: Path, epochs: int, resume: str | None = None, **options: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    from equinorm.integrations.transformers import ENormCallback

    class InOrder(Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(Samples(True))

    model, callback = Named(), ENormCallback({"x": X})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    arguments = TrainingArguments(
        output_dir=str(path), num_train_epochs=epochs, per_device_train_batch_size=16, use_cpu=True, max_grad_norm=0.0,
        report_to=[], disable_tqdm=True, logging_strategy="no", **{"save_strategy": "epoch", **options},
    )  # fmt: skip
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    trainer = InOrder(
        model, arguments, train_dataset=Samples(True), eval_dataset=Samples(True), callbacks=[callback],
        optimizers=(optimizer, constant),
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    return model, callback


def test_the_hugging_face_trainer_trains_as_by_hand_and_goes_on(tmp_path: Path) -> None:
    model, callback = trainer_run(tmp_path / "a", 1)
    weights, total = by_hand()
    assert_same(weights_of(model.net), weights)
    assert torch.equal(callback.enorm.state_dict()["total_log_scales"], total)
    whole, reference = trainer_run(tmp_path / "b", 2)
    model, callback = trainer_run(tmp_path / "c", 2, resume=str(tmp_path / "a" / f"checkpoint-{STEPS}"))
    assert_same(weights_of(model), weights_of(whole))
    for one, other in zip(
        callback.enorm.state_dict().values(), reference.enorm.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


def test_a_hugging_face_checkpoint_of_the_best_holds_the_state_of_its_step(tmp_path: Path) -> None:
    trainer_run(tmp_path, 1, save_strategy="best", eval_strategy="epoch", metric_for_best_model="loss")
    saved = json.loads((tmp_path / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())
    assert saved["stateful_callbacks"]["equinorm"]["steps"] == STEPS


# Accelerate ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate_trains_as_by_hand_and_goes_on(precision: str, tmp_path: Path) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    from equinorm.integrations.accelerate import attach

    def start() -> Any:
        AcceleratorState._reset_state(True)  # as in a new process
        accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
        net = CASE.net().float()
        symmetries = equinorm.symmetries(net, X)
        net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
        options: Any = {"example_inputs": X} if precision == "no" else {"symmetries": symmetries}
        return accelerator, net, optimizer, attach(accelerator, net, optimizer, **options)

    def train(accelerator: Any, net: nn.Module, optimizer: Any, data: list[Any]) -> None:
        for x, y in data:
            for half in (slice(0, 8), slice(8, 16)):
                with accelerator.accumulate(net):
                    accelerator.backward(loss_of(net, (x[half], y[half])))
                    optimizer.step()
                    optimizer.zero_grad()

    accelerator, net, optimizer, enorm = start()
    train(accelerator, net, optimizer, batches()[:4])
    accelerator.save_state(str(tmp_path / "state"))
    train(accelerator, net, optimizer, batches()[4:])
    assert enorm.state_dict()["steps"] == STEPS  # not for the halves
    if precision == "no":
        weights, _ = by_hand()
        for name, w in weights_of(net).items():
            torch.testing.assert_close(w, weights[name], rtol=1e-4, atol=1e-6)

    accelerator, again, optimizer, resumed = start()
    accelerator.load_state(str(tmp_path / "state"))
    assert resumed.state_dict()["steps"] == 4
    train(accelerator, again, optimizer, batches()[4:])
    assert_same(weights_of(again), weights_of(net))
    assert torch.equal(resumed.state_dict()["total_log_scales"], enorm.state_dict()["total_log_scales"])


@pytest.mark.parametrize("name", ["lightning", "transformers", "accelerate"])
def test_a_missing_library_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def without(module: str, *args: Any, **kwargs: Any) -> Any:
        if module.split(".")[0] == name:
            raise ImportError(f"No module named {module!r}")
        return load(module, *args, **kwargs)

    monkeypatch.delitem(sys.modules, f"equinorm.integrations.{name}", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=rf'pip install "equinorm\[{name}\]"'):
        importlib.import_module(f"equinorm.integrations.{name}")
