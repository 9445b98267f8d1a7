"""The norm being minimised, as arithmetic on logarithms: sums of p-th powers, or the largest entry."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .errors import ArgumentError


class Norm(Protocol):
    """How entries combine. An *energy* is the log of a sum of p-th powers (or of a maximum)."""

    @property
    def p(self) -> float: ...

    @property
    def exponent(self) -> float:
        """An energy per log of an entry: p, or 1 for the largest entry."""
        ...

    def power(self, entries: Tensor) -> Tensor:
        """The contributions of nonnegative float64 entries, overwriting them."""
        ...

    def contract(self, powers: Tensor, weights: Tensor) -> Tensor:
        """Combine powers[b, k, n] * weights[b, n] over n."""
        ...

    def add(self, first: Tensor, second: Tensor) -> Tensor: ...

    def join(self, energies: Tensor, dim: int) -> Tensor:
        """Combine energies along a dimension."""
        ...

    def gather(self, energies: Tensor, index: Tensor, size: int) -> Tensor:
        """Combine the energies that share an index, into ``size`` places (-inf where there are none)."""
        ...


def _finite(tensor: Tensor) -> Tensor:
    """The tensor with 0 for -inf, so that differences of empty energies are not NaN."""
    return torch.where(tensor == -math.inf, 0.0, tensor)


@dataclass(frozen=True)
class PNorm:
    """The sum of p-th powers, phi in the paper's section "Objective function"."""

    p: float

    @property
    def exponent(self) -> float:
        return self.p

    def power(self, entries: Tensor) -> Tensor:
        return entries.pow_(self.p)

    def contract(self, powers: Tensor, weights: Tensor) -> Tensor:
        return torch.matmul(powers, weights.unsqueeze(-1)).squeeze(-1)

    def add(self, first: Tensor, second: Tensor) -> Tensor:
        return first + second

    def join(self, energies: Tensor, dim: int) -> Tensor:
        return torch.logsumexp(energies, dim)

    def gather(self, energies: Tensor, index: Tensor, size: int) -> Tensor:
        top = _finite(_peaks(energies, index, size))
        total = energies.new_zeros(size).index_add_(0, index, torch.exp(energies - top[index]))
        return top + torch.log(total)


@dataclass(frozen=True)
class MaxNorm:
    """The largest entry, p = inf."""

    @property
    def p(self) -> float:
        return math.inf

    @property
    def exponent(self) -> float:
        return 1.0

    def power(self, entries: Tensor) -> Tensor:
        return entries

    def contract(self, powers: Tensor, weights: Tensor) -> Tensor:
        return (powers * weights.unsqueeze(-2)).amax(-1)

    def add(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.maximum(first, second)

    def join(self, energies: Tensor, dim: int) -> Tensor:
        return energies.amax(dim)

    def gather(self, energies: Tensor, index: Tensor, size: int) -> Tensor:
        return _peaks(energies, index, size)


def _peaks(energies: Tensor, index: Tensor, size: int) -> Tensor:
    return energies.new_full((size,), -math.inf).scatter_reduce_(0, index, energies, "amax")


def norm_of(p: float) -> Norm:
    """The norm that the argument ``p`` asks for."""
    if not p > 0:
        raise ArgumentError(f"p must be a positive number or float('inf'), not {p!r}")
    return MaxNorm() if math.isinf(p) else PNorm(float(p))
