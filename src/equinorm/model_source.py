"""A MODEL as the command line names it → the module and inputs to run it on.

``torchvision:NAME``, ``timm:NAME``, ``equinorm:NAME`` or ``package.module:callable``, where the callable
takes no arguments and returns a module (a module itself will do) and is found from the current folder too.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import torch
from torch import Tensor, nn

from equinorm.errors import ArgumentError, EquinormError
from equinorm.models import MODELS

Shape = tuple[int, ...]
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.bool,
    )
}

MISFIT = f"; install the torchvision build that fits torch {torch.__version__}"


@dataclass(frozen=True)
class Input:
    """What one positional input looks like; without a dtype it takes the model's."""

    shape: Shape
    dtype: torch.dtype | None = None


def parse_input(text: str) -> Input:
    """``1,3,224,224`` or, with a dtype, ``1,16:int64``."""
    shape, _, dtype = text.partition(":")
    if dtype and dtype not in DTYPES:
        raise ArgumentError(f"--input {text}: unknown dtype {dtype}; use one of {', '.join(DTYPES)}")
    try:
        sizes = tuple(int(size) for size in shape.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise ArgumentError(f"--input {text}: expected positive sizes such as 1,3,224,224 or 1,16:int64")
    return Input(sizes, DTYPES.get(dtype))


def load(spec: str) -> tuple[nn.Module, Shape | None]:
    """The module in evaluation mode, and the shape of its usual input where the source knows one."""
    source, colon, name = spec.partition(":")
    if not colon or not source or not name:
        raise ArgumentError(
            f"MODEL {spec}: expected torchvision:NAME, timm:NAME, equinorm:NAME or package.module:callable"
        )
    model, shape = SOURCES.get(source, partial(_from_module, source))(name)
    return model.eval(), shape


def cast(model: nn.Module, dtype: str) -> None:
    """Bring the model to another precision, in place."""
    if dtype not in DTYPES or not DTYPES[dtype].is_floating_point:
        raise ArgumentError(f"--dtype {dtype}: use float64, float32, float16 or bfloat16")
    model.to(DTYPES[dtype])


def example_inputs(model: nn.Module, usual: Shape | None, given: Sequence[str]) -> tuple[Tensor, ...]:
    """Random positional inputs of the given shapes, or of the source's usual one."""
    inputs = [parse_input(text) for text in given] or ([Input(usual)] if usual else [])
    if not inputs:
        raise ArgumentError(
            "--input: this model's input shape is unknown; give one such as --input 1,3,224,224"
        )
    floats = (p.dtype for p in model.parameters() if p.is_floating_point())
    default = next(floats, torch.get_default_dtype())
    generator = torch.Generator().manual_seed(0)
    return tuple(_random(one.shape, one.dtype or default, generator) for one in inputs)


def _random(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    # 0 and 1 are valid token ids, class labels and masks of any model.
    return torch.randint(0, 2, shape, generator=generator).to(dtype)


def _import(name: str, spec: str, hint: str = "") -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ArgumentError(f"MODEL {spec}: there is no module {error.name}; is it installed?") from error
        raise EquinormError(f"MODEL {spec}: importing {name} failed: {_cause(error)}{hint}") from error
    except (Exception, SystemExit) as error:
        raise EquinormError(f"MODEL {spec}: importing {name} failed: {_cause(error)}{hint}") from error


def _build(make: Callable[[], object], spec: str) -> nn.Module:
    try:
        model = make()
    except EquinormError:
        raise
    except (Exception, SystemExit) as error:
        raise EquinormError(f"MODEL {spec}: building it failed: {_cause(error)}") from error
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"MODEL {spec}: is of type {type(model).__name__}, not a torch.nn.Module")
    return model


def _cause(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _known(name: str, names: Iterable[str], spec: str) -> None:
    names = sorted(names)
    if name not in names:
        close = difflib.get_close_matches(name, names, n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else _there_are(names)
        raise ArgumentError(f"MODEL {spec}: unknown model{hint}")


def _there_are(names: list[str]) -> str:
    if len(names) > 20:
        return f"; there are {len(names)}, {names[0]} … {names[-1]}"
    return f"; there are {', '.join(names)}"


def _from_torchvision(name: str) -> tuple[nn.Module, Shape | None]:
    spec = f"torchvision:{name}"
    models = _import("torchvision.models", spec, MISFIT)
    _known(name, models.list_models(), spec)
    model = _build(partial(models.get_model, name, weights=None), spec)
    if name in models.list_models(module=models.video):
        return model, (1, 3, 16, 224, 224)
    return model, (1, 3, 299, 299) if "inception_v3" in name else (1, 3, 224, 224)


def _from_timm(name: str) -> tuple[nn.Module, Shape | None]:
    spec = f"timm:{name}"
    timm = _import("timm", spec, MISFIT)
    _known(name.split(".")[0], timm.list_models(), spec)
    model = _build(partial(timm.create_model, name, pretrained=False), spec)
    config = getattr(model, "default_cfg", None) or {}
    return model, (1, *config.get("input_size", (3, 224, 224)))


def _from_equinorm(name: str) -> tuple[nn.Module, Shape | None]:
    spec = f"equinorm:{name}"
    _known(name, MODELS, spec)
    make, shape = MODELS[name]
    return _build(make, spec), shape


def _from_module(source: str, name: str) -> tuple[nn.Module, Shape | None]:
    spec = f"{source}:{name}"
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: object = _import(source, spec)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ArgumentError(f"MODEL {spec}: module {source} has no {name}")
        found = getattr(found, part)
    if isinstance(found, nn.Module):
        return found, None
    if not callable(found):
        raise ArgumentError(
            f"MODEL {spec}: is of type {type(found).__name__}, neither a module nor a callable"
        )
    return _build(found, spec), None


SOURCES: dict[str, Callable[[str], tuple[nn.Module, Shape | None]]] = {
    "torchvision": _from_torchvision,
    "timm": _from_timm,
    "equinorm": _from_equinorm,
}
