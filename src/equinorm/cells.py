"""Reading weights once: from a view of a parameter to the p-norm magnitude of every pair of scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import ArgumentError
from .norms import Norm
from .symmetry import Scaling

CHUNK = 1 << 19  # entries held in float64 at a time: 4 MB, about a second-level cache


Visit = Callable[[Tensor, int], None]  # a piece, and the number of its first (batch, row) line


@dataclass(frozen=True, eq=False)
class Cells:
    """``values[b, r, c] * exp(log_unit)``: the p-norm of the entries scaled by x[rows[b, r]] - x[cols[b, c]].

    Not powered, so that magnitudes survive: float32 and an exact copy of |w| where nothing reduces (float64
    for float64 weights), float64 relative to the largest where entries share their pair of scales.
    """

    values: Tensor  # [B, R, C]
    log_unit: float
    rows: Tensor  # [B, R] signed ids
    cols: Tensor  # [B, C] signed ids
    largest: float  # of the entries themselves, whose p-norms may be far above it for small p


@dataclass(frozen=True, eq=False)
class Layout:
    """A view permuted to [batch…, rows…, columns…, rest…]: plus varies over batch and rows, minus over batch
    and columns, neither over the rest."""

    view: Tensor
    lead: int  # how many dimensions are batch or rows
    outer: int  # how many are batch, rows or columns: they number the cells
    inner: int  # entries of one cell
    rows: Tensor  # [B, R]
    cols: Tensor  # [B, C]


def _varies(ids: Tensor, dim: int) -> bool:
    if ids.shape[dim] == 1 or ids.stride(dim) == 0:
        return False
    return bool((ids != ids.narrow(dim, 0, 1)).any())


def _ids(ids: Tensor, batch: list[int], own: list[int], sizes: int) -> Tensor:
    """The ids over (batch, own), the other dimensions being constant."""
    others = [d for d in range(ids.dim()) if d not in batch and d not in own]
    for dim in others:
        ids = ids.narrow(dim, 0, 1)
    return ids.permute(batch + own + others).reshape(sizes, -1)


def layout(scaling: Scaling, tensor: Tensor) -> Layout:
    view = scaling.view(tensor.detach())
    plus, minus = scaling.plus.expand(scaling.size), scaling.minus.expand(scaling.size)
    kinds: dict[tuple[bool, bool], list[int]] = {(a, b): [] for a in (False, True) for b in (False, True)}
    for dim in range(view.dim()):
        kinds[_varies(plus, dim), _varies(minus, dim)].append(dim)
    batch, rows, cols, rest = kinds[True, True], kinds[True, False], kinds[False, True], kinds[False, False]
    count = math.prod(view.shape[d] for d in batch)
    row_ids, col_ids = _ids(plus, batch, rows, count), _ids(minus, batch, cols, count)
    view = view.permute(batch + rows + cols + rest)
    inner = math.prod(view.shape[len(batch + rows + cols) :])
    if len(cols) == 1:  # flatten before linear: every channel's id stands several times in a row
        run = _run_length(col_ids)
        view = torch.unflatten(view, len(batch + rows), (-1, run))
        inner, col_ids = inner * run, col_ids[:, ::run]
    return Layout(view, len(batch + rows), len(batch + rows + cols), inner, row_ids, col_ids)


def _run_length(ids: Tensor) -> int:
    """The largest k such that every row of ids consists of runs of k equal ids."""
    edges = (ids[:, 1:] != ids[:, :-1]).any(0).nonzero().flatten() + 1
    return math.gcd(ids.shape[1], *edges.tolist())


def pieces(view: Tensor, lead: int) -> Iterator[Tensor]:
    """Cut the view along its leading dimensions into pieces of about a chunk, in order."""
    if view.numel() <= CHUNK or lead == 0:
        yield view
        return
    step = CHUNK * view.shape[0] // view.numel()
    if step > 0:
        yield from torch.split(view, step)
    else:
        for part in view:
            yield from pieces(part, lead - 1)


def folded(
    view: Tensor, cells: int, of: Callable[[Tensor], Tensor], join: Callable[[Tensor], Tensor]
) -> Tensor:
    """``of`` the view, whose first dimensions number cells: in parts where single cells are too large."""
    if view.numel() <= CHUNK or view.dim() == cells:
        return of(view)
    if view.shape[cells] == 1:
        return folded(view.select(cells, 0), cells, of, join)
    step = max(1, CHUNK * view.shape[cells] // view.numel())
    parts = [folded(part, cells, of, join) for part in torch.split(view, step, cells)]
    return join(torch.stack(parts))


def read(found: Layout, norm: Norm, parameter: str, visit: Visit | None = None) -> Cells:
    """The magnitudes of the cells, in one pass over the weight; ``visit`` may change each piece first."""
    count, rows, cols = found.rows.shape[0], found.rows.shape[1], found.cols.shape[1]
    exact = torch.float64 if found.inner > 1 or found.view.dtype == torch.float64 else torch.float32
    flat = torch.empty(count * rows * cols, dtype=exact)
    start, largest = 0, 0.0
    for piece in pieces(found.view, found.lead):
        if visit is not None:
            visit(piece, start // cols)
        rest = found.view.dim() - found.outer
        for part in pieces(piece, piece.dim() - rest):
            place = flat[start : start + part.numel() // found.inner]
            if found.inner == 1:
                torch.abs(part.reshape(-1).to(exact), out=place)
                top = float(place.amax())
            else:
                top = float(part.abs().amax())
            if not math.isfinite(top):
                raise ArgumentError(
                    f"parameter {parameter} has NaN or infinite entries and cannot be balanced"
                )
            if found.inner > 1:
                place.copy_(_log_norms(part, part.dim() - rest, norm).flatten())
            largest = max(largest, top)
            start += place.numel()
    cells = flat.view(count, rows, cols)
    if found.inner > 1:
        return _merged(_relative(cells, found.rows, found.cols, largest), norm)
    return _merged(Cells(cells, 0.0, found.rows, found.cols, largest), norm)


def _log_norms(view: Tensor, numbering: int, norm: Norm) -> Tensor:
    """log of the norm of every cell, relative to its largest entry: 1e±30 to the power 20 is never formed."""

    def of(part: Tensor) -> Tensor:
        entries = part.reshape(math.prod(part.shape[:numbering]), -1).abs().double()
        peak = entries.amax(1)
        relative = norm.power(entries.div_(peak.clamp(min=torch.finfo(torch.float64).tiny).unsqueeze(1)))
        ones = relative.new_ones(1, relative.shape[1])
        return peak.log() + norm.contract(relative.unsqueeze(0), ones).squeeze(0).log() / norm.exponent

    def join(logs: Tensor) -> Tensor:
        return norm.join(norm.exponent * logs, 0) / norm.exponent

    return folded(view, numbering, of, join)


def _relative(logs: Tensor, rows: Tensor, cols: Tensor, largest: float) -> Cells:
    top = float(logs.amax())
    unit = top if math.isfinite(top) else 0.0
    return Cells(logs.sub_(unit).exp_(), unit, rows, cols, largest)


def _merged(cells: Cells, norm: Norm) -> Cells:
    """Join rows, and columns, that carry the same id (channels repeated by a flatten, wildcards)."""
    if cells.rows.shape[0] > 1:
        return cells  # the ids of grouped layers repeat across the batch at most, where they are kept apart
    rows, row_of = torch.unique(cells.rows[0], return_inverse=True)
    cols, col_of = torch.unique(cells.cols[0], return_inverse=True)
    if rows.numel() == row_of.numel() and cols.numel() == col_of.numel():
        return cells
    out = torch.full((rows.numel() * cols.numel(),), -math.inf, dtype=torch.float64)
    step = max(1, CHUNK // col_of.numel())
    for values, target in zip(torch.split(cells.values[0], step), torch.split(row_of, step), strict=True):
        kept, local = torch.unique(target, return_inverse=True)
        index = (local.unsqueeze(1) * cols.numel() + col_of).flatten()
        powers = values.double().log_().mul_(norm.exponent).flatten()
        part = norm.gather(powers, index, kept.numel() * cols.numel()).view(kept.numel(), -1)
        place = out.view(rows.numel(), -1)
        place[kept] = norm.join(torch.stack([place[kept], part]), 0)
    logs = out.div_(norm.exponent).add_(cells.log_unit).view(1, rows.numel(), -1)
    return _relative(logs, rows.unsqueeze(0), cols.unsqueeze(0), cells.largest)
