"""Law 1 on whole models: nothing hidden by an initialisation, and errors measured where the output moves."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import equinorm
from equinorm.trace import ExampleInputs, call_arguments

PRECISION = 1e-9
AMPLIFICATION = 100  # times the change under a one-ulp perturbation of the weights is rounding too
SMALL = 0.05  # below: zero-initialised heads, gates and layer scales


def lifelike(model: nn.Module, inputs: ExampleInputs, seed: int = 0) -> nn.Module:
    """The model in float64 with random affine weights, biases and gates, and with calibrated statistics.

    Without that a deep random network is nearly constant, and zero-initialised parts compute nothing.
    """
    draws = torch.Generator().manual_seed(seed)
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=draws, dtype=parameter.dtype)
            if float(parameter.abs().max()) < SMALL:
                parameter.copy_(noise / math.sqrt(max(parameter[0].numel() if parameter.dim() > 1 else 1, 4)))
            elif parameter.dim() < 2:
                parameter.mul_(1 + 0.3 * noise).add_(0.1 * noise.flip(0) if noise.dim() else 0.1 * noise)
        _calibrate(model, inputs, draws)
    return model


def _calibrate(model: nn.Module, inputs: ExampleInputs, draws: torch.Generator) -> None:
    norms = [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm) and module.running_var is not None
    ]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    if norms:
        list(outputs(model, inputs, training=True))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        noise = torch.rand(norm.running_var.shape, generator=draws, dtype=norm.running_var.dtype)
        norm.running_var.mul_(0.5 + noise)
        norm.running_mean.add_((noise.flip(0) - 0.5) * norm.running_var.sqrt())


def outputs(model: nn.Module, inputs: ExampleInputs, training: bool) -> Iterator[Tensor]:
    """Every floating-point output; dropped units are the same at every call."""
    args, kwargs = call_arguments(inputs)
    torch.manual_seed(7)
    with torch.no_grad():
        found: Any = model.train(training)(*args, **kwargs)
    for tensor in pytree.tree_leaves(found):
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            yield tensor.clone()


def both_modes(model: nn.Module, inputs: ExampleInputs) -> list[Tensor]:
    """Outputs in evaluation and in training mode, the latter on a copy: it moves the statistics."""
    return [*outputs(model, inputs, training=False), *outputs(copy.deepcopy(model), inputs, training=True)]


def moved(before: list[Tensor], after: list[Tensor]) -> float:
    """The largest change, relative to how much the output depends on the input (the two samples of a batch)."""
    assert len(before) == len(after) > 0
    changes = []
    for x, y in zip(before, after, strict=True):
        assert bool(x.isfinite().all())
        dependent = float((x - x.flip(0)).abs().max())
        assert dependent > 1e-9 * float(x.abs().max()), "the output hardly depends on the input"
        changes.append(float((y - x).abs().max()) / dependent)
    return max(changes)


def assert_function_preserved(
    model: nn.Module, inputs: ExampleInputs, before: list[Tensor], original: nn.Module
) -> float:
    """``before``: what ``original`` computed; ``model`` must still compute it."""
    change = moved(before, both_modes(model, inputs))
    if change > PRECISION:
        eps = torch.finfo(coarsest_type(original, inputs)).eps
        rounding = moved(before, both_modes(_perturbed(original, eps), inputs))
        assert change <= AMPLIFICATION * rounding, (
            f"outputs moved by {change:.1e}, one ulp moves them by {rounding:.1e}"
        )
    return change


class _Types(TorchDispatchMode):
    """The floating-point types that a model computes in."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = {torch.float64}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]
        self.seen |= {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
        return result


def coarsest_type(model: nn.Module, inputs: ExampleInputs) -> torch.dtype:
    """Some models cast to float32 inside, whatever the type of their weights."""
    with _Types() as types:
        list(outputs(model, inputs, training=False))
    return max(types.seen, key=lambda dtype: torch.finfo(dtype).eps)


def _perturbed(model: nn.Module, eps: float) -> nn.Module:
    model = copy.deepcopy(model)
    draws = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            up = torch.randint(0, 2, parameter.shape, generator=draws).to(parameter)
            parameter.mul_(1 + eps * (2 * up - 1))
    return model


def unbalance(model: nn.Module, symmetries: equinorm.Symmetries, seed: int = 1) -> None:
    """Move along the orbit by random scales exp(N(0, 1))."""
    draws = torch.Generator().manual_seed(seed)
    logs = torch.randn(symmetries.num_free + 1, generator=draws, dtype=torch.float64)
    logs[0] = 0
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for scaling in symmetries.scalings:
            plus, minus = (ids.sign() * logs[ids.abs()] for ids in (scaling.plus, scaling.minus))
            scaling.view(parameters[scaling.parameter].detach()).mul_((plus - minus).exp())


def assert_laws(model: nn.Module, inputs: ExampleInputs, symmetries: equinorm.Symmetries) -> equinorm.Report:
    """Balancing keeps the function, lowers the norm, certifies its optimum, and forgets where on the orbit it began."""
    model = lifelike(model, inputs)
    before, original = both_modes(model, inputs), copy.deepcopy(model)
    report = equinorm.balance(model, symmetries=symmetries, verify=False)
    assert_function_preserved(model, inputs, before, original)
    assert report.residual <= 1e-6
    assert report.norm_after < report.norm_before or not symmetries.num_free
    unbalance(original, symmetries)
    assert_function_preserved(original, inputs, before, model)
    again = equinorm.balance(original, symmetries=symmetries, verify=False)
    if not report.still:
        assert abs(again.norm_after / report.norm_after - 1) < 1e-6
    return report
