"""The passes over a weight that find its scales: sums of powers over its lines and columns.

:class:`Chunked` is the reference, in plain torch operators, chunk by chunk through a buffer that fits the caches:
every entry comes from memory once per pass. :class:`Fused` says the same in one expression per pass, for
``torch.compile`` to fuse. Factors of None are all one.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from equinorm.training.matrix import Entries, Matrix

HEIGHT = 16  # lines that a fused sum over lines adds up before it moves on to the next columns


# torch.library's custom_op would say this in one decorator, at three times the cost of a call.
LIBRARY = torch.library.Library("equinorm", "DEF")  # type: ignore[no-untyped-call]
LIBRARY.define("look_up(Tensor table, Tensor places) -> Tensor")  # type: ignore[no-untyped-call]
for key, implementation in {
    "CompositeExplicitAutograd": lambda table, places: table.index_select(0, places),
    "Meta": lambda table, places: table.new_empty(places.shape),
}.items():
    LIBRARY.impl("look_up", implementation, key)  # type: ignore[no-untyped-call]


class Chunked:
    """Chunked passes in plain operators."""

    def __init__(self, p: float, dtype: torch.dtype, device: torch.device) -> None:
        self._p = p
        self._none = self._scratch = torch.empty(0, dtype=dtype, device=device)

    def look_up(self, table: Tensor, places: Tensor) -> Tensor:
        """Factors from a table."""
        return table.index_select(0, places)

    def column_sums(self, matrix: Matrix, entries: Entries, lines: Tensor | None) -> Tensor:
        """Sums over lines of |lines[l] * w[l, c]|^p, for every column."""
        weights = None if lines is None else lines.pow(self._p)
        if matrix.batch_of_line is not None:
            return self._column_sums_by_batch(matrix, entries, weights)
        sums = []
        for part, powers in self._powers(entries):
            sums.append(powers.sum(0) if weights is None else torch.mv(powers.t(), weights[part]))
        if not sums:
            return self._none.new_zeros(matrix.layout.columns)
        return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)

    def line_sums(self, matrix: Matrix, entries: Entries, columns: Tensor | None) -> Tensor:
        """Sums over columns of |columns[c] * w[l, c]|^p, for the held lines."""
        out = self._none.new_empty(entries.whole.shape[0])
        for part, piece in entries.chunks:
            if columns is not None:
                piece = torch.mul(piece, matrix.by_line(columns, part), out=self._room(piece))
            elif piece.dtype != out.dtype:
                piece = self._room(piece).copy_(piece)
            torch.linalg.vector_norm(piece, self._p, dim=1, out=out[part])
        return out.pow_(self._p)

    def release(self) -> None:
        """Give the buffer back: between steps nothing is kept."""
        self._scratch = self._none

    def _column_sums_by_batch(self, matrix: Matrix, entries: Entries, weights: Tensor | None) -> Tensor:
        out = self._none.new_zeros(matrix.layout.batch, matrix.layout.columns)
        assert matrix.batch_of_line is not None
        for part, powers in self._powers(entries):
            weighted = powers if weights is None else powers.mul_(weights[part].unsqueeze(1))
            out.index_add_(0, matrix.batch_of_line[part], weighted)
        return out.flatten()

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
        """The scratch buffer in the piece's shape; it grows to the largest chunk of the step."""
        if piece.numel() > self._scratch.numel():
            self._scratch = self._none.new_empty(piece.numel())
        return self._scratch.as_strided(piece.shape, piece.stride())


class Fused:
    """The same passes as expressions over the whole weight."""

    def __init__(self, p: float, dtype: torch.dtype) -> None:
        self._p, self._dtype = p, dtype

    def look_up(self, table: Tensor, places: Tensor) -> Tensor:
        """As :meth:`Chunked.look_up`, opaque to the compiler, which would look up anew for every entry of a weight."""
        found: Tensor = torch.ops.equinorm.look_up(table, places)
        return found

    def column_sums(self, matrix: Matrix, entries: Entries, lines: Tensor | None) -> Tensor:
        """As :meth:`Chunked.column_sums`."""
        powers = self._powers(entries.whole, None if lines is None else lines.unsqueeze(1))
        if matrix.batch_of_line is not None:
            if matrix.holds_all:
                return powers.view(matrix.layout.batch, -1, matrix.layout.columns).sum(1).flatten()
            by_batch = powers.new_zeros(matrix.layout.batch, matrix.layout.columns)
            return by_batch.index_add(0, matrix.batch_of_line, powers).flatten()
        if powers.shape[0] % HEIGHT == 0:
            powers = powers.view(-1, HEIGHT, powers.shape[1]).sum(1)
        return powers.sum(0)

    def line_sums(self, matrix: Matrix, entries: Entries, columns: Tensor | None) -> Tensor:
        """As :meth:`Chunked.line_sums`."""
        return self._powers(entries.whole, None if columns is None else matrix.by_line(columns)).sum(1)

    def release(self) -> None:
        """As :meth:`Chunked.release`: there is no buffer."""

    def _powers(self, whole: Tensor, factors: Tensor | None) -> Tensor:
        scaled = whole.to(self._dtype) if factors is None else whole.to(self._dtype) * factors
        return scaled * scaled if self._p == 2.0 else scaled.abs().pow(self._p)


Kernels = Chunked | Fused
