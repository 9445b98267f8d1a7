"""How optimizer state moves with the weights: (optimizer class, state name) → exponent.

When a weight is multiplied by s, its gradient is divided by s (Equation ``eq:update_grads`` of the paper), and
whatever the optimizer has accumulated moves by s to some power: -1 for averages of gradients, -2 for averages of
their squares, 1 for averages of weights and for step lengths, 0 for what has no scale.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.optim import Optimizer

from equinorm.errors import ArgumentError

_ADAM = {"exp_avg": -1, "exp_avg_sq": -2, "max_exp_avg_sq": -2, "mu_product": 0}

EXPONENTS: dict[type[Optimizer], dict[str, int]] = {
    torch.optim.SGD: {"momentum_buffer": -1},
    torch.optim.Adam: _ADAM,
    torch.optim.AdamW: _ADAM,
    torch.optim.NAdam: _ADAM,
    torch.optim.RAdam: _ADAM,
    torch.optim.SparseAdam: _ADAM,
    torch.optim.Adamax: {"exp_avg": -1, "exp_inf": -1},  # exp_inf is a maximum of |g|
    # momentum_buffer accumulates g / sqrt(v), in which the scale cancels
    torch.optim.RMSprop: {"square_avg": -2, "momentum_buffer": 0, "grad_avg": -1},
    torch.optim.Adagrad: {"sum": -2},
    torch.optim.Adadelta: {
        "square_avg": -2,
        "acc_delta": 2,
    },  # acc_delta averages squared updates of the weights
    torch.optim.ASGD: {"ax": 1, "eta": 0, "mu": 0},  # ax averages the weights
    torch.optim.Rprop: {"prev": -1, "step_size": 1},  # step_size is the length of a weight's next update
}

REFUSED: dict[type[Optimizer], str] = {
    torch.optim.LBFGS: "its history mixes all parameters into inner products",
    torch.optim.Adafactor: "it factors second moments into rows and columns and scales updates by a tensor's norm",
    torch.optim.Muon: "it orthogonalises whole matrices",
}


REFUSED_NAMES = {  # classes of packages that need not be installed
    "Adafactor": REFUSED[torch.optim.Adafactor],
    "Muon": REFUSED[torch.optim.Muon],
    "Shampoo": "it multiplies gradients by whole matrices",
    "DistributedShampoo": "it multiplies gradients by whole matrices",
    "SOAP": "it works in the eigenbasis of whole matrices",
}

WRAPPERS = {
    "AcceleratedOptimizer": "wraps another optimizer; pass that one, its .optimizer",
    "ZeroRedundancyOptimizer": "keeps the state of each parameter on one process only, so that processes could not "
    "agree on scales; shard the model with fully_shard instead",
}


def register_state(optimizer_cls: type[Optimizer], exponents: Mapping[str, int]) -> None:
    """Teach equinorm an elementwise optimizer: how each of its state tensors moves when a weight grows by s.

    Args:
        optimizer_cls: the optimizer's class; subclasses inherit the entry.
        exponents: state name → the power of s: -1 for averages of gradients, -2 of squared gradients, 1 for copies
            or averages of weights, 0 for what does not move.
    """
    if not (isinstance(optimizer_cls, type) and issubclass(optimizer_cls, Optimizer)):
        raise ArgumentError(
            f"optimizer_cls: expected a class of torch.optim.Optimizer, got {optimizer_cls!r}"
        )
    for name, exponent in exponents.items():
        if isinstance(exponent, bool) or not isinstance(exponent, int):
            raise ArgumentError(f"exponents: {name} must have a whole number, got {exponent!r}")
    EXPONENTS[optimizer_cls] = dict(exponents)


def exponents_of(optimizer: Optimizer) -> Mapping[str, int]:
    """The table's row for an optimizer, or an error that says why there is none."""
    name = type(optimizer).__name__
    for cls in type(optimizer).__mro__:
        if cls in REFUSED:
            raise _not_elementwise(name, REFUSED[cls])
        if cls in EXPONENTS:
            return EXPONENTS[cls]
    for cls in type(optimizer).__mro__:
        if cls.__name__ in WRAPPERS:
            raise ArgumentError(f"optimizer: {name} {WRAPPERS[cls.__name__]}")
        if cls.__name__ in REFUSED_NAMES:
            raise _not_elementwise(name, REFUSED_NAMES[cls.__name__])
    raise ArgumentError(
        f"optimizer: {name} is unknown. If it is elementwise, say how its state moves: "
        f'equinorm.register_state({name}, {{"exp_avg": -1, "exp_avg_sq": -2, …}})'
    )


def _not_elementwise(name: str, reason: str) -> ArgumentError:
    return ArgumentError(f"optimizer: {name} is not elementwise ({reason}), so its state cannot move")
