"""Scale ids: which activation channels must share one scale, by union-find with signs.

An id v > 0 stands for an unknown scale exp(x[v]), -v for its inverse, 0 for a scale pinned to one. Zeros
carry the wildcard: zero times anything is zero, so it agrees with every id. Tensors of ids are float64, which
holds them exactly and has a kernel for every operator that moves data.
"""

from __future__ import annotations

import torch
from torch import Tensor

WILD = float(2**52)


class ScaleIds:
    """A union-find over signed ids. A set that is pinned remembers the earliest cause."""

    def __init__(self) -> None:
        self._parent = torch.zeros(1, dtype=torch.int64)
        self._cause = torch.zeros(1, dtype=torch.int64)  # of a root: 0 while free, else why it is pinned
        self._count = 1

    def fresh(self, count: int) -> Tensor:
        """``count`` new free ids."""
        first, self._count = self._count, self._count + count
        if self._count > self._parent.numel():
            grown = torch.arange(2 * self._count)
            grown[: self._parent.numel()] = self._parent
            self._parent = grown
            more = torch.zeros(2 * self._count - self._cause.numel(), dtype=torch.int64)
            self._cause = torch.cat([self._cause, more])
        return torch.arange(first, self._count, dtype=torch.float64)

    def resolve(self, ids: Tensor) -> Tensor:
        """The same ids, each replaced by the representative of its set: 0 where that is pinned."""
        wild = ids == WILD
        roots = self._find(torch.where(wild, 0.0, ids).long())
        roots = torch.where(self._cause[roots.abs()] > 0, 0, roots)
        return torch.where(wild, WILD, roots.double())

    def causes(self, ids: Tensor) -> Tensor:
        """Why each id is pinned, 0 where it is free, a constant or a wildcard."""
        return self._cause[self._find(torch.where(ids == WILD, 0.0, ids).long()).abs()]

    def pin(self, ids: Tensor, cause: int) -> int:
        """Pin the sets of these ids to scale one; returns how many were free until now."""
        return self._pin_roots(self._find(ids[ids != WILD].long()).abs(), cause)

    def unite(self, a: Tensor, b: Tensor, cause: int) -> int:
        """Make ids agree pairwise; returns how many sets that pins (they met a pinned one or an inverse)."""
        known = (a != WILD) & (b != WILD) & (a != b)
        x, y = self._find(a[known].long()), self._find(b[known].long())
        differ = x != y
        x, y = x[differ], y[differ]
        constant = (x == 0) | (y == 0)
        pinned = self._pin_roots((x + y)[constant].abs(), cause)
        return pinned + self._join(_distinct(x[~constant], y[~constant]), cause)

    def _pin_roots(self, roots: Tensor, cause: int) -> int:
        free = torch.unique(roots[(roots > 0) & (self._cause[roots] == 0)])
        self._cause[free] = cause
        return int(free.numel())

    def _join(self, pairs: Tensor, cause: int) -> int:
        before = self._free_roots(pairs)
        hooked = []
        while pairs.numel():
            roots = self._find(pairs)
            size = roots.abs()
            loop = size[0] == size[1]
            inverse = size[0][loop & (roots[0] != roots[1])]  # x = -x: only x = 0 does that
            self._cause[inverse] = torch.where(self._cause[inverse] == 0, cause, self._cause[inverse])
            pairs, roots, size = pairs[:, ~loop], roots[:, ~loop], size[:, ~loop]
            low, high = size.amin(0), size.amax(0)
            high, where = torch.unique(high, return_inverse=True)
            chosen = torch.full((high.numel(),), pairs.shape[1]).scatter_reduce(
                0, where, torch.arange(pairs.shape[1]), "amin"
            )
            self._parent[high] = (roots[0].sign() * roots[1].sign() * low)[chosen]
            hooked.append(high)
        for high in hooked:
            self._inherit_causes(high)
        return int((self._cause[self._find(before).abs()] > 0).sum())

    def _free_roots(self, pairs: Tensor) -> Tensor:
        roots: Tensor = torch.unique(self._find(pairs.flatten()).abs())
        return roots[self._cause[roots] == 0]

    def _inherit_causes(self, children: Tensor) -> None:
        children = children[self._cause[children] > 0]
        roots = self._find(children).abs()
        known = torch.where(self._cause[roots] == 0, torch.iinfo(torch.int64).max, self._cause[roots])
        self._cause[roots] = known
        self._cause.scatter_reduce_(0, roots, self._cause[children], "amin")

    def _find(self, ids: Tensor) -> Tensor:
        roots = ids
        while True:
            above = roots.sign() * self._parent[roots.abs()]
            if torch.equal(above, roots):
                break
            roots = above
        self._parent[ids.abs()] = roots * ids.sign()
        return roots


def _distinct(x: Tensor, y: Tensor) -> Tensor:
    """The different pairs among (x, y), up to a common sign."""
    x, y = x.sign() * x, x.sign() * y
    code = (x << 32) + (y + (1 << 31))
    code = torch.unique(code)
    return torch.stack([code >> 32, (code & ((1 << 32) - 1)) - (1 << 31)])
