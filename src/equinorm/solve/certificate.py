"""The certificate of optimality of weights as they are stored."""

from __future__ import annotations

from equinorm.objective import Objective
from equinorm.solve.attained import attained
from equinorm.solve.bounds import bounds
from equinorm.solve.problem import Problem
from equinorm.solve.solution import Solution


def residual_of(stored: Objective, solution: Solution) -> float:
    """max |R - L| / (R + L) over the live free scales that the solution did not hold back."""
    found = attained(stored)
    problem = Problem(found.objective, found.live & ~solution.capped, *bounds(stored))
    return problem.residual(stored.start())
