"""Apply: multiply the parameters by the scales found, reading each of them once.

The rescaled entries are read while they are at hand, so the same pass gives the norm and the residual that
the stored weights really have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from equinorm.cells import Layout, Visit
from equinorm.interrupts import interrupts_deferred
from equinorm.objective import Objective
from equinorm.solve import Solution
from equinorm.symmetry import Scaling, Symmetries

SAFE_LOG = 300.0  # exp(±300) twice over stays in float64

Undo = Callable[[], None]


def rescale(
    symmetries: Symmetries,
    tensors: Mapping[str, Tensor],
    solution: Solution,
    p: float,
    log_weights: Mapping[str, float],
    biases: bool = True,
) -> Objective:
    """Equation 3 of the paper, W ← D_{k-1}^{-1} W D_k, for every parameter in place; with biases b ← b D_k.

    Products are formed in float64 and rounded once; powers of two round nothing. Returns the objective of the
    weights as now stored. If anything fails on the way, what was done is undone: exactly for powers of two, else
    to within rounding, as a product does not say which of the neighbouring weights it came from, and to note
    that would take more memory than ``balance`` may. Whoever needs every bit back keeps a copy.
    """
    with torch.no_grad(), interrupts_deferred(), _undone_on_error() as done:

        def visitor(scaling: Scaling, layout: Layout) -> Visit | None:
            return _multiplier(layout, solution, done) if scaling.counted or biases else None

        return Objective(symmetries, tensors, p, log_weights, visitor)


@contextmanager
def _undone_on_error() -> Iterator[list[Undo]]:
    done: list[Undo] = []
    try:
        yield done
    except BaseException:
        for undo in reversed(done):
            undo()
        raise


def _multiplier(layout: Layout, solution: Solution, done: list[Undo]) -> Visit | None:
    """What multiplies each piece of a layout by its scales, noting in ``done`` how to undo it."""
    steps = solution.log_scales if solution.exponents is None else solution.exponents.double()
    rows, cols = _signed(steps, layout.rows), _signed(steps, layout.cols)
    if not rows.any() and not cols.any():
        return None
    factors = _powers_of_e if solution.exponents is None else _powers_of_two
    count, trailing = layout.cols.shape[1], layout.view.shape[layout.lead :]
    inner = len(trailing)
    while inner and trailing[:inner].numel() > count:
        inner -= 1
    shape = (*trailing[:inner], *[1] * (len(trailing) - inner))

    def multiply(piece: Tensor, first: int, sign: int = 1) -> None:
        lead = piece.shape[: piece.dim() - len(trailing)]
        lines = torch.arange(first, first + lead.numel())
        row, col = rows.flatten()[lines], cols[lines // layout.rows.shape[1]]
        product = piece.to("cpu", torch.float64, copy=True)
        for factor in factors(sign * row.unsqueeze(1), sign * (cols if cols.shape[0] == 1 else col)):
            product.mul_(factor.view((*lead, *shape)))
        piece.copy_(product)

    def visit(piece: Tensor, first: int) -> None:
        multiply(piece, first)
        done.append(lambda: multiply(piece, first, -1))

    return visit


def _powers_of_e(rows: Tensor, cols: Tensor) -> Iterator[Tensor]:
    """Factors of exp(rows - cols); far from one in two halves, neither of which leaves float64."""
    if rows.abs().max() <= SAFE_LOG and cols.abs().max() <= SAFE_LOG:
        yield rows.exp() * (-cols).exp()
    else:
        half = ((rows - cols) / 2).exp()
        yield half
        yield half


def _powers_of_two(rows: Tensor, cols: Tensor) -> Iterator[Tensor]:
    """Factors of 2^(rows - cols) in two halves, exact on whatever survives the whole."""
    exponents = rows - cols
    half = (exponents / 2).trunc()
    yield half.exp2()
    yield (exponents - half).exp2()


def _signed(steps: Tensor, ids: Tensor) -> Tensor:
    return steps[ids.abs()] * ids.sign()
