"""The optimizers' view of a model's parameters, and which of their tensors move with the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from equinorm.errors import ArgumentError, EquinormError
from equinorm.symmetry import Symmetries
from equinorm.training.companions import obstacle
from equinorm.training.seen import Seen
from equinorm.training.state import exponents_of


class Ownership:
    """Which optimizers update each parameter; several may, and the state of each then moves."""

    def __init__(self, optimizers: Sequence[Optimizer], parameters: Mapping[str, nn.Parameter]) -> None:
        self.optimizers = list(optimizers)
        self._exponents = [exponents_of(optimizer) for optimizer in self.optimizers]
        self._parameters = dict(parameters)
        self._owners = self._owners_now()
        if not any(self._owners.values()):
            raise ArgumentError(
                "optimizer: it owns none of the model's parameters. If it updates copies of them (float32 masters of "
                "bfloat16 weights), normalise the model that holds those copies"
            )

    def held(self, symmetries: Symmetries, biases: bool) -> dict[str, str]:
        """Parameters that must not move, though scales would move them, and why."""
        reasons = {}
        for name in {scaling.parameter for scaling in symmetries.scalings if scaling.counted or biases}:
            if not self._parameters[name].requires_grad:
                reasons[name] = "it is frozen (requires_grad=False)"
            elif not self._owners[name]:
                reasons[name] = "the optimizer does not own it"
        return reasons

    def check(self) -> None:
        """Raise if a parameter has joined or left an optimizer since."""
        now = self._owners_now()
        if now != self._owners:
            name = next(name for name, owners in now.items() if owners != self._owners[name])
            raise EquinormError(
                f"the optimizer's parameter groups have changed since ENorm was made: {name} has joined or left them. "
                "Make a new ENorm"
            )

    def states(self, names: Sequence[str]) -> list[tuple[dict[str, Tensor], int]]:
        """The optimizers' tensors that move, by state and exponent, for these parameters."""
        found: dict[tuple[int, str, int], dict[str, Tensor]] = {}
        for name in names:
            parameter = self._parameters[name]
            for owner in self._owners[name]:
                for state, tensor in self.optimizers[owner].state.get(parameter, {}).items():
                    exponent = self._exponent(owner, state, tensor, parameter)
                    if exponent:
                        _check_movable(name, state, tensor, parameter)
                        found.setdefault((owner, state, exponent), {})[name] = tensor
        return [(tensors, exponent) for (_, _, exponent), tensors in found.items()]

    def look(self, seen: Seen, names: Sequence[str]) -> None:
        """Note where the optimizers keep their groups, and the states of these parameters."""
        for optimizer in self.optimizers:
            for group in seen.members(seen.attribute(optimizer, "param_groups")):
                seen.members(seen.entry(group, "params"))
            seen.attribute(optimizer, "state")
        for name in names:
            parameter = self._parameters[name]
            for owner in self._owners[name]:
                state = seen.entry(self.optimizers[owner].state, parameter)
                if state is not None:
                    self._look_at(state, owner, parameter, seen)

    def _look_at(self, state: Mapping[str, Any], owner: int, parameter: Tensor, seen: Seen) -> None:
        """Of what does not move, such as a count of steps, only the type matters."""
        seen.size(state)
        for key, value in state.items():
            if self._exponent(owner, key, value, parameter):
                seen.memory([seen.entry(state, key)])
            else:
                seen.read(partial(_type_in, state), key)

    def _owners_now(self) -> dict[str, tuple[int, ...]]:
        owned = [{id(p) for group in o.param_groups for p in group["params"]} for o in self.optimizers]
        return {
            name: tuple(i for i, ids in enumerate(owned) if id(parameter) in ids)
            for name, parameter in self._parameters.items()
        }

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


def _type_in(state: Mapping[str, Any], key: str) -> type:
    return type(state.get(key))


def _check_movable(name: str, state: str, tensor: Tensor, parameter: Tensor) -> None:
    reason = obstacle(tensor, parameter)
    if reason:
        raise EquinormError(
            f"optimizer: its state {state!r} of parameter {name} {reason}. Only elementwise state in floating point, "
            "beside its parameter, can move with it"
        )
