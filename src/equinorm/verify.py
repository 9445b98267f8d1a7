"""Verify: does the model still compute the same function?

Outputs are compared in evaluation and in training mode, on the example inputs and on random inputs of the
same kind. The model's buffers, gradients and training flags and the random state are left as they were.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from equinorm.errors import ArgumentError, EquinormError
from equinorm.interrupts import interrupts_deferred
from equinorm.trace import ExampleInputs, call_arguments, training_flags_kept

Run: TypeAlias = tuple[bool, Any]  # whether in training mode, and on which (positional, keyword) inputs

RUN_ERRORS = (ValueError, RuntimeError, TypeError, LookupError, AttributeError, AssertionError)
SEED = 20190501
SLACK = 16  # roundings that a change within floating-point error may amount to, before it is measured
AMPLIFICATION = 100  # and how many times the change under a one-ulp perturbation is still rounding
NEVER_ROUNDING = 0.3  # a change that is none in any precision


class Probe:
    """The model's outputs now, to compare with those after a change."""

    def __init__(self, model: nn.Module, example_inputs: ExampleInputs) -> None:
        self._model = model
        example = call_arguments(example_inputs)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            noise = pytree.tree_map(_random_like, example)
        self._runs: list[Run] = []
        self._before: list[list[Tensor]] = []
        for run in ((False, example), (False, noise), (True, example), (True, noise)):
            try:
                self._before.append(self._run(run))
                self._runs.append(run)
            except RUN_ERRORS as error:
                if not self._runs:
                    raise ArgumentError(_does_not_run(error)) from error
                # Noise need not be an input that the model takes, and batch norm cannot train on one value.

    def changes(self) -> list[float]:
        """The largest change of an output tensor since then, relative to its largest entry; for every run."""
        return [self._change(number) for number in range(len(self._runs))]

    def roundings(self) -> float:
        """A change of the outputs that floating-point error may make in any model."""
        tensors = [*self._model.parameters(), *(t for outputs in self._before for t in outputs)]
        return SLACK * max((torch.finfo(t.dtype).eps for t in tensors if t.is_floating_point()), default=0.0)

    def amplified(
        self, runs: Sequence[int], parameters: Mapping[str, Tensor], originals: Mapping[str, Tensor]
    ) -> list[float]:
        """What it may make in some runs of this model: from what a one-ulp perturbation of the weights does.

        The originals, a copy of the weights before, trade places with the parameters meanwhile.
        """
        with _swapped(parameters, originals):
            again = max(self._change(number) for number in runs)
            if again > self.roundings():
                raise EquinormError(
                    f"model: its outputs differ by {again:.1e} (relative) from call to call with the same "
                    "weights, so they cannot be verified, and the weights are restored. If it keeps state "
                    "between calls or draws its own random numbers, pass verify=False"
                )
            with _one_ulp_off(parameters.values()):
                return [min(AMPLIFICATION * self._change(number), NEVER_ROUNDING) for number in runs]

    def _change(self, number: int) -> float:
        return _largest_change(self._before[number], self._run(self._runs[number]))

    def _run(self, run: Run) -> list[Tensor]:
        training, inputs = run
        args, kwargs = pytree.tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, inputs)
        with _observed(self._model), torch.no_grad():
            self._model.train(training)
            torch.manual_seed(SEED)
            random.seed(SEED)
            output = self._model(*args, **kwargs)
        return [t.detach().clone() for t in pytree.tree_leaves(output) if isinstance(t, Tensor)]


def _does_not_run(error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    return f"example_inputs: the model does not run on them in evaluation mode: {reason}"


@contextmanager
def _observed(model: nn.Module) -> Iterator[None]:
    """Leave buffers, training flags and random state (Python's too) as they are on entry."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    drawn = random.getstate()
    with training_flags_kept(model), torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(drawn)
            restore(dict(model.named_buffers()), buffers)


def restore(tensors: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy saved values back in place."""
    with torch.no_grad():
        for name, value in saved.items():
            tensors[name].copy_(value)


def _random_like(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.numel() == 0:
        return value
    if value.dtype == torch.bool:
        return value  # a mask: random ones may hide every token
    if value.is_floating_point():
        spread = value.double().std() if value.numel() > 1 else torch.tensor(1.0)
        noise = torch.randn(value.shape, dtype=torch.float64) * max(float(spread), 1e-6)
        noise += float(value.double().mean())
        return noise.to(value)
    if value.is_complex():
        return torch.randn_like(value)
    return torch.randint(int(value.min()), int(value.max()) + 1, value.shape).to(value)


def _largest_change(before: list[Tensor], after: list[Tensor]) -> float:
    changes = [_change(x, y) for x, y in zip(before, after, strict=True)]
    return max(changes, default=0.0)


def _change(before: Tensor, after: Tensor) -> float:
    if torch.equal(before, after) or before.numel() == 0:
        return 0.0
    wide = torch.complex128 if before.is_complex() else torch.float64
    x, y = before.to(wide), after.to(wide)
    apart = (x - y).abs()
    apart = torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, apart)
    largest = x.abs()[x.isfinite()]
    scale = float(largest.max()) if largest.numel() else 1.0
    return float(apart.max()) / (scale or 1.0) if not apart.isnan().any() else float("inf")


@contextmanager
def _swapped(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> Iterator[None]:
    """Exchange the contents of two sets of tensors, one at a time."""

    def swap() -> None:
        with torch.no_grad(), interrupts_deferred():
            for name, tensor in first.items():
                kept = tensor.clone()
                tensor.copy_(second[name])
                second[name].copy_(kept)

    swap()
    try:
        yield
    finally:
        swap()


@contextmanager
def _one_ulp_off(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Flip the last bit of every number; flipping it again undoes it without a copy."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    views = [tensor.view(bits[tensor.element_size()]) for tensor in tensors]

    def flip() -> None:
        with torch.no_grad(), interrupts_deferred():
            for view in views:
                view.bitwise_xor_(1)

    flip()
    try:
        yield
    finally:
        flip()
