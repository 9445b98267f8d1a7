"""The passes over a weight: sums of powers over its lines and columns, and scaling it with its optimizer state.

:class:`Kernels` is the reference, in plain torch operators, chunk by chunk through a buffer that fits a core's cache:
every entry comes from memory once per pass. :class:`CompiledKernels` are the same passes fused by ``torch.compile``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from equinorm.training.matrix import Entries, Matrix

WIDTH = 16

Scaled = tuple[Entries, Tensor, Tensor]  # entries, factor per held line, factor per column by batch


class Kernels:
    """Chunked passes in plain operators."""

    def __init__(self, p: float, dtype: torch.dtype, device: torch.device) -> None:
        self._p = p
        self._scratch = torch.empty(0, dtype=dtype, device=device)

    def column_sums(self, matrix: Matrix, entries: Entries, lines: Tensor) -> None:
        """Sum over lines of lines[l] * |w[l, c]|^p into the matrix's column sums (its batch's, if it has several)."""
        out = matrix.column_sums.zero_()
        for part, powers in self._powers(entries):
            if matrix.batch_of_line is None:
                out[0].addmv_(powers.t(), lines[part])
            else:
                out.index_add_(0, matrix.batch_of_line[part], powers.mul_(lines[part].unsqueeze(1)))

    def line_sums(self, matrix: Matrix, entries: Entries, columns: Tensor) -> None:
        """Sum over columns of columns[c] * |w[l, c]|^p into the matrix's sums of the held lines."""
        roots = columns.pow(1 / self._p)
        for part, piece in entries.chunks:
            chosen = roots if matrix.batch_of_line is None else roots[matrix.batch_of_line[part]]
            scaled = torch.mul(piece, chosen, out=self._room(piece))
            torch.linalg.vector_norm(scaled, self._p, dim=1, out=matrix.line_sums[part])
        matrix.line_sums.pow_(self._p)

    def scale(self, matrix: Matrix, targets: Sequence[Scaled]) -> None:
        """Multiply each target by its factors, twice in place while the chunk is in cache."""
        for entries, lines, columns in targets:
            for part, piece in entries.chunks:
                chosen = columns if matrix.batch_of_line is None else columns[matrix.batch_of_line[part]]
                if piece.dtype == lines.dtype:
                    piece.mul_(chosen).mul_(lines[part].unsqueeze(1))
                else:  # narrow types are rounded once
                    piece.mul_(torch.mul(lines[part].unsqueeze(1), chosen, out=self._room(piece)))

    def _powers(self, entries: Entries) -> Iterator[tuple[slice, Tensor]]:
        for part, piece in entries.chunks:
            powers = self._room(piece)
            if self._p != 2.0:
                torch.pow(torch.abs(powers.copy_(piece), out=powers), self._p, out=powers)
            elif piece.dtype == powers.dtype:
                torch.mul(piece, piece, out=powers)
            else:
                powers.copy_(piece).square_()
            yield part, powers

    def _room(self, piece: Tensor) -> Tensor:
        """The scratch buffer in the piece's shape; it grows to the largest chunk once."""
        if piece.numel() > self._scratch.numel():
            self._scratch = torch.empty(piece.numel(), dtype=self._scratch.dtype, device=self._scratch.device)
        return self._scratch.as_strided(piece.shape, piece.stride())


class CompiledKernels(Kernels):
    """The same passes, each fused into one loop by ``torch.compile``."""

    def __init__(self, p: float, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(p, dtype, device)
        self._column, self._line = (torch.compile(f, dynamic=True) for f in _fused_sums(p, dtype))
        self._scale = torch.compile(_fused_scale, dynamic=True)

    def column_sums(self, matrix: Matrix, entries: Entries, lines: Tensor) -> None:
        if matrix.batch_of_line is not None or entries.is_small:
            super().column_sums(matrix, entries, lines)
        else:
            matrix.column_sums[0].copy_(self._column(entries.whole, lines))

    def line_sums(self, matrix: Matrix, entries: Entries, columns: Tensor) -> None:
        if matrix.batch_of_line is not None or entries.is_small:
            super().line_sums(matrix, entries, columns)
        else:
            matrix.line_sums.copy_(self._line(entries.whole, columns[0]))

    def scale(self, matrix: Matrix, targets: Sequence[Scaled]) -> None:
        if matrix.batch_of_line is not None or targets[0][0].is_small:
            super().scale(matrix, targets)
            return
        for entries, lines, columns in targets:
            self._scale(entries.whole, lines, columns[0])


def _fused_sums(p: float, dtype: torch.dtype) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Sums in two stages, the first of fixed width: the compiler then keeps several partial sums in registers."""

    def powers(entries: Tensor) -> Tensor:
        wide = entries.to(dtype)
        return wide * wide if p == 2.0 else wide.abs().pow(p)

    def column_sums(entries: Tensor, lines: Tensor) -> Tensor:
        weighted = powers(entries) * lines.unsqueeze(1)
        if entries.shape[0] % WIDTH == 0:
            return weighted.view(entries.shape[0] // WIDTH, WIDTH, -1).sum(1).sum(0)
        return weighted.sum(0)

    def line_sums(entries: Tensor, columns: Tensor) -> Tensor:
        weighted = powers(entries) * columns
        if entries.shape[1] % WIDTH == 0:
            return weighted.view(-1, entries.shape[1] // WIDTH, WIDTH).sum(1).sum(1)
        return weighted.sum(1)

    return column_sums, line_sums


def _fused_scale(entries: Tensor, lines: Tensor, columns: Tensor) -> None:
    entries.mul_(lines.unsqueeze(1) * columns)
