"""The paper's training set-ups, one row each, and ``Settings``: a row made complete, every value of which can be set.

Each row quotes the paragraph it comes from; choices that the paper leaves open are marked "ours".
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torch import nn

from equinorm import models
from equinorm.errors import ArgumentError
from equinorm.experiments.methods import METHODS
from equinorm.experiments.ranges import check
from equinorm.experiments.tasks import CLASSIFICATION, RECONSTRUCTION, Task


@dataclass(frozen=True)
class Settings:
    """Everything that a training run depends on, but the data's place. None: does not apply to this recipe or method.

    Attributes:
        recipe, method: names in ``RECIPES`` and ``METHODS``.
        lr, final_lr, schedule, warmup: initial and final learning rate; "linear", "quadratic" or "constant" decay per
            step; epochs over which the rate rises linearly first.
        epochs, batch_size, accumulate: ``batch_size`` examples per step over all processes together, in so many
            parts on each.
        momentum, weight_decay: SGD's. For enorm-impl, half the weight decay is its lambda.
        c, cycles: ENorm's asymmetric scaling, a number or "adaptive"; its cycles per step.
        groups: of group normalisation.
        depth: the paper's p, the number of 500×500 layers.
        shortcut_init: "default" or "identity", of learnt skip connections.
        crop, flip: the side of the images' crops, random in training; random horizontal flips in training.
        validation: so many training examples are held out.
        limit: use only so many training examples, and test examples in proportion.
        seed: of initialisation, order and augmentation.
        dtype: "float32", or "bfloat16" for autocast.
    """

    recipe: str
    method: str
    lr: float
    final_lr: float
    schedule: str
    warmup: float
    epochs: int
    batch_size: int
    accumulate: int
    momentum: float
    weight_decay: float
    c: float | str | None
    cycles: int | None
    groups: int | None
    depth: int | None
    shortcut_init: str | None
    crop: int | None
    flip: bool
    validation: int
    limit: int | None
    seed: int
    dtype: str

    def __post_init__(self) -> None:
        check(asdict(self))


Build = Callable[[Settings, models.Norm, bool, int], nn.Module]  # settings, norm, final BN, classes


@dataclass(frozen=True)
class Recipe:
    """A row of the table.

    Attributes:
        source: the paper's paragraph.
        dataset, task, build: data, loss and metric, network.
        values: what the recipe gives ``Settings``, by name; a function of the batch size where it depends on it.
        learning_rates, groups: the grids of the cross-validation.
        c: ENorm's asymmetric scaling by method, 1 where a method is not named.
        final_bn: the paper puts a BatchNorm behind the FC layer of baseline and ENorm.
        headline: the split whose metric the paper reports, "train" or "test".
        last: the headline is the median over so many final epochs.
        held_out: examples that a sweep holds out of the training set to choose by.
        ours: what the paper leaves open, and what we chose.
    """

    source: str
    dataset: str
    task: Task
    build: Build
    values: Mapping[str, Any]
    learning_rates: tuple[float, ...]
    groups: tuple[int, ...]
    held_out: int
    c: Mapping[str, float | str] = field(default_factory=dict)
    final_bn: bool = False
    headline: str = "test"
    last: int = 1
    ours: tuple[str, ...] = ()


def _autoencoder(s: Settings, norm: models.Norm, final_bn: bool, classes: int) -> nn.Module:
    return models.mnist_autoencoder(norm, s.groups or 1)


def _fully_connected(s: Settings, norm: models.Norm, final_bn: bool, classes: int) -> nn.Module:
    assert s.depth is not None
    return models.cifar10_fc(s.depth, norm, s.groups or 1, classes)


def _cifar_nv(s: Settings, norm: models.Norm, final_bn: bool, classes: int) -> nn.Module:
    return models.cifar_nv(norm, s.groups or 1, final_bn, num_classes=classes)


def _resnet(family: Callable[..., nn.Module]) -> Build:
    def build(s: Settings, norm: models.Norm, final_bn: bool, classes: int) -> nn.Module:
        return family(norm, s.groups or 1, final_bn, s.shortcut_init, num_classes=classes)

    return build


def _imagenet_weight_decay(batch_size: int) -> float:
    """ "w = 1e-4 for B = 128 and 256, 10^-4.5 for B = 64 and 1e-5 for B = 32"; between them ours: the next below."""
    if batch_size >= 128:
        return 1e-4
    return 10**-4.5 if batch_size >= 64 else 1e-5


PLAIN: dict[str, Any] = {
    "warmup": 0.0,
    "accumulate": 1,
    "depth": None,
    "shortcut_init": None,
    "crop": None,
    "flip": False,
    "validation": 0,
    "limit": None,
    "seed": 0,
    "dtype": "float32",
}

IMAGENET: dict[str, Any] = {
    **PLAIN,
    "lr": lambda batch_size: 0.1 * batch_size / 256,  # "the initial learning rate to 0.1 B / 256"
    "final_lr": 1e-5,
    "schedule": "quadratic",  # "decay the learning rate quadratically to 1e-5"
    "epochs": 90,
    "batch_size": 256,
    "momentum": 0.9,
    "weight_decay": _imagenet_weight_decay,
    "groups": 32,  # "we set the number of groups G to 32 and did not cross-validate"
    "shortcut_init": "default",
    "crop": 224,
    "flip": True,
}


def _imagenet(source: str, family: Callable[..., nn.Module], *ours: str) -> Recipe:
    return Recipe(
        source=source,
        dataset="imagenet",
        task=CLASSIFICATION,
        build=_resnet(family),
        values=IMAGENET,
        learning_rates=(),
        groups=(),
        held_out=50_000,
        c={"enorm": 1.0, "enorm+bn": 1.0},  # "values of c different from 1 did not yield better results"
        final_bn=True,
        last=5,  # "the median error rate on the final 5 epochs"; the tables show accuracies, and so do we
        ours=("B counts the images of all GPUs together, of which the paper has 8", *ours),
    )


RECIPES: dict[str, Recipe] = {
    "mnist-autoencoder": Recipe(
        source='section "MNIST auto-encoder", paragraphs "Training" and "Results"',
        dataset="mnist",
        task=RECONSTRUCTION,
        build=_autoencoder,
        values={
            **PLAIN,
            "lr": 0.01,
            "final_lr": 0.0,  # "decay it linearly to zero"
            "schedule": "linear",
            "epochs": 60,
            "batch_size": 256,
            "momentum": 0.0,  # "SGD with no momentum"
            "weight_decay": 1e-3,
            "groups": 10,
        },
        learning_rates=(0.001, 0.01, 0.1),
        groups=(5, 10, 20, 50),
        held_out=10_000,
        c={"enorm": "adaptive", "enorm+bn": 1.0},
        headline="train",  # "Average train L2 error"
        ours=(
            "60 epochs",
            "the training error is the average over the last epoch's steps, in training mode",
            "without a sweep: lr 0.01, 10 groups",
            "sweeps choose by the error on 10,000 held-out images",
        ),
    ),
    "cifar10-fc": Recipe(
        source='section "CIFAR-10 Fully Connected", paragraphs "Training" and "Results"',
        dataset="cifar10",
        task=CLASSIFICATION,
        build=_fully_connected,
        values={
            **PLAIN,
            "lr": 0.01,
            "final_lr": 0.0,
            "schedule": "linear",
            "epochs": 60,
            "batch_size": 256,
            "momentum": 0.0,
            "weight_decay": 1e-3,
            "groups": 20,
            "depth": 5,
        },
        learning_rates=(0.0005, 0.001, 0.005, 0.01, 0.05, 0.1),
        groups=(5, 10, 20, 50),  # "GN and WN are learned as detailed in Section" MNIST auto-encoder
        held_out=10_000,
        c={"enorm": 1.2, "enorm+bn": 1.2},
        ours=(
            'linear decay to zero, as for the auto-encoder (the paper says "initial learning rate" only)',
            "without a sweep: lr 0.01, 20 groups, depth 5",
            "sweeps choose by the accuracy on 10,000 held-out images; the seeds then train on all 50,000",
        ),
    ),
    "cifar10-conv": Recipe(
        source='section "CIFAR-10 Fully Convolutional", paragraphs "Training" and "Results"',
        dataset="cifar10",
        task=CLASSIFICATION,
        build=_cifar_nv,
        values={
            **PLAIN,
            "lr": 0.05,
            "final_lr": 1e-4,  # "decayed linearly to 1e-4"
            "schedule": "linear",
            "epochs": 128,
            "batch_size": 128,
            "momentum": 0.9,
            "weight_decay": 1e-3,
            "groups": 32,
            "crop": 28,
            "flip": True,
            "validation": 10_000,  # "one training set (40,000 images) and one validation set (10,000 images)"
        },
        learning_rates=(0.01, 0.05, 0.1),
        groups=(4, 8, 16, 32, 64),
        held_out=10_000,
        c={"enorm": 1.2, "enorm+bn": 1.0},
        final_bn=True,
        ours=(
            "batch size 128",
            "the seeds, too, train on the 40,000",
            "without a sweep: lr 0.05, 32 groups",
        ),
    ),
    "imagenet-resnet18": _imagenet(
        'section "ImageNet", paragraph "Training"', models.resnet18c, "without --batch-size: 256"
    ),
    "imagenet-resnet50": _imagenet(
        'section "Limitations"; everything else as for ResNet-18',
        models.resnet50c,
        "to try what the paper names: --warmup 5 --shortcut-init identity",
    ),
}
"""Every recipe by name."""


def known(kind: str, name: str, table: Mapping[str, Any]) -> None:
    """Refuse a name that is not in a table, with the closest one that is."""
    if name not in table:
        close = [entry for entry in table if name and entry.startswith(str(name))]
        close = close or difflib.get_close_matches(str(name), table, n=1)
        hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(table)}"
        raise ArgumentError(f"unknown {kind} {name!r}; {hint}")


def settings(recipe: str, method: str, **overrides: Any) -> Settings:
    """The paper's settings for a method, with some values set otherwise.

    ``lr`` and ``weight_decay`` follow a given ``batch_size`` where the paper makes them depend on it.
    """
    known("recipe", recipe, RECIPES)
    known("method", method, METHODS)
    for name in overrides:
        known("setting", name, {f.name: f for f in fields(Settings)})
    values = _defaults(recipe, method)
    for name, value in overrides.items():
        if values[name] is None and value is not None and name != "limit":
            raise ArgumentError(f"{name}={value!r}: {_why_not(name, recipe, method)}")
        values[name] = value
    for name, value in values.items():
        if callable(value):
            check({"batch_size": values["batch_size"]})
            values[name] = value(values["batch_size"])
    return Settings(**values)


def _defaults(recipe: str, method: str) -> dict[str, Any]:
    row, how = RECIPES[recipe], METHODS[method]
    values = {"recipe": recipe, "method": method, **row.values}
    values["c"] = row.c.get(method, 1.0) if how.c else None
    values["cycles"] = how.cycles
    values["groups"] = row.values["groups"] if how.norm == "gn" else None
    if how.weight_decay is not None:
        values["weight_decay"] = how.weight_decay
    return values


def _why_not(name: str, recipe: str, method: str) -> str:
    """Why a setting does not apply."""
    if name in ("c", "cycles", "groups"):
        return f"method {method} has no {name}"
    return f"recipe {recipe} has no {name}"
