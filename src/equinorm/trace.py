"""Trace: a model and example inputs → graphs of ATen operators, one per mode (evaluation, training).

``torch.export`` runs the model on fake tensors: nothing is computed, and the model, its buffers and the
random state stay as they are. The graph keeps the operators as the model called them (``conv2d``,
``batch_norm``, ``relu_``), in-place operators included.

The cache of keys and values that Hugging Face's decoders return is state between calls, not a part of the
function: it is switched off while a model is traced or verified.
"""

from __future__ import annotations

import inspect
import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from equinorm.attributes import Stored, attributes_kept
from equinorm.errors import ArgumentError, EquinormError
from equinorm.randomness import random_state_kept

ExampleInputs: TypeAlias = "Tensor | Sequence[Any] | Mapping[str, Any]"

UNKNOWN_OUTPUT = re.compile(r"Found <class '([^']*)'> in output")


@dataclass(frozen=True)
class Trace:
    """One exported graph, and what its placeholders stand for."""

    mode: str
    graph_module: fx.GraphModule
    parameters: Mapping[str, str]  # placeholder → parameter's name in the model
    buffers: Mapping[str, Tensor]  # placeholder → buffer
    constants: Mapping[str, Tensor]  # placeholder → tensor made inside the forward pass, or an attribute
    stored: int  # how many of the last outputs the pass leaves on the modules instead of returning them
    replaced: Sequence[Tensor]  # the attributes that these take the place of


def call_arguments(example_inputs: ExampleInputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments for the model's forward."""
    if isinstance(example_inputs, Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs), {}
    raise ArgumentError(
        "example_inputs: expected a tensor, a tuple of positional inputs or a dict of keyword inputs, "
        f"got {type(example_inputs).__name__}"
    )


def trace(model: nn.Module, example_inputs: ExampleInputs) -> tuple[list[Trace], str | None]:
    """The model's graphs in evaluation and in training mode, and why the second is missing if it is."""
    args, kwargs = call_arguments(example_inputs)
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    with attributes_kept(model), random_state_kept(model), caches_off(model):
        traces = [_export(model.eval(), args, kwargs, "eval")]
        model.train()
        try:
            traces.append(_export(model, args, kwargs, "train"))
        except EquinormError as single:
            try:  # batch norm refuses to train on one value per channel: try two samples
                traces.append(_export(model, *_doubled(args, kwargs), "train"))
            except EquinormError:
                return traces, str(single)
    return traces, None


@contextmanager
def caches_off(model: nn.Module) -> Iterator[None]:
    """Hugging Face's decoders return no cache of keys and values, as if called with ``use_cache=False``."""
    configs = {id(config): config for config in map(_config, model.modules()) if config is not None}
    on = [config for config in configs.values() if getattr(config, "use_cache", None) is True]
    for config in on:
        config.use_cache = False
    try:
        yield
    finally:
        for config in on:
            config.use_cache = True


def _config(module: nn.Module) -> Any:
    """The Hugging Face configuration that a module has, if any."""
    config = getattr(module, "config", None)
    ours = any(kind.__module__.partition(".")[0] == "transformers" for kind in type(config).__mro__)
    return config if ours else None


def _export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mode: str) -> Trace:
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # the fused attention kernel would hide its projections
    stored = Stored()
    try:
        with (
            warnings.catch_warnings(),
            _quiet_export(),
            _without_stack_traces(),
            torch.no_grad(),
            attributes_kept(model),
        ):
            warnings.simplefilter("ignore")
            vars(model)["forward"] = stored.returned_by(model)
            program = torch.export.export(model, args, kwargs, strict=False)
    except Exception as error:
        raise ArgumentError(_why_untraceable(model, args, kwargs, mode, error)) from None
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    return _described(program, model, mode, stored)


@contextmanager
def _quiet_export() -> Iterator[None]:
    """torch.export logs what it then raises, and prints the graph so far; the error says enough."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def _without_stack_traces() -> Iterator[None]:
    """The Python lines behind every node: nobody reads them, and they cost a quarter of the trace."""
    kept = fx.config.do_not_emit_stack_traces
    fx.config.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        fx.config.do_not_emit_stack_traces = kept


def _why_untraceable(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mode: str, error: Exception
) -> str:
    name = type(model).__name__
    mismatch = _mismatch(model, args, kwargs)
    if mismatch is not None:
        return f"example_inputs: they do not fit {name}.forward: {mismatch}"
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    unknown = UNKNOWN_OUTPUT.search(reason)
    if unknown is not None:
        return (
            f"model: {name} returns an object of type {unknown[1]} that torch.export cannot look into. Return "
            "tensors in tuples, lists or dicts, or register the type with torch.export.register_dataclass; a "
            "cache of keys and values is left out with use_cache=False"
        )
    return (
        f"model: torch.export cannot trace {name} in {mode} mode on example_inputs: {reason} "
        f"({type(error).__name__}). Does model(*example_inputs) run? If it does, look for Python control flow that "
        "depends on values: torch.export cannot follow it"
    )


def _mismatch(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """How the arguments do not fit the signature of the model's forward, where it has one."""
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):  # compiled
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError as mismatch:
        return str(mismatch)
    return None


def _doubled(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def double(value: Any) -> Any:
        return torch.cat([value, value]) if isinstance(value, Tensor) and value.dim() > 0 else value

    return tuple(map(double, args)), {key: double(value) for key, value in kwargs.items()}


def _described(program: ExportedProgram, model: nn.Module, mode: str, stored: Stored) -> Trace:
    parameters, buffers, constants = {}, {}, {}
    canonical = _canonical_names(model)
    for spec in program.graph_signature.input_specs:
        placeholder, target = spec.arg.name, spec.target
        if spec.kind is InputKind.PARAMETER:
            parameters[placeholder] = canonical[str(target)]
        elif spec.kind is InputKind.BUFFER:
            buffers[placeholder] = model.get_buffer(str(target))
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            constants[placeholder] = program.constants[str(target)]
    return Trace(mode, program.graph_module, parameters, buffers, constants, stored.count, stored.replaced)


def _canonical_names(model: nn.Module) -> dict[str, str]:
    """Every name of a parameter → the one that ``named_parameters`` lists (tied weights have several)."""
    listed = {parameter: name for name, parameter in model.named_parameters()}
    return {name: listed[parameter] for name, parameter in model.named_parameters(remove_duplicate=False)}
