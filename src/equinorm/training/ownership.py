"""Which tensors move with the weights: optimizer state, and averages that follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from equinorm.errors import ArgumentError, EquinormError
from equinorm.symmetry import Symmetries
from equinorm.training.state import exponents_of


class Ownership:
    """The optimizers' view of a model's parameters."""

    def __init__(self, optimizers: Sequence[Optimizer], parameters: Mapping[str, nn.Parameter]) -> None:
        self.optimizers = list(optimizers)
        self._exponents = [exponents_of(optimizer) for optimizer in self.optimizers]
        self._parameters = dict(parameters)
        self._owner = {
            id(p): i for i, o in enumerate(self.optimizers) for g in o.param_groups for p in g["params"]
        }
        if not any(id(p) in self._owner for p in parameters.values()):
            raise ArgumentError(
                "optimizer: it owns none of the model's parameters. If it updates copies of them (float32 masters of "
                "bfloat16 weights), normalise the model that holds those copies"
            )

    def held(self, symmetries: Symmetries) -> dict[str, str]:
        """Parameters that must not move, and why."""
        reasons = {}
        for name in {scaling.parameter for scaling in symmetries.scalings}:
            parameter = self._parameters[name]
            if not parameter.requires_grad:
                reasons[name] = "it is frozen (requires_grad=False)"
            elif id(parameter) not in self._owner:
                reasons[name] = "the optimizer does not own it"
        return reasons

    def states(self, names: Sequence[str]) -> list[tuple[dict[str, Tensor], int]]:
        """The optimizer's tensors that move, by state and exponent, for these parameters."""
        found: dict[tuple[str, int], dict[str, Tensor]] = {}
        for name in names:
            parameter = self._parameters[name]
            owner = self._owner.get(id(parameter))
            if owner is None:
                continue
            for state, tensor in self.optimizers[owner].state.get(parameter, {}).items():
                exponent = self._exponent(owner, state, tensor, parameter)
                if exponent:
                    if tensor.shape != parameter.shape:
                        raise EquinormError(
                            f"optimizer: its state {state!r} of parameter {name} has shape {tuple(tensor.shape)}, not "
                            f"the parameter's {tuple(parameter.shape)}: it is not elementwise and cannot move"
                        )
                    found.setdefault((state, exponent), {})[name] = tensor
        return [(tensors, exponent) for (_, exponent), tensors in found.items()]

    def _exponent(self, owner: int, state: str, tensor: object, parameter: Tensor) -> int:
        exponent = self._exponents[owner].get(state)
        if isinstance(tensor, Tensor):
            if exponent is not None:
                return exponent
            if state == "step" or tensor.numel() == 1 != parameter.numel():
                return 0
        elif exponent == 0 or tensor is None or isinstance(tensor, (bool, int, float, str)):
            return 0
        name = type(self.optimizers[owner]).__name__
        raise EquinormError(
            f"optimizer: {name} keeps a state {state!r} that equinorm does not know; say how it moves: "
            f'equinorm.register_state({name}, {{"{state}": -1, …}})'
        )


class Layouts:
    """Where each parameter's module keeps it, to notice a model that has changed."""

    def __init__(self, model: nn.Module) -> None:
        self._places = [
            (module, key, parameter, f"{prefix}.{key}" if prefix else key)
            for prefix, module in model.named_modules()
            for key, parameter in module._parameters.items()
            if parameter is not None
        ]
        self._looks = [_look(parameter) for _, _, parameter, _ in self._places]
        self._children = [
            (prefix, module, dict(module._modules), len(module._parameters))
            for prefix, module in model.named_modules()
        ]

    def check(self) -> None:
        """Raise if a layer was replaced, reshaped, cast, moved, frozen or thawed since."""
        for prefix, module, children, parameters in self._children:
            if module._modules != children or len(module._parameters) != parameters:
                raise EquinormError(
                    f"the model has changed since ENorm was made: a layer or parameter of "
                    f"{prefix or 'the model itself'} was replaced, added or removed. Make a new ENorm"
                )
        for (module, key, parameter, name), look in zip(self._places, self._looks, strict=True):
            if module._parameters.get(key) is not parameter or _look(parameter) != look:
                raise EquinormError(
                    f"the model has changed since ENorm was made: parameter {name} was replaced, reshaped, cast, "
                    "moved, frozen or thawed. Make a new ENorm"
                )


def _look(parameter: Tensor) -> tuple[object, ...]:
    return parameter.shape, parameter.stride(), parameter.dtype, parameter.device, parameter.requires_grad


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside torch.compile, DistributedDataParallel and averaging wrappers."""
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel, torch.optim.swa_utils.AveragedModel)
    while True:
        if isinstance(model, wrappers):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def parameters_by_name(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters under the names that the symmetries use."""
    yield from unwrapped(model).named_parameters()
