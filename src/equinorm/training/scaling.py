"""The scaling pass in plain operators, bound to the tensors that it writes.

Every view is cut when it is bound: a step looks its factors up, and multiplies chunk by chunk. Each chunk is multiplied
twice while it is in the caches, so that it comes from memory once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from equinorm.training.matrix import Entries, Matrix

Work = Sequence[tuple[int, int, Entries]]  # matrix, exponent, and what to scale by it


class Piece(NamedTuple):
    """A chunk, and the factors of its columns and of its lines."""

    entries: Tensor
    columns: Tensor
    lines: Tensor
    batch_of_line: Tensor | None = None

    def by_line(self) -> Tensor:
        """The columns' factors as they meet the lines."""
        return self.columns if self.batch_of_line is None else self.columns[self.batch_of_line]


class Scaling:
    """A call with the log-scales x multiplies everything by its factors.

    Args:
        matrices: of the plan.
        work: what to scale.
        places: of all matrices' factors in the table.
        split: cuts a vector over these places into lines' and columns' factors by matrix.
        table_of: the table of factors for log-scales and an exponent, in the type of the factors.
        dtype: of the factors.
    """

    def __init__(
        self,
        matrices: Sequence[Matrix],
        work: Work,
        places: Tensor,
        split: Callable[[Tensor], list[tuple[Tensor, Tensor]]],
        table_of: Callable[[Tensor, int], Tensor],
        dtype: torch.dtype,
    ) -> None:
        self._places, self._table_of = places, table_of
        exponents = dict.fromkeys(exponent for _, exponent, _ in work)
        self._factors = {e: torch.empty(places.shape, dtype=dtype, device=places.device) for e in exponents}
        by_matrix = {exponent: split(factors) for exponent, factors in self._factors.items()}
        self._vectors: list[Tensor] = []
        self._by: list[Tensor] = []
        self._simple: list[Piece] = []
        self._batched: list[Piece] = []
        self._narrow: list[Piece] = []
        for number, exponent, entries in work:
            matrix, (lines, columns) = matrices[number], by_matrix[exponent][number]
            if matrix.is_vector:
                self._vectors.append(entries.whole[:, 0])
                self._by.append(lines)
                continue
            for part, chunk in entries.chunks:
                own = lines[part].unsqueeze(1)
                if matrix.batch_of_line is None:
                    piece = Piece(chunk, columns, own)
                else:
                    by_batch = columns.view(matrix.layout.batch, -1)
                    piece = Piece(chunk, by_batch, own, matrix.batch_of_line[part])
                if chunk.dtype != dtype:
                    self._narrow.append(piece)
                elif piece.batch_of_line is not None:
                    self._batched.append(piece)
                else:
                    self._simple.append(piece)

    def __call__(self, x: Tensor) -> None:
        for exponent, factors in self._factors.items():
            torch.index_select(self._table_of(x, exponent), 0, self._places, out=factors)
        for entries, columns, lines, _ in self._simple:
            entries.mul_(columns).mul_(lines)
        for piece in self._batched:
            piece.entries.mul_(piece.by_line()).mul_(piece.lines)
        for piece in self._narrow:  # rounded once
            piece.entries.mul_(piece.by_line() * piece.lines)
        if self._vectors:
            torch._foreach_mul_(self._vectors, self._by)
