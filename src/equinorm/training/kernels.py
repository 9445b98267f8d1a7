"""The passes over a weight: sums of powers over its lines and columns, and scaling it with its optimizer state.

:class:`Kernels` is the reference, in plain torch operators, chunk by chunk through a buffer that fits a core's cache:
every entry comes from memory once per pass. :class:`CompiledKernels` are the same passes fused by ``torch.compile``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from equinorm.training.matrix import CHUNK, Matrix

Scaled = tuple[Tensor, Tensor, Tensor]  # entries (lines, columns), factor per line, factor per column


class Kernels:
    """Chunked passes in plain operators."""

    def __init__(self, p: float, dtype: torch.dtype, device: torch.device) -> None:
        self._p = p
        self._scratch = torch.empty(CHUNK, dtype=dtype, device=device)

    def column_sums(self, matrix: Matrix, entries: Tensor, lines: Tensor | None) -> None:
        """Sum over lines of lines[l] * |w[l, c]|^p into the matrix's column sums (its batch's, if it has several)."""
        out = matrix.column_sums.zero_()
        for part, powers in self._powers(entries):
            weights = self._ones(part, powers) if lines is None else lines[part]
            if matrix.batch_of_line is None:
                out[0].addmv_(powers.t(), weights)
            else:
                out.index_add_(0, matrix.batch_of_line[part], powers.mul_(weights.unsqueeze(1)))

    def line_sums(self, matrix: Matrix, entries: Tensor, columns: Tensor) -> None:
        """Sum over columns of columns[c] * |w[l, c]|^p into the matrix's sums of the held lines."""
        for part, powers in self._powers(entries):
            if matrix.batch_of_line is None:
                torch.mv(powers, columns[0], out=matrix.line_sums[part])
            else:
                torch.sum(powers.mul_(columns[matrix.batch_of_line[part]]), 1, out=matrix.line_sums[part])

    def scale(self, matrix: Matrix, targets: Sequence[Scaled]) -> None:
        """Multiply each target by its factors; tensors of one weight together, while their chunk is at hand."""
        for part in self._parts(*targets[0][0].shape):
            for entries, lines, columns in targets:
                chosen = columns if matrix.batch_of_line is None else columns[matrix.batch_of_line[part]]
                factor = self._room(part, entries)
                entries[part].mul_(torch.mul(lines[part].unsqueeze(1), chosen, out=factor))

    def _powers(self, entries: Tensor) -> Iterator[tuple[slice, Tensor]]:
        for part in self._parts(*entries.shape):
            powers = self._room(part, entries)
            piece = entries[part]
            if self._p != 2.0:
                torch.pow(torch.abs(powers.copy_(piece), out=powers), self._p, out=powers)
            elif piece.dtype == powers.dtype:
                torch.mul(piece, piece, out=powers)
            else:
                powers.copy_(piece).square_()
            yield part, powers

    def _parts(self, lines: int, columns: int) -> Iterator[slice]:
        step = max(1, self._scratch.numel() // max(columns, 1))
        for start in range(0, lines, step):
            yield slice(start, min(start + step, lines))

    def _room(self, part: slice, entries: Tensor) -> Tensor:
        size = (part.stop - part.start) * entries.shape[1]
        if size > self._scratch.numel():  # a single line longer than a chunk
            self._scratch = torch.empty(size, dtype=self._scratch.dtype, device=self._scratch.device)
        return self._scratch[:size].view(-1, entries.shape[1])

    def _ones(self, part: slice, powers: Tensor) -> Tensor:
        return powers.new_ones(1).expand(part.stop - part.start)


class CompiledKernels(Kernels):
    """The same passes, each fused into one loop by ``torch.compile``."""

    def __init__(self, p: float, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(p, dtype, device)
        self._column, self._line = (torch.compile(f, dynamic=True) for f in _fused_sums(p, dtype))
        self._scale = torch.compile(_fused_scale, dynamic=True)

    def column_sums(self, matrix: Matrix, entries: Tensor, lines: Tensor | None) -> None:
        if matrix.batch_of_line is not None or entries.shape[0] == 0:
            super().column_sums(matrix, entries, lines)
            return
        weights = matrix.line_sums.new_ones(entries.shape[0]) if lines is None else lines
        matrix.column_sums[0].copy_(self._column(entries, weights))

    def line_sums(self, matrix: Matrix, entries: Tensor, columns: Tensor) -> None:
        if matrix.batch_of_line is not None or entries.shape[0] == 0:
            super().line_sums(matrix, entries, columns)
            return
        matrix.line_sums.copy_(self._line(entries, columns[0]))

    def scale(self, matrix: Matrix, targets: Sequence[Scaled]) -> None:
        if matrix.batch_of_line is not None or targets[0][0].shape[0] == 0:
            super().scale(matrix, targets)
            return
        for entries, lines, columns in targets:
            self._scale(entries, lines, columns[0])


def _fused_sums(p: float, dtype: torch.dtype) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    def powers(entries: Tensor) -> Tensor:
        wide = entries.to(dtype)
        return wide * wide if p == 2.0 else wide.abs().pow(p)

    def column_sums(entries: Tensor, lines: Tensor) -> Tensor:
        return (powers(entries) * lines.unsqueeze(1)).sum(0)

    def line_sums(entries: Tensor, columns: Tensor) -> Tensor:
        return (powers(entries) * columns).sum(1)

    return column_sums, line_sums


def _fused_scale(entries: Tensor, lines: Tensor, columns: Tensor) -> None:
    entries.mul_(lines.unsqueeze(1) * columns)
