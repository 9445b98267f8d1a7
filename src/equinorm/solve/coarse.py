"""The coarse step: one common change of scale for every group (and connected part of the network).

Moving all scales of a node, a group within one connected component of the live network, by the same s leaves
the shape of the problem as it is: min sum S exp(p (s_plus - s_minus)), over a handful of s, with one energy S
for all cells between two nodes. On a chain its solution is closed form (equalise the layers' energies),
which is where Newton's method starts from here: the least squares fit of equal logs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..norms import MaxNorm, Norm
from .problem import Problem

NEWTON_STEPS = 30
JACOBI_STEPS = 1000


def components(problem: Problem) -> Tensor:
    """A label for every variable, equal for those that live cells join without the pinned node."""
    labels = torch.arange(problem.live.numel())
    blocks = [b for b in problem.objective.blocks if b.rows.group >= 0 and b.cols.group >= 0]
    while True:
        before = labels.clone()
        for block in blocks + blocks[::-1]:
            rows, cols = block.rows.index, block.cols.index
            if block.full:
                ids = torch.cat([rows, cols], 1)
                least = labels[ids].amin(1, keepdim=True).expand(ids.shape)
                labels.scatter_reduce_(0, ids.flatten(), least.flatten(), "amin")
                continue
            for batch, row, cells in block.parts():
                far = labels.numel()
                by_row = torch.where(cells, labels[cols[batch]].unsqueeze(1), far).amin(2)
                labels.scatter_reduce_(0, rows[batch, row].flatten(), by_row.flatten(), "amin")
                by_col = torch.where(cells, labels[rows[batch, row]].unsqueeze(2), far).amin(1)
                labels.scatter_reduce_(0, cols[batch].flatten(), by_col.flatten(), "amin")
        labels = labels[labels]
        if torch.equal(before, labels):
            return labels


@dataclass(frozen=True, eq=False)
class _Bucket:
    """Components of the same number of nodes, as one batch of small dense problems."""

    edges: Tensor  # numbers of the edges
    of: Tensor  # [E] which problem each edge belongs to
    plus: Tensor  # [E] local node, the number of nodes standing for the pinned one
    plus_sign: Tensor
    minus: Tensor
    minus_sign: Tensor
    nodes: Tensor  # [K, G] global node numbers

    def differences(self, s: Tensor) -> Tensor:
        """s_plus - s_minus of every edge, for s [K, G]."""
        padded = torch.nn.functional.pad(s, (0, 1))
        return self.plus_sign * padded[self.of, self.plus] - self.minus_sign * padded[self.of, self.minus]

    def pulls(self, weights: Tensor) -> Tensor:
        """[K, G]: the transpose of ``differences``."""
        out = weights.new_zeros(self.nodes.shape[0], self.nodes.shape[1] + 1)
        out.index_put_((self.of, self.plus), weights * self.plus_sign, accumulate=True)
        out.index_put_((self.of, self.minus), -weights * self.minus_sign, accumulate=True)
        return out[:, :-1]

    def laplacian(self, weights: Tensor) -> Tensor:
        """[K, G, G]: sum of weight * (difference)(difference)^T over the edges."""
        size = self.nodes.shape[1] + 1
        out = weights.new_zeros(self.nodes.shape[0], size, size)
        ends = ((self.plus, self.plus_sign), (self.minus, -self.minus_sign))
        for i, sign_i in ends:
            for j, sign_j in ends:
                out.index_put_((self.of, i, j), weights * sign_i * sign_j, accumulate=True)
        return out[:, :-1, :-1]


class Coarse:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._number_nodes()
        self._number_edges()
        self.buckets = self._buckets()

    def step(self, x: Tensor) -> Tensor:
        """x after the best common change of every node; x itself where bounds would make it rise."""
        energies = self._energies(x)
        norm = self.problem.objective.norm
        change = x.new_zeros(self.count + 1)
        for bucket in self.buckets:
            own = energies[bucket.edges]
            best = _equalised(bucket, own) if isinstance(norm, MaxNorm) else _solved(bucket, own, norm)
            change[bucket.nodes] = best
        moved = x + change[self.node]
        within = self.problem.clamp(moved)
        energy = self.problem.objective.energy
        return within if torch.equal(moved, within) or energy(within) <= energy(x) else x.clone()

    def _number_nodes(self) -> None:
        """Number the (group, component) pairs of live variables; ``count`` stands for the pinned node."""
        problem = self.problem
        label = components(problem)
        group = torch.zeros_like(label)
        for number, found in enumerate(problem.objective.groups):
            group[found.start : found.start + found.size] = number
        keys, node = torch.unique((group * label.numel() + label)[problem.live], return_inverse=True)
        self.count = keys.numel()
        self.keys, self.labels = keys, label
        self.node = torch.full_like(label, self.count)
        self.node[problem.live] = node
        self.component = keys % label.numel()

    def _opposite(self, group: int, variables: Tensor) -> Tensor:
        """The node of a group in the same components as some variables (the pinned node if there is none)."""
        if group < 0 or not self.count:
            return torch.full_like(variables, self.count)
        wanted = group * self.labels.numel() + self.labels[variables]
        place = torch.searchsorted(self.keys, wanted).clamp(max=self.count - 1)
        return torch.where(self.keys[place] == wanted, place, self.count)

    def _number_edges(self) -> None:
        """Every line of every block belongs to one edge between two nodes."""
        plus, minus, signs, index, total = [], [], [], [], 0
        for block in self.problem.objective.blocks:
            if block.cols.group >= 0:
                near = block.cols.index.flatten()
                ends = torch.stack([self._opposite(block.rows.group, near), self.node[near]], 1)
            else:
                near = block.rows.index.flatten()
                ends = torch.stack([self.node[near], self._opposite(-1, near)], 1)
            pairs, of = torch.unique(ends, dim=0, return_inverse=True)
            plus.append(pairs[:, 0])
            minus.append(pairs[:, 1])
            signs.append(torch.tensor([[block.rows.sign, block.cols.sign]]).expand(pairs.shape[0], 2))
            index.append(of + total)
            total += pairs.shape[0]
        nothing = torch.empty(0, dtype=torch.int64)
        self.plus, self.minus = torch.cat([nothing, *plus]), torch.cat([nothing, *minus])
        self.signs = torch.cat([nothing.view(0, 2), *signs])
        self.index, self.edges = torch.cat([nothing, *index]), total

    def _energies(self, x: Tensor) -> Tensor:
        lines = [
            (block.col_energies(x) if block.cols.group >= 0 else block.row_energies(x)).flatten()
            for block in self.problem.objective.blocks
        ]
        empty = x.new_empty(0)
        return self.problem.objective.norm.gather(torch.cat([empty, *lines]), self.index, self.edges)

    def _buckets(self) -> list[_Bucket]:
        component = self.component.unique(return_inverse=True)[1]
        sizes = component.bincount()
        order = component.argsort(stable=True)
        local = torch.empty_like(order)
        local[order] = torch.arange(self.count) - (sizes.cumsum(0) - sizes)[component[order]]
        pinned = torch.tensor([self.count])
        constant = (self.plus == self.minus) & (self.signs[:, 0] == self.signs[:, 1])
        near = torch.where(self.plus == self.count, self.minus, self.plus)
        buckets = []
        for size in sizes.unique().tolist():
            if size == 1:
                continue  # a single group has no common change left after its own update
            chosen = (sizes == size).nonzero().flatten()
            which = torch.full((sizes.numel(),), -1)
            which[chosen] = torch.arange(chosen.numel())
            of_node = torch.cat([which[component], -pinned.new_ones(1)])
            local_node = torch.cat([local, -pinned.new_ones(1)])
            edges = ((of_node[near] >= 0) & ~constant).nonzero().flatten()
            far = (self.plus[edges], self.minus[edges])
            ends = [torch.where(e == self.count, size, local_node[e]) for e in far]
            nodes = order[of_node[order] >= 0].view(-1, size)
            signs = self.signs[edges].double()
            buckets.append(
                _Bucket(edges, of_node[near[edges]], ends[0], signs[:, 0], ends[1], signs[:, 1], nodes)
            )
        return buckets


def _solved(bucket: _Bucket, energies: Tensor, norm: Norm) -> Tensor:
    """The minimum over s [K, G] of sum exp(energies + p differences(s)): damped Newton from equal logs."""
    start = torch.zeros(bucket.nodes.shape, dtype=torch.float64)
    t = _fitted(bucket, energies)  # p s
    value = _totals(bucket, energies + bucket.differences(t))
    worse = ~(value <= _totals(bucket, energies))
    t = torch.where(worse.unsqueeze(1), start, t)
    value = _totals(bucket, energies + bucket.differences(t))
    for _ in range(NEWTON_STEPS):
        shifted = energies + bucket.differences(t)
        weights = torch.exp(shifted - value[bucket.of])
        pull = bucket.pulls(weights)
        if pull.abs().amax() < 1e-11:
            break
        change = -_solve(bucket.laplacian(weights), pull)
        change *= (3.0 / change.abs().amax(1, keepdim=True)).clamp(max=1.0)
        t, value = _descend(bucket, energies, t, change, value)
    return t / norm.exponent


def _descend(
    bucket: _Bucket, energies: Tensor, t: Tensor, change: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """The longest of a few halvings of the step that does not raise each problem's value."""
    for _ in range(6):
        trial = _totals(bucket, energies + bucket.differences(t + change))
        rises = ~(trial <= value)
        if not rises.any():
            return t + change, trial
        change = torch.where(rises.unsqueeze(1), change / 4, change)
    change = torch.where(rises.unsqueeze(1), 0.0, change)
    return t + change, _totals(bucket, energies + bucket.differences(t + change))


def _totals(bucket: _Bucket, energies: Tensor) -> Tensor:
    """[K]: log of the sum over each problem's edges."""
    count = bucket.nodes.shape[0]
    top = energies.new_full((count,), -math.inf).scatter_reduce_(0, bucket.of, energies, "amax")
    top = torch.where(top == -math.inf, 0.0, top)
    return top + torch.log(_sums(bucket, torch.exp(energies - top[bucket.of])))


def _fitted(bucket: _Bucket, energies: Tensor) -> Tensor:
    """t making the edges' energies equal in the least squares sense, exactly so on a chain."""
    there = torch.isfinite(energies)
    weights = there.double()
    logs = torch.where(there, energies, 0.0)
    number = _sums(bucket, weights).clamp(min=1.0)
    centred = weights * (logs - (_sums(bucket, logs) / number)[bucket.of])
    # The common level is eliminated: the normal matrix loses the mean difference of each problem.
    mean = bucket.pulls(weights) / number.sqrt().unsqueeze(1)
    matrix = bucket.laplacian(weights) - mean.unsqueeze(2) * mean.unsqueeze(1)
    return -_solve(matrix, bucket.pulls(centred))


def _sums(bucket: _Bucket, values: Tensor) -> Tensor:
    return values.new_zeros(bucket.nodes.shape[0]).index_add_(0, bucket.of, values)


def _solve(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve semidefinite systems, scaled to a unit diagonal; directions without curvature stay about 0."""
    diagonal = matrix.diagonal(dim1=1, dim2=2)
    scale = torch.where(diagonal > 0, diagonal, 1.0).rsqrt()
    scaled = scale.unsqueeze(2) * matrix * scale.unsqueeze(1)
    scaled.diagonal(dim1=1, dim2=2).add_(1e-10)
    solution = torch.linalg.solve_ex(scaled, (scale * right).unsqueeze(2)).result.squeeze(2)
    return torch.nan_to_num(scale * solution, nan=0.0, posinf=0.0, neginf=0.0)


def _equalised(bucket: _Bucket, energies: Tensor) -> Tensor:
    """For p = inf: damped steps of every node at once towards equal maxima on its two sides."""
    s = torch.zeros(bucket.nodes.shape, dtype=torch.float64)
    count, size = bucket.nodes.shape
    ends = (
        (bucket.plus, bucket.plus_sign > 0),
        (bucket.minus, bucket.minus_sign < 0),
    )
    for _ in range(JACOBI_STEPS):
        shifted = energies + bucket.differences(s)
        sides = shifted.new_full((2 * count * (size + 1),), -math.inf)
        for end, is_left in ends:
            place = (torch.where(is_left, 0, count) + bucket.of) * (size + 1) + end
            sides.scatter_reduce_(0, place, shifted, "amax")
        left, right = sides.view(2, count, size + 1)[:, :, :size]
        pull = torch.where(left == right, 0.0, right - left)
        if pull.abs().amax() < 1e-9:
            break
        s += pull / 4
    return s
