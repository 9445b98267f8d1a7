"""Which engine serves a model: the plan, or the core's objective and solvers at every step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from equinorm.errors import ArgumentError
from equinorm.symmetry import Symmetries
from equinorm.training.cycle import Stepping
from equinorm.training.plain import Plain
from equinorm.training.plan import Plan, shapes_of
from equinorm.training.shards import held_of, is_sharded, locals_of, reducer

PLAN_POWERS = (0.25, 4.0)  # beyond, sums of powers leave float32; the core works on their logarithms

Engine = Plan | Plain


def chosen_engine(
    symmetries: Symmetries,
    parameters: Mapping[str, nn.Parameter],
    weights: Mapping[str, float],
    stepping: Stepping,
    solver: str,
    compiled: bool,
) -> Engine:
    """The plan where it can be made, else the plain engine; ``weights`` are the logarithms of c_k."""
    sharded = [name for name, p in parameters.items() if is_sharded(p)]
    planned = solver == "cycle" and PLAN_POWERS[0] <= stepping.p <= PLAN_POWERS[1]
    shapes = shapes_of(symmetries, parameters) if planned else None
    if shapes is None:
        if sharded or compiled:
            what = "sharded parameters" if sharded else "compile=True"
            raise ArgumentError(
                f'{what}: only with solver="cycle", p from {PLAN_POWERS[0]} to {PLAN_POWERS[1]}, weights '
                "without gaps in memory and no weight that maps a group of scales to itself"
            )
        engine = Plain(symmetries, weights, stepping, solver)
        if solver == "cycle-parallel":
            engine.scales(locals_of(parameters))  # refuses a network without its blocks now, not mid-training
        return engine
    wide = any(p.dtype == torch.float64 for p in parameters.values())
    return Plan(
        symmetries,
        shapes,
        {name: held_of(name, p) for name, p in parameters.items()},
        weights,
        stepping,
        torch.float64 if wide else torch.float32,
        next(iter(parameters.values())).device,
        compiled,
        reducer(parameters.items()),
        sharded,
    )
