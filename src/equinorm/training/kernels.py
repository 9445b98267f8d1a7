"""The passes over a weight: sums of powers over its lines and columns, and scaling it.

:class:`Chunked` is the reference, in plain torch operators, chunk by chunk through a buffer that fits a core's cache:
every entry comes from memory once per pass. :class:`Fused` says the same in one expression per pass, for
``torch.compile`` to fuse.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from equinorm.training.matrix import Entries, Matrix

WIDTH = 16  # partial sums that a fused reduction keeps in registers


class Chunked:
    """Chunked passes in plain operators."""

    def __init__(self, p: float, dtype: torch.dtype, device: torch.device) -> None:
        self._p = p
        self._scratch = torch.empty(0, dtype=dtype, device=device)

    def column_sums(self, matrix: Matrix, entries: Entries, lines: Tensor) -> Tensor:
        """Sums over lines of lines[l] * |w[l, c]|^p, (batch, columns)."""
        out = self._scratch.new_zeros(matrix.shape.batch, matrix.shape.columns)
        for part, powers in self._powers(entries):
            if matrix.batch_of_line is None:
                out[0].addmv_(powers.t(), lines[part])
            else:
                out.index_add_(0, matrix.batch_of_line[part], powers.mul_(lines[part].unsqueeze(1)))
        return out

    def line_sums(self, matrix: Matrix, entries: Entries, columns: Tensor) -> Tensor:
        """Sums over columns of columns[c] * |w[l, c]|^p, for the held lines."""
        out = self._scratch.new_empty(entries.whole.shape[0])
        roots = columns.pow(1 / self._p)
        for part, piece in entries.chunks:
            chosen = roots if matrix.batch_of_line is None else roots[matrix.batch_of_line[part]]
            scaled = torch.mul(piece, chosen, out=self._room(piece))
            torch.linalg.vector_norm(scaled, self._p, dim=1, out=out[part])
        return out.pow_(self._p)

    def scale(self, matrix: Matrix, entries: Entries, lines: Tensor, columns: Tensor) -> None:
        """Multiply by a factor per held line and one per column, twice in place while the chunk is in cache."""
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


class Fused:
    """The same passes as expressions over the whole weight.

    Sums run in two stages, the first of fixed width, so that a compiler keeps several partial sums in registers.
    """

    def __init__(self, p: float, dtype: torch.dtype) -> None:
        self._p, self._dtype = p, dtype

    def column_sums(self, matrix: Matrix, entries: Entries, lines: Tensor) -> Tensor:
        """As :meth:`Chunked.column_sums`."""
        weighted = self._powers(entries.whole) * lines.unsqueeze(1)
        if matrix.batch_of_line is not None:
            return weighted.view(matrix.shape.batch, -1, matrix.shape.columns).sum(1)
        if weighted.shape[0] % WIDTH == 0:
            weighted = weighted.view(-1, WIDTH, weighted.shape[1]).sum(1)
        return weighted.sum(0, keepdim=True)

    def line_sums(self, matrix: Matrix, entries: Entries, columns: Tensor) -> Tensor:
        """As :meth:`Chunked.line_sums`."""
        weighted = self._powers(entries.whole) * _by_line(matrix, columns)
        if weighted.shape[1] % WIDTH == 0:
            weighted = weighted.view(weighted.shape[0], -1, WIDTH).sum(1)
        return weighted.sum(1)

    def scale(self, matrix: Matrix, entries: Entries, lines: Tensor, columns: Tensor) -> None:
        """As :meth:`Chunked.scale`."""
        entries.whole.mul_(lines.unsqueeze(1) * _by_line(matrix, columns))

    def _powers(self, whole: Tensor) -> Tensor:
        wide = whole.to(self._dtype)
        return wide * wide if self._p == 2.0 else wide.abs().pow(self._p)


def _by_line(matrix: Matrix, columns: Tensor) -> Tensor:
    """The columns' factors as they meet each line."""
    return columns if matrix.batch_of_line is None else columns[matrix.batch_of_line]


Kernels = Chunked | Fused
