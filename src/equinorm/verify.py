"""Verify: does the model still compute the same function?

Outputs are compared in evaluation and in training mode, on the example inputs and on random inputs of the
same kind. The model's parameters, buffers, gradients and all other attributes and the random state are left
as they were.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from equinorm.attributes import attributes_kept
from equinorm.errors import ArgumentError, EquinormError
from equinorm.randomness import random_state_kept, seed_all
from equinorm.rounding import Precision, coarsest, one_ulp_off, swapped
from equinorm.trace import ExampleInputs, caches_off, call_arguments

Run: TypeAlias = tuple[bool, Any]  # whether in training mode, and on which (positional, keyword) inputs

RUN_ERRORS = (ValueError, RuntimeError, TypeError, LookupError, AttributeError, AssertionError)
SEED = 20190501
SLACK = 16  # roundings that a change within floating-point error may amount to, before it is measured
AMPLIFICATION = 100  # and how many times the change under a one-ulp perturbation is still rounding
NEVER_ROUNDING = 0.3  # a change that is none in any precision


class Probe:
    """The model's outputs now, to compare with those after a change.

    ``originals`` is a copy of its parameters: a forward pass may write to them (``Embedding(max_norm=…)``).
    """

    def __init__(
        self, model: nn.Module, example_inputs: ExampleInputs, originals: Mapping[str, Tensor]
    ) -> None:
        self._model = model
        self._written: dict[str, Tensor] = {}  # parameters that the forward pass itself changes
        example = call_arguments(example_inputs)
        _check_inputs(example)
        with random_state_kept(model):
            torch.manual_seed(SEED)
            noise = pytree.tree_map(_random_like, example)
        self._runs: list[Run] = []
        self._before: list[list[Tensor]] = []
        for run in ((False, example), (False, noise), (True, example), (True, noise)):
            try:
                self._before.append(self._first_run(run, originals))
                self._runs.append(run)
            except RUN_ERRORS as error:
                if not self._runs:
                    raise ArgumentError(_does_not_run(error)) from error
                # Noise need not be an input that the model takes, and batch norm cannot train on one value.

    def changes(self) -> list[float]:
        """The largest change of an output tensor since then, relative to its largest entry; for every run.

        NaN where the outputs had no finite entry, so that nothing could be compared.
        """
        return [self._change(number) for number in range(len(self._runs))]

    def roundings(self, eps: float = 0.0) -> float:
        """A change of the outputs that floating-point error may make in any model that computes in ``eps``."""
        outputs = (tensor for tensors in self._before for tensor in tensors)
        return SLACK * max(eps, coarsest(self._model.parameters()), coarsest(outputs))

    def amplified(
        self, runs: Sequence[int], parameters: Mapping[str, Tensor], originals: Mapping[str, Tensor]
    ) -> list[float]:
        """What it may make in some runs of this model: from what a one-ulp perturbation of the weights does.

        The ulp is that of the coarsest precision inside the model. The originals, a copy of the weights
        before, trade places with the parameters meanwhile.
        """
        with swapped(parameters, originals):
            eps = max(coarsest(parameters.values()), *map(self._precision, runs))
            again = largest([self._change(number) for number in runs])
            if again > self.roundings(eps):
                raise EquinormError(
                    f"model: its outputs differ by {again:.1e} (relative) from call to call with the same "
                    "weights, so they cannot be verified, and the weights are restored. If it keeps state "
                    "between calls or draws its own random numbers, pass verify=False"
                )
            with one_ulp_off(parameters.values(), eps):
                return [min(AMPLIFICATION * self._change(number), NEVER_ROUNDING) for number in runs]

    def _precision(self, number: int) -> float:
        """The coarsest spacing of what the model computes, as far as its operators can be watched."""
        seen = Precision()
        try:
            with seen:
                self._run(self._runs[number])
        except RUN_ERRORS:
            return 0.0
        return seen.eps

    def _change(self, number: int) -> float:
        before, after = self._before[number], self._run(self._runs[number])
        if [x.shape for x in before] != [y.shape for y in after]:
            return math.inf
        return largest(_change(x, y) for x, y in zip(before, after, strict=True))

    def _first_run(self, run: Run, originals: Mapping[str, Tensor]) -> list[Tensor]:
        """A run that finds out which parameters it changes."""
        try:
            return self._run(run)
        finally:
            for name, parameter in self._model.named_parameters():
                if name in originals and not torch.equal(parameter, originals[name]):
                    self._written[name] = parameter.detach()
                    restore(self._written, {name: originals[name]})

    def _run(self, run: Run) -> list[Tensor]:
        training, inputs = run
        args, kwargs = pytree.tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, inputs)
        with _observed(self._model, self._written), torch.no_grad():
            self._model.train(training)
            seed_all(SEED)
            output = self._model(*args, **kwargs)
            return [t.detach().clone() for t in pytree.tree_leaves(output) if isinstance(t, Tensor)]


def largest(changes: Iterable[float]) -> float:
    """The largest of the changes that could be measured; NaN if none could."""
    return max((change for change in changes if not math.isnan(change)), default=math.nan)


def _check_inputs(example: Any) -> None:
    for value in pytree.tree_leaves(example):
        # -inf is how masks say "not this one".
        if isinstance(value, Tensor) and value.is_floating_point() and not bool((value < math.inf).all()):
            raise ArgumentError(
                "example_inputs: they hold NaN or infinity, on which no function can be verified; give finite "
                "inputs or pass verify=False"
            )


def _does_not_run(error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    return f"example_inputs: the model does not run on them in evaluation mode: {reason}"


@contextmanager
def _observed(model: nn.Module, written: Mapping[str, Tensor]) -> Iterator[None]:
    """Leave attributes, buffers, written parameters and random state (Python's too) as they are on entry.

    A buffer that is replaced, perhaps by one of another shape, comes back as the same tensor.
    """
    held = dict(model.named_buffers()) | dict(written)
    saved = {name: tensor.clone() for name, tensor in held.items()}
    try:
        with attributes_kept(model), random_state_kept(model), caches_off(model):
            yield
    finally:
        restore(held, saved)


def restore(tensors: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy saved values back in place."""
    with torch.no_grad():
        for name, value in saved.items():
            target = tensors[name]
            for dim in range(target.dim() if target.layout == torch.strided else 0):
                if (
                    target.stride(dim) == 0 < target.size(dim)
                ):  # torch does not write to entries that are repeated
                    target, value = target.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
            target.copy_(value)


def _random_like(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.numel() == 0:
        return value
    value = value.detach()
    if value.dtype == torch.bool or not bool(value.isfinite().all()):
        return value  # a mask: random ones may hide every token
    if value.is_floating_point():
        spread = value.double().std() if value.numel() > 1 else torch.tensor(1.0)
        noise = torch.randn(value.shape, dtype=torch.float64) * max(float(spread), 1e-6)
        noise += float(value.double().mean())
        return noise.to(value)
    if value.is_complex():
        return torch.randn_like(value)
    return torch.randint(int(value.min()), int(value.max()) + 1, value.shape).to(value)


def _change(before: Tensor, after: Tensor) -> float:
    """The largest change of an entry that was finite, relative to the largest of those; NaN if none was."""
    finite = before.isfinite()
    if not bool(finite.any()):
        return math.nan
    wide = torch.complex128 if before.is_complex() else torch.float64
    x, y = before[finite].to(wide), after[finite].to(wide)
    if torch.equal(x, y):
        return 0.0
    change = float((x - y).abs().max()) / (float(x.abs().max()) or 1.0)
    return math.inf if math.isnan(change) else change
