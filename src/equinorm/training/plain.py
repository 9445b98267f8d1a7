"""The plain engine: the core's objective, solver and scalings at every step.

Slower than the plan (weights are read in float64), it serves what a plan does not: weights that map a group to
itself, slices across columns, solvers other than one cycle, p = inf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from equinorm.errors import ArgumentError
from equinorm.objective import Objective
from equinorm.solve import Solution, solve
from equinorm.solve.attained import attained
from equinorm.solve.bounds import bounds
from equinorm.solve.powers import exponents_by_cycles
from equinorm.solve.problem import Problem
from equinorm.symmetry import Symmetries
from equinorm.training.cycle import LOG2, Stepping
from equinorm.training.finite import all_finite


class Plain:
    """The reference engine, with the same three calls as :class:`~equinorm.training.plan.Plan`."""

    def __init__(
        self, symmetries: Symmetries, log_weights: Mapping[str, float], stepping: Stepping, solver: str
    ) -> None:
        self._symmetries, self._log_weights, self._stepping, self._solver = (
            symmetries,
            log_weights,
            stepping,
            solver,
        )

    def scales(self, tensors: Mapping[str, Tensor], others: Sequence[Tensor] = ()) -> Tensor | None:
        """The log-scales of one step from the weights, or None if a weight, or something other, is not finite."""
        if not all_finite(others):
            return None
        limit = torch.full((self._symmetries.num_free + 1,), self._stepping.limit, dtype=torch.float64)
        try:
            objective = self._objective(tensors)
        except ArgumentError:
            return None
        if self._stepping.powers_of_two:
            return LOG2 * exponents_by_cycles(objective, self._stepping.cycles, limit / LOG2).double()
        found: Solution = solve(objective, self._solver, self._stepping.cycles, lower=-limit, upper=limit)
        return self._stepping.rounded(found.log_scales)

    def rescale(self, x: Tensor, targets: Sequence[tuple[Mapping[str, Tensor], int]], biases: bool) -> None:
        """Multiply tensors laid out like the parameters by the scales to an exponent: 1 weights, -1 gradients.

        ``x`` is on the CPU, as the symmetries are; the tensors may be anywhere.
        """
        for scaling in self._symmetries.scalings:
            if not (scaling.counted or biases) or not (scaling.plus.any() or scaling.minus.any()):
                continue
            logs = x[scaling.plus.abs()] * scaling.plus.sign() - x[scaling.minus.abs()] * scaling.minus.sign()
            for tensors, exponent in targets:
                if scaling.parameter in tensors:
                    view = scaling.view(tensors[scaling.parameter])
                    power = exponent * logs
                    factor = (
                        torch.exp2((power / LOG2).round()) if self._stepping.powers_of_two else power.exp()
                    )
                    view.copy_(view.double() * factor.to(view.device))

    def norm(self, tensors: Mapping[str, Tensor]) -> float:
        """sum of c_k ||W_k||_p^p of the weights as they are (the largest c_k |w| for p = inf)."""
        objective = self._objective(tensors)
        return objective.value(objective.start())

    def residual(self, tensors: Mapping[str, Tensor]) -> float:
        """max |R - L| / (R + L) over the live free scales."""
        objective = self._objective(tensors)
        found = attained(objective)
        return Problem(found.objective, found.live, *bounds(objective)).residual(objective.start())

    def _objective(self, tensors: Mapping[str, Tensor]) -> Objective:
        return Objective(self._symmetries, tensors, self._stepping.p, self._log_weights)
