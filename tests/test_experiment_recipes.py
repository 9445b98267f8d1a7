"""The recipes' defaults and schedules are the paper's, written down here a second time from its text."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from equinorm.errors import ArgumentError
from equinorm.experiments.__main__ import page
from equinorm.experiments.methods import METHODS
from equinorm.experiments.recipes import RECIPES, Settings, settings
from equinorm.experiments.result import headline
from equinorm.experiments.schedules import learning_rate

FULLY_CONNECTED = {
    "batch_size": 256, "momentum": 0.0, "weight_decay": 1e-3, "schedule": "linear", "epochs": 60, "warmup": 0.0,
    "final_lr": 0.0, "crop": None, "flip": False, "validation": 0, "accumulate": 1, "dtype": "float32",
}  # fmt: skip
CONVOLUTIONAL = {
    "epochs": 128, "lr": 0.05, "final_lr": 1e-4, "schedule": "linear", "momentum": 0.9, "weight_decay": 1e-3,
    "crop": 28, "flip": True, "validation": 10_000, "batch_size": 128,
}  # fmt: skip
IMAGENET = {
    "epochs": 90, "final_lr": 1e-5, "schedule": "quadratic", "momentum": 0.9, "crop": 224, "flip": True,
    "shortcut_init": "default", "validation": 0, "batch_size": 256, "lr": 0.1, "weight_decay": 1e-4,
}  # fmt: skip
PAPER: dict[str, dict[str, Any]] = {
    "mnist-autoencoder": FULLY_CONNECTED,
    "cifar10-fc": FULLY_CONNECTED,
    "cifar10-conv": CONVOLUTIONAL,
    "imagenet-resnet18": IMAGENET,
    "imagenet-resnet50": IMAGENET,
}
ASYMMETRY: dict[tuple[str, str], float | str] = {
    ("mnist-autoencoder", "enorm"): "adaptive",
    ("mnist-autoencoder", "enorm+bn"): 1.0,
    ("cifar10-fc", "enorm"): 1.2,
    ("cifar10-fc", "enorm+bn"): 1.2,
    ("cifar10-conv", "enorm"): 1.2,
    ("cifar10-conv", "enorm+bn"): 1.0,
    ("imagenet-resnet18", "enorm"): 1.0,
}
GRIDS = {
    "mnist-autoencoder": ((0.001, 0.01, 0.1), (5, 10, 20, 50)),
    "cifar10-fc": ((0.0005, 0.001, 0.005, 0.01, 0.05, 0.1), (5, 10, 20, 50)),
    "cifar10-conv": ((0.01, 0.05, 0.1), (4, 8, 16, 32, 64)),
    "imagenet-resnet18": ((), ()),
    "imagenet-resnet50": ((), ()),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_defaults(recipe: str) -> None:
    found = asdict(settings(recipe, "bn"))
    assert {name: found[name] for name in PAPER[recipe]} == PAPER[recipe]
    assert (RECIPES[recipe].learning_rates, RECIPES[recipe].groups) == GRIDS[recipe]
    assert asdict(settings(recipe, "path-sgd"))["weight_decay"] == 0


@pytest.mark.parametrize(("recipe", "method"), ASYMMETRY)
def test_asymmetry(recipe: str, method: str) -> None:
    assert settings(recipe, method).c == ASYMMETRY[recipe, method]
    assert settings(recipe, method).cycles == 1


@pytest.mark.parametrize(
    ("batch_size", "lr", "weight_decay"),
    [(32, 0.0125, 1e-5), (64, 0.025, 10**-4.5), (128, 0.05, 1e-4), (256, 0.1, 1e-4)],
)
def test_imagenet_follows_the_batch_size(batch_size: int, lr: float, weight_decay: float) -> None:
    found = settings("imagenet-resnet18", "enorm", batch_size=batch_size)
    assert (found.lr, found.weight_decay) == (lr, weight_decay)
    found = settings("imagenet-resnet18", "enorm", batch_size=batch_size, lr=0.3, weight_decay=0.0)
    assert (found.lr, found.weight_decay) == (0.3, 0.0)
    assert settings("imagenet-resnet18", "gn", batch_size=batch_size).groups == 32


FINAL_BN = {(recipe, method) for recipe in ("cifar10-conv", "imagenet-resnet18", "imagenet-resnet50")
            for method in ("baseline", "enorm", "enorm-impl")}  # fmt: skip
NORMS = {"bn": nn.BatchNorm2d, "gn": nn.GroupNorm, "wn+bn": nn.BatchNorm2d, "enorm+bn": nn.BatchNorm2d}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("recipe", ["cifar10-conv", "imagenet-resnet18"])
def test_norms_of_the_models(recipe: str, method: str) -> None:
    row, wanted = METHODS[method], settings(recipe, method)
    model = RECIPES[recipe].build(wanted, row.norm, RECIPES[recipe].final_bn and row.final_bn, 10)
    assert hasattr(model, "final_bn") == ((recipe, method) in FINAL_BN)
    inner = {
        type(m)
        for m in model.modules()
        if "Norm" in type(m).__name__ and m is not getattr(model, "final_bn", 0)
    }
    assert {t for t in inner if t.__module__.startswith("torch.nn.modules")} == (
        {NORMS[method]} if method in NORMS else set()
    )
    weighted = any("parametrizations" in name for name, _ in model.named_parameters())
    assert weighted == (method == "wn+bn")


def run(**values: Any) -> Settings:
    return settings("cifar10-conv", "bn", **{"lr": 0.1, "final_lr": 1e-4, "epochs": 10, **values})


def test_schedules() -> None:
    """Values worked out by hand, of 10 epochs of 4 steps."""
    linear, quadratic = run(), run(schedule="quadratic")
    assert learning_rate(linear, 0, 4) == pytest.approx(0.1)
    assert learning_rate(linear, 20, 4) == pytest.approx((0.1 + 1e-4) / 2)
    assert learning_rate(linear, 40, 4) == pytest.approx(1e-4)
    assert learning_rate(quadratic, 0, 4) == pytest.approx(0.1)
    assert learning_rate(quadratic, 20, 4) == pytest.approx(1e-4 + (0.1 - 1e-4) / 4)
    assert learning_rate(quadratic, 40, 4) == pytest.approx(1e-4)
    assert learning_rate(run(schedule="constant"), 39, 4) == pytest.approx(0.1)
    rates = [learning_rate(run(schedule="constant", warmup=2), step, 4) for step in range(10)]
    assert rates == pytest.approx([0.1 * k / 8 for k in range(1, 9)] + [0.1, 0.1])
    paper = settings("imagenet-resnet18", "enorm", batch_size=64)
    assert learning_rate(paper, 0, 100) == pytest.approx(0.025)
    assert learning_rate(paper, 90 * 100, 100) == pytest.approx(1e-5)


def test_headlines() -> None:
    """The paper's quantities: a training error, a test accuracy, a median of the last five."""
    history = [
        {"train_metric": 10.0 + k, "test_metric": v} for k, v in enumerate((9.0, 5.0, 7.0, 1.0, 2.0, 3.0))
    ]
    assert headline(settings("mnist-autoencoder", "bn"), history) == 15.0
    assert headline(settings("cifar10-fc", "bn"), history) == 3.0
    assert headline(settings("imagenet-resnet18", "bn"), history) == 3.0  # of 5, 7, 1, 2, 3
    assert headline(settings("imagenet-resnet18", "bn"), history, "validation") is None


def test_the_page_of_recipes_is_current() -> None:
    written = (Path(__file__).parent.parent / "docs/experiments.md").read_text(encoding="utf-8")
    assert written == page(), "run `python -m equinorm.experiments` and commit docs/experiments.md"


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("mnist", "bn", {}, "did you mean mnist-autoencoder"),
    ("cifar10-fcc", "bn", {}, "did you mean cifar10-fc"),
    ("imagenet", "bn", {}, "did you mean imagenet-resnet18"),
    ("cifar10-fc", "enrom", {}, "did you mean enorm"),
    ("cifar10-fc", "bn", {"leraning_rate": 1}, "unknown setting"),
    ("cifar10-fc", "bn", {"epoch": 1}, "did you mean epochs"),
    ("cifar10-fc", "bn", {"c": 1.2}, "method bn has no c"),
    ("cifar10-fc", "enorm-impl", {"cycles": 2}, "method enorm-impl has no cycles"),
    ("cifar10-fc", "enorm", {"groups": 5}, "method enorm has no groups"),
    ("cifar10-conv", "bn", {"depth": 5}, "recipe cifar10-conv has no depth"),
    ("cifar10-fc", "bn", {"crop": 28}, "recipe cifar10-fc has no crop"),
    ("cifar10-fc", "bn", {"shortcut_init": "identity"}, "has no shortcut_init"),
    ("cifar10-fc", "bn", {"lr": 0.0}, "lr=0.0: expected a positive number"),
    ("cifar10-fc", "bn", {"lr": float("nan")}, "lr=nan: expected a positive number"),
    ("cifar10-fc", "bn", {"epochs": 1.5}, "epochs=1.5: expected a whole number"),
    ("cifar10-fc", "bn", {"epochs": True}, "epochs=True: expected a whole number"),
    ("cifar10-fc", "bn", {"epochs": None}, "epochs=None: expected a whole number"),
    ("imagenet-resnet18", "bn", {"batch_size": "64"}, "batch_size='64': expected a whole number"),
    ("cifar10-fc", "bn", {"momentum": 1.0}, "below 1"),
    ("cifar10-fc", "enorm", {"c": "adaptiv"}, "adaptive"),
    ("cifar10-fc", "bn", {"schedule": "cubic"}, "one of linear, quadratic, constant"),
    ("cifar10-fc", "bn", {"final_lr": 1.0}, "above lr=0.01"),
    ("cifar10-fc", "bn", {"warmup": 61}, "longer than the training's 60 epochs"),
    ("cifar10-fc", "bn", {"accumulate": 257}, "more parts than a batch of 256"),
    ("cifar10-fc", "bn", {"dtype": "float16"}, "one of float32, bfloat16"),
]  # fmt: skip


@pytest.mark.parametrize(("recipe", "method", "overrides", "text"), REFUSED, ids=[r[3] for r in REFUSED])
def test_bad_settings_are_refused(recipe: str, method: str, overrides: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text.replace("(", r"\(")):
        settings(recipe, method, **overrides)
