"""The methods that the paper compares, one row each: the model's norm, and what accompanies the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from equinorm.experiments.companions import (
    Companion,
    Explicit,
    ExplicitIgnoringNorms,
    Implicit,
    PathSGD,
)
from equinorm.models import Norm


@dataclass(frozen=True)
class Method:
    """A row of the table.

    Attributes:
        norm: the norm inside of the model.
        companion: what runs beside the optimizer.
        final_bn: has the BatchNorm behind the FC layer where a recipe uses one ("for the Baseline and ENorm cases").
        data_init: weights are initialised from a batch of data, layer by layer, as for WN.
        weight_decay: overrules the recipe's.
        c: has the asymmetric scaling c.
        cycles: ENorm's cycles after each step ("by default we perform one"), None without ENorm.
        grids: what sweeps search beside the recipe's learning rates and groups.
    """

    norm: Norm
    companion: type[Companion] = Companion
    final_bn: bool = False
    data_init: bool = False
    weight_decay: float | None = None
    c: bool = False
    cycles: int | None = None
    grids: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


METHODS: dict[str, Method] = {
    "baseline": Method("none", final_bn=True),
    "bn": Method("bn"),
    "gn": Method("gn"),
    # "For WN, we use BN as well as a greedy layer-wise initialization as described in the original paper."
    "wn+bn": Method("wn+bn", data_init=True),
    # "we set the weight decay to zero". No final BN: the path norm is not defined behind one.
    "path-sgd": Method("none", PathSGD, weight_decay=0.0),
    "enorm": Method("none", Explicit, final_bn=True, c=True, cycles=1),
    "enorm+bn": Method("bn", ExplicitIgnoringNorms, c=True, cycles=1),
    # The paper runs it on CIFAR-10 FC alone; the final BN elsewhere is ours, as for enorm.
    # "we additionally cross-validated lambda"; these values are ours.
    "enorm-impl": Method("none", Implicit, final_bn=True, c=True, grids={"weight_decay": (1e-4, 1e-3, 1e-2)}),
}
"""Every method by name; the recipes hold each method's c."""
