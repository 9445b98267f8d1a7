"""The norm and its minimum from the definition in symmetry.py alone, with numpy and scipy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import nn

from equinorm import Symmetries


@dataclass(frozen=True)
class Entries:
    """All counted entries: c |w|, and the scales that multiply and divide them."""

    size: np.ndarray
    weight: np.ndarray
    plus: np.ndarray
    minus: np.ndarray
    free: int

    def phi(self, x: np.ndarray, p: float) -> float:
        return float((self.weight * (self.size * np.exp(x[self.plus] - x[self.minus])) ** p).sum())

    def gradient(self, x: np.ndarray, p: float) -> np.ndarray:
        terms = p * self.weight * (self.size * np.exp(x[self.plus] - x[self.minus])) ** p
        out = np.zeros(self.free + 1)
        np.add.at(out, self.plus, terms)
        np.subtract.at(out, self.minus, terms)
        return out

    def live(self) -> np.ndarray:
        """Entries within a strongly connected component of the graph of nonzero entries."""
        shape = (self.free + 1, self.free + 1)
        graph = coo_matrix((self.size > 0, (self.minus, self.plus)), shape=shape)
        _, label = connected_components(graph, directed=True, connection="strong")
        return (self.size > 0) & (label[self.plus] == label[self.minus])

    def restricted(self, which: np.ndarray) -> Entries:
        return Entries(self.size[which], self.weight[which], self.plus[which], self.minus[which], self.free)


def entries(sym: Symmetries, net: nn.Module, c: Mapping[str, float] | None = None) -> Entries:
    """Read off a model; ids must be unsigned."""
    parameters = dict(net.named_parameters())
    found: list[list[np.ndarray]] = [[], [], [], []]
    for scaling in sym.scalings:
        if scaling.counted:
            view = scaling.view(parameters[scaling.parameter].detach()).double().abs()
            ids = [side.expand(scaling.size).flatten().numpy() for side in (scaling.plus, scaling.minus)]
            assert all((side >= 0).all() for side in ids)
            weight = np.full(view.numel(), (c or {}).get(scaling.parameter, 1.0))
            for column, part in zip(found, (view.flatten().numpy(), weight, *ids), strict=True):
                column.append(part)
    return Entries(*(np.concatenate(column) for column in found), free=sym.num_free)


def minimum(found: Entries, p: float) -> np.ndarray:
    """The optimal log-scales by L-BFGS, 0 where no minimum is attained."""
    live = found.restricted(found.live())
    variables = np.setdiff1d(np.union1d(live.plus, live.minus), [0])

    def value(part: np.ndarray) -> tuple[float, np.ndarray]:
        x = np.zeros(found.free + 1)
        x[variables] = part
        phi = live.phi(x, p)
        return np.log(phi), live.gradient(x, p)[variables] / phi

    x = np.zeros(found.free + 1)
    options = {"maxiter": 20_000, "maxfun": 100_000, "ftol": 1e-16, "gtol": 1e-11, "maxcor": 50}
    if variables.size:
        x[variables] = minimize(value, x[variables], jac=True, method="L-BFGS-B", options=options).x
    return x


def move(net: nn.Module, sym: Symmetries, x: torch.Tensor) -> None:
    """Multiply the parameters by the scales exp(x), additive ones too, by the definition."""
    parameters = dict(net.named_parameters())
    with torch.no_grad():
        for scaling in sym.scalings:
            up = scaling.plus.sign() * x[scaling.plus.abs()]
            down = scaling.minus.sign() * x[scaling.minus.abs()]
            view = scaling.view(parameters[scaling.parameter])
            view.copy_(view.double() * torch.exp(up - down))
