"""The command line's options: one for every setting, added to a command's own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from typer import Argument, Option

from equinorm.errors import ArgumentError

Recipe = Annotated[
    str,
    Argument(
        metavar="RECIPE",
        help="mnist-autoencoder, cifar10-fc, cifar10-conv, imagenet-resnet18 or imagenet-resnet50",
    ),
]
METHODS_HELP = "baseline, bn, gn, wn+bn, path-sgd, enorm, enorm+bn, enorm-impl"
Method = Annotated[str, Option(help=METHODS_HELP)]
Methods = Annotated[str, Option(help=f"Separated by commas: {METHODS_HELP}")]
Seeds = Annotated[int, Option(min=1, help="Trainings of each method's best settings.")]
DataDir = Annotated[
    Path | None,
    Option(
        help="The folder with the data; without it MNIST and CIFAR-10 are replaced by scikit-learn's digits."
    ),
]
Download = Annotated[bool, Option("--download", help="Get missing data sets into DATA_DIR.")]
Output = Annotated[
    Path | None, Option(help="The run's folder; the same one again continues it. Default: runs/…")
]
SweepOutput = Annotated[Path | None, Option(help="The folder of all runs. Default: sweeps/RECIPE.")]
Storage = Annotated[
    str | None,
    Option(
        help="Where workers share a sweep: a file, or postgresql://…, mysql://…, sqlite://… Default: OUTPUT/study.log."
    ),
]
Heartbeat = Annotated[
    int, Option(min=1, help="Seconds between a worker's signs of life; dead after twice as long.")
]
Device = Annotated[str | None, Option(help="cpu, cuda …; by default a GPU if there is one.")]
Workers = Annotated[int, Option(min=0, help="Processes that decode images (ImageNet).")]
TensorBoard = Annotated[bool, Option("--tensorboard", help="Write metrics for TensorBoard, too.")]
Quiet = Annotated[bool, Option("--quiet", help="No progress.")]

SETTINGS: dict[str, Any] = {
    "lr": Annotated[str | None, Option(help="Initial learning rate.")],
    "final_lr": Annotated[float | None, Option(help="Final learning rate.")],
    "schedule": Annotated[
        Literal["linear", "quadratic", "constant"] | None, Option(help="From the one to the other.")
    ],
    "warmup": Annotated[float | None, Option(help="Epochs over which the rate rises first.")],
    "epochs": Annotated[int | None, Option(help="Passes over the training examples.")],
    "batch_size": Annotated[int | None, Option(help="Examples per step, over all processes together.")],
    "accumulate": Annotated[
        int | None, Option(help="Parts that a step's batch is cut into, to save memory.")
    ],
    "momentum": Annotated[float | None, Option(help="SGD's.")],
    "weight_decay": Annotated[str | None, Option(help="SGD's; for enorm-impl, twice its lambda.")],
    "c": Annotated[str | None, Option(help="ENorm's asymmetric scaling: a number or adaptive.")],
    "cycles": Annotated[int | None, Option(help="ENorm's cycles per step.")],
    "groups": Annotated[str | None, Option(help="Of group normalisation.")],
    "depth": Annotated[int | None, Option(help="cifar10-fc: the number of 500×500 layers, the paper's p.")],
    "shortcut_init": Annotated[Literal["default", "identity"] | None, Option(help="Of learnt shortcuts.")],
    "crop": Annotated[int | None, Option("--crop", "--image-size", help="Side of the images' crops.")],
    "flip": Annotated[bool | None, Option("--flip/--no-flip", help="Flip images at random.")],
    "validation": Annotated[int | None, Option(help="Training examples to hold out.")],
    "limit": Annotated[int | None, Option(help="Use only so many training examples.")],
    "seed": Annotated[int | None, Option(help="Of initialisation, order and augmentation.")],
    "dtype": Annotated[Literal["float32", "bfloat16"] | None, Option(help="bfloat16: autocast.")],
}
"""Left out, a setting is the recipe's. Those that a sweep can search are text, for they may be lists."""

PARSED: Mapping[str, Callable[[str], Any]] = {
    "lr": float,
    "weight_decay": float,
    "groups": int,
    "c": lambda text: text if text == "adaptive" else float(text),
}


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for every setting; it gets those that were set as ``overrides``."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        overrides = {name: given.pop(name) for name in SETTINGS}
        command(overrides={name: v for name, v in overrides.items() if v is not None}, **given)

    annotations = {**get_type_hints(command, include_extras=True), **SETTINGS}
    del annotations["overrides"]
    defaults = {name: p.default for name, p in inspect.signature(command).parameters.items()}
    run.__annotations__ = annotations
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=annotations[name]
            )
            for name in (*(name for name in defaults if name != "overrides"), *SETTINGS)
        ]
    )
    return run


def single(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one run."""
    lists = parsed(overrides)
    for name, values in lists.items():
        if isinstance(values, list) and len(values) > 1:
            raise ArgumentError(
                f"{_option(name)} {overrides[name]}: one value; `equinorm sweep` tries several"
            )
    return {name: values[0] if isinstance(values, list) else values for name, values in lists.items()}


def parsed(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, lists as lists."""
    return {name: _values(name, v) if name in PARSED else v for name, v in overrides.items()}


def _values(name: str, text: str) -> list[Any]:
    try:
        return [PARSED[name](part.strip()) for part in text.split(",")]
    except ValueError:
        kind = "a whole number" if PARSED[name] is int else "a number"
        raise ArgumentError(f"{_option(name)} {text}: expected {kind}") from None


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
