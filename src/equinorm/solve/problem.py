"""What every solver works on: the live part of the objective, the bounds, and the coordinate update."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..norms import MaxNorm
from ..objective import Balance, Objective


@dataclass(frozen=True, eq=False)
class Problem:
    objective: Objective  # only cells with an attained minimum
    live: Tensor
    lower: Tensor
    upper: Tensor

    def clamp(self, x: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(x, self.lower), self.upper)

    def visit(self, group: int, x: Tensor) -> None:
        """Update the scales of one group in place."""
        self.move(group, x, step(self.objective, self.objective.balance(group, x)))

    def move(self, group: int, x: Tensor, change: Tensor) -> None:
        """Add a change to the live scales of one group, within the bounds."""
        start, size = self.objective.groups[group].start, self.objective.groups[group].size
        part = slice(start, start + size)
        moved = x[part] + torch.where(self.live[part], change, 0.0)
        x[part] = torch.minimum(torch.maximum(moved, self.lower[part]), self.upper[part])

    def forward(self, x: Tensor) -> None:
        for group in range(len(self.objective.groups)):
            self.visit(group, x)

    def backward(self, x: Tensor) -> None:
        for group in reversed(range(len(self.objective.groups))):
            self.visit(group, x)

    def outward(self, x: Tensor, pull: Tensor) -> Tensor:
        """Scales at a bound that the objective would push beyond it."""
        return self.live & ((x >= self.upper) & (pull > 0) | (x <= self.lower) & (pull < 0))

    def residual(self, x: Tensor) -> float:
        """max |R - L| / (R + L) over live scales that may move (L and R maxima for p = inf); 0 if none."""
        pull = self.objective.imbalance(x)
        free = self.live & ~self.outward(x, pull)
        return float(torch.tanh(pull[free].abs() / 2).amax()) if free.any() else 0.0

    def capped(self, x: Tensor) -> Tensor:
        return self.outward(x, self.objective.imbalance(x))


def step(objective: Objective, sides: Balance) -> Tensor:
    """The paper's Equation 4 for log-scales: half the difference of the log norms, (log R - log L) / 2p.

    The weights c_k of the section "Asymmetric scaling" are part of L and R. Where cells join two scales of
    the same group (x + relu(Wx), recurrent layers) that formula is not a descent step for the group as a
    whole and may oscillate for ever. There, a e^{p(d_i - d_j)} <= a (e^{2 p d_i} + e^{-2 p d_j}) / 2
    separates the scales, with equality at d = 0, and each minimises its own
    L e^t + R e^-t + (L' e^{2t} + R' e^{-2t}) / 2 in t = p d, L' and R' being the sums over the joining cells.
    The same form holds exactly for a cell with exponent 2 p d_i, which appears twice in L'.
    """
    exponent = objective.norm.exponent
    left, right, within = sides
    if within is None:
        return (right - left) / (2 * exponent)
    if isinstance(objective.norm, MaxNorm):
        # The maxima of a joining cell move by both its scales: half the step keeps them from overshooting.
        low, high = torch.maximum(left, within[0]), torch.maximum(right, within[1])
        joined = torch.maximum(*within) > -math.inf
        return (high - low) / torch.where(joined, 4.0, 2.0)
    return _majorised(left, right, *within) / exponent


def _majorised(left: Tensor, right: Tensor, left2: Tensor, right2: Tensor) -> Tensor:
    """The t with log(L e^t + L' e^2t) = log(R e^-t + R' e^-2t).

    Both sides are monotone with slopes between 1 and 2, so Newton's method needs no safeguard.
    """
    t = torch.zeros_like(left)
    for _ in range(8):
        up1, up2, down1, down2 = left + t, left2 + 2 * t, right - t, right2 - 2 * t
        up, down = torch.logaddexp(up1, up2), torch.logaddexp(down1, down2)
        slope = 2 + torch.exp(up2 - up) + torch.exp(down2 - down)
        t = t + torch.nan_to_num((down - up) / slope, nan=0.0, posinf=0.0, neginf=0.0)
    return t
