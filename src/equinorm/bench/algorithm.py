"""Algorithms 1 and 2 of the paper layer by layer, as one writes them with torch operators: a rival of ENorm.step()."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from equinorm.symmetry import Symmetries


def plain_step(model: nn.Module, found: Symmetries, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """One cycle, p = 2: L and R, D = sqrt(R / L), scale the weights and biases, and the momentum against them."""
    parameters = dict(model.named_parameters())

    @torch.no_grad()
    def step() -> None:
        for group in found.groups:
            produced = [(parameters[m.parameter], m.dim) for m in group.members if m.sign > 0]
            consumed = [(parameters[m.parameter], m.dim) for m in group.members if m.sign < 0]
            by = (_squares(consumed) / _squares(produced)).pow(0.25)
            for members, factor in ((produced, by), (consumed, 1 / by)):
                for parameter, dim in members:
                    _scale(parameter, dim, factor)
                    _scale(optimizer.state[parameter]["momentum_buffer"], dim, 1 / factor)

    return step


def _squares(members: Sequence[tuple[Tensor, int]]) -> Tensor:
    """Squared norms of the slices along a dimension, summed over the weights; biases do not count."""
    parts = [w.transpose(0, d).flatten(1).square().sum(1) for w, d in members if w.dim() > 1]
    return torch.stack(parts).sum(0)


def _scale(tensor: Tensor, dim: int, by: Tensor) -> None:
    tensor.mul_(by.view([-1 if k == dim else 1 for k in range(tensor.dim())]))
