"""Every figure and table by name, in the order of the report."""

from __future__ import annotations

from equinorm.errors import ArgumentError
from equinorm.experiments.reproduce import energy, overhead, protocols, sanity
from equinorm.experiments.reproduce.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (energy.EXPERIMENT, sanity.EXPERIMENT, overhead.EXPERIMENT, *protocols.EXPERIMENTS)
}


def named(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        raise ArgumentError(f"NAME {name}: unknown; use all or one of {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
