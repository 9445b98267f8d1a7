"""Law 8's oracle: count rescaling symmetries numerically, knowing nothing about operators.

Every entry of every parameter is multiplied by exp(u_e). The u that scales of (parameter, dimension, channel) can
make form a space S; the symmetries are the u in S along which no output of the model moves, to first order:
dim S - rank of the outputs' Jacobian on S. (Working in S rather than with the scales themselves quotients what
cancels within one tensor: dimension 0 times s and dimension 1 times 1/s.)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.conv import _ConvNd
from torch.utils import _pytree as pytree

TOLERANCE = 1e-9
SPARE = 12  # more equations than unknowns, so that the rank is the outputs' and not ours


def randomize(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model in float64 with random parameters and statistics: nothing is hidden by a zero or a one."""
    draws = torch.Generator().manual_seed(seed)
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draws, dtype=torch.float64))
        for name, buffer in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=draws, dtype=torch.float64))
    return model


def nullity(model: nn.Module, inputs: Callable[[int], tuple[Tensor, ...]], batches: int = 2) -> int:
    """Dimension of the rescalings that leave the outputs unchanged, in evaluation and in training mode."""
    span = _span(model)
    factors = {name: torch.zeros_like(p, requires_grad=True) for name, p in model.named_parameters()}
    outputs = torch.cat(list(_outputs(model, factors, inputs, batches)))
    rows = span.shape[1] + SPARE
    mixing = torch.randn(
        rows, outputs.numel(), dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    gradients = [
        torch.autograd.grad(row @ outputs, list(factors.values()), retain_graph=True, allow_unused=True)
        for row in mixing
    ]
    jacobian = torch.stack([_flat(row, list(factors.values())) for row in gradients])
    return span.shape[1] - _rank(jacobian @ span)


def _outputs(
    model: nn.Module, factors: dict[str, Tensor], inputs: Callable[[int], tuple[Tensor, ...]], batches: int
) -> Iterator[Tensor]:
    parameters = dict(model.named_parameters())
    scaled = {name: parameters[name].detach() * factor.exp() for name, factor in factors.items()}
    for training in (False, True):
        copied = copy.deepcopy(model).train(training)  # training rewrites statistics that evaluation uses
        for seed in range(batches):
            found: Any = functional_call(copied, scaled, inputs(seed))
            for tensor in pytree.tree_leaves(found):
                flat = tensor.flatten()
                yield flat / flat.detach().abs().max().clamp_min(1e-300)


def _flat(gradients: tuple[Tensor | None, ...], like: list[Tensor]) -> Tensor:
    return torch.cat(
        [
            torch.zeros_like(x).flatten() if g is None else g.flatten()
            for g, x in zip(gradients, like, strict=True)
        ]
    )


def _rank(matrix: Tensor) -> int:
    values = torch.linalg.svdvals(matrix / matrix.norm(dim=1, keepdim=True).clamp_min(1e-300))
    return int((values > TOLERANCE * values.max()).sum())


def _span(model: nn.Module) -> Tensor:
    """An orthonormal basis of what scales per (parameter, dimension, channel) do to the entries' logarithms."""
    groups = {
        name + ".weight": module.groups
        for name, module in model.named_modules()
        if isinstance(module, _ConvNd)
    }
    blocks = [_orthonormal(_directions(p.shape, groups.get(name, 1))) for name, p in model.named_parameters()]
    return torch.block_diag(*blocks)


def _directions(shape: torch.Size, groups: int) -> Tensor:
    """One column per channel of every dimension; the second one's channels are those of one group."""
    numbers = torch.arange(shape.numel()).view(shape)
    columns = []
    for dim, size in enumerate(shape):
        for channel in range(size):
            for part in numbers.narrow(dim, channel, 1).chunk(groups if dim == 1 else 1):
                column = torch.zeros(shape.numel(), dtype=torch.float64)
                column[part.flatten()] = 1
                columns.append(column)
    return torch.stack(columns or [torch.ones(shape.numel(), dtype=torch.float64)], 1)


def _orthonormal(columns: Tensor) -> Tensor:
    left, values, _ = torch.linalg.svd(columns, full_matrices=False)
    return left[:, values > 1e-9 * values.max()]
