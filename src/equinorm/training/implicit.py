"""``ImplicitENorm``: the scales as learnable parameters of the weight decay (the paper's ENorm-Impl).

The regulariser is lambda * sum c_k ||D_{k-1}^{-1} W_k D_k||^2 (appendix "Implicit Equi-normalization") in the
log-scales x = log d. With F = exp(2 (x_out - x_in)) for every entry, its gradient is 2 lambda c W F in the weights;
in a scale it is the sum of 2 lambda c W^2 F over the entries that the scale multiplies, less those that it divides.
Both come out of one pass over each weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from equinorm.errors import ArgumentError, EquinormError
from equinorm.interrupts import interrupts_deferred
from equinorm.report import Scales
from equinorm.restrict import holding
from equinorm.symmetry import Symmetries
from equinorm.trace import ExampleInputs
from equinorm.training.analysed import analysed
from equinorm.training.cycle import Stepping
from equinorm.training.layouts import Layouts
from equinorm.training.matrix import CHUNK, Shape, Side, shape_of
from equinorm.training.plain import Plain
from equinorm.training.shards import is_sharded
from equinorm.weighting import log_weights


class ImplicitENorm(nn.Module):
    """The paper's regulariser with learnable rescalings: add ``implicit()`` to the loss.

    Any optimizer trains ``implicit.parameters()`` (the log-scales, zero at first: every scale is one) beside the
    model's. For the weights that the regulariser counts it is the weight decay: give them none of the optimizer's own,
    nor the log-scales. Parameters in ``left_out`` are not part of it. The network's function does not depend on the
    log-scales; ``materialize()`` writes them into the weights. Scales that would move a frozen parameter stay one.

    Attributes:
        symmetries: what the log-scales act on.
        left_out: names of trained parameters that the regulariser does not count: biases, and weights that no traced
            linear map uses, such as those of an LSTM.

    Args:
        model: the module being trained.
        example_inputs: as for :func:`equinorm.symmetries`; not needed with ``symmetries``.
        weight_decay: the paper's lambda, which it cross-validates.
        c, batch_norm: as for :func:`equinorm.balance`.
        symmetries: the result of an earlier :func:`equinorm.symmetries`.
    """

    def __init__(
        self,
        model: nn.Module,
        example_inputs: ExampleInputs | None = None,
        *,
        weight_decay: float,
        c: float | str | Mapping[str, float] = 1.0,
        batch_norm: str = "preserve",
        symmetries: Symmetries | None = None,
    ) -> None:
        super().__init__()
        if (
            isinstance(weight_decay, bool)
            or not isinstance(weight_decay, (int, float))
            or not 0 <= weight_decay < math.inf
        ):
            raise ArgumentError(f"weight_decay: expected a number from 0, got {weight_decay!r}")
        inner, found, parameters = analysed(model, example_inputs, symmetries, batch_norm)
        if any(is_sharded(parameter) for parameter in parameters.values()):
            raise ArgumentError("model: ImplicitENorm reads whole weights; it does not work with fully_shard")
        frozen = {
            n: "it is frozen (requires_grad=False)" for n, p in parameters.items() if not p.requires_grad
        }
        self.symmetries, self._parameters_by_name = holding(found, frozen), parameters
        self._layouts = Layouts(inner, "ImplicitENorm")
        self._log_weights = log_weights(c, 2.0, self.symmetries)
        self._terms = _terms(self.symmetries, parameters, weight_decay, self._log_weights)
        self._names = sorted({shape.name for shape, _ in self._terms})
        self.left_out = tuple(n for n in parameters if n not in self._names and n not in frozen)
        first = next(iter(parameters.values()))
        dtype = torch.float64 if first.dtype == torch.float64 else torch.float32
        self.log_scales = nn.Parameter(
            torch.zeros(self.symmetries.num_free, dtype=dtype, device=first.device)
        )

    def forward(self) -> Tensor:
        """The regulariser, to be added to the loss."""
        self._layouts.check()
        weights = [self._parameters_by_name[name] for name in self._names]
        value: Tensor = _Penalty.apply(self._terms, self._names, self.log_scales, *weights)  # type: ignore[no-untyped-call]
        return value

    def scales(self) -> Scales:
        """The learnt scales by parameter."""
        return Scales(self.symmetries, self._padded().cpu(), True)

    @torch.no_grad()
    def materialize(self) -> None:
        """Write the learnt scales into weights and biases, and start again from one.

        The function and the regulariser stay as they are. Averages that the optimizer keeps do not move: make a new
        optimizer, or do this when training is over.
        """
        self._layouts.check()
        tensors = {name: p.detach() for name, p in self._parameters_by_name.items()}
        plain = Plain(self.symmetries, self._log_weights, Stepping(2.0, 1, math.inf, False), "cycle")
        with interrupts_deferred():
            plain.rescale(self._padded().cpu(), [(tensors, 1)], biases=True)
            self.log_scales.zero_()

    def _padded(self) -> Tensor:
        return torch.cat([self.log_scales.new_zeros(1), self.log_scales]).detach().double()


Term = tuple[Shape, float]  # a weight, and lambda * c_k


def _terms(
    symmetries: Symmetries, parameters: Mapping[str, Tensor], weight_decay: float, logs: Mapping[str, float]
) -> list[Term]:
    terms = []
    for scaling in symmetries.scalings:
        if scaling.counted:
            parameter = parameters[scaling.parameter]
            shape = shape_of(scaling, parameter)
            if shape is None:
                raise ArgumentError(
                    f"parameter {scaling.parameter}: ImplicitENorm needs weights without gaps in memory that are not "
                    "sliced across columns"
                )
            lines, columns = (_beside(side, parameter) for side in (shape.line_side, shape.column_side))
            beside = replace(shape, line_side=lines, column_side=columns)
            terms.append((beside, weight_decay * math.exp(logs[scaling.parameter])))
    return terms


def _beside(side: Side, parameter: Tensor) -> Side:
    return Side(side.ids.to(parameter.device), side.sign.to(parameter.device))


class _Penalty(Function):
    """Value and gradients together, chunk by chunk; backward only hands them out."""

    @staticmethod
    def forward(
        ctx: Any, terms: Sequence[Term], names: Sequence[str], log_scales: Tensor, *weights: Tensor
    ) -> Tensor:
        x = torch.cat([log_scales.new_zeros(1), log_scales]).double()
        by_name = dict(zip(names, weights, strict=True))
        gradients = {name: torch.zeros_like(weight) for name, weight in by_name.items()}
        pull = torch.zeros_like(x)
        total = x.new_zeros(())
        for shape, weight in terms:
            total += _accumulate(shape, weight, by_name[shape.name], gradients[shape.name], x, pull)
        ctx.gradients = [gradients[name] for name in names]
        ctx.pull = pull[1:].to(log_scales.dtype)
        return total.to(log_scales.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise EquinormError(
                "the regulariser has first derivatives only: differentiate it apart from what needs create_graph=True"
            )
        if ctx.gradients is None:
            raise EquinormError(
                "the regulariser was differentiated already; call the ImplicitENorm again for another"
            )
        gradients, ctx.gradients = ctx.gradients, None  # handed over: the optimizer's .grad may keep them
        torch._foreach_mul_(gradients, grad.to(gradients[0].dtype))
        return None, None, ctx.pull * grad, *gradients


def _accumulate(
    shape: Shape, weight: float, values: Tensor, gradient: Tensor, x: Tensor, pull: Tensor
) -> Tensor:
    """Add one weight's gradients, into ``gradient`` and into ``pull`` by scale; returns its part of the value."""
    count = shape.batch * shape.lines * shape.columns
    parts = (shape.batch, shape.lines, shape.columns)
    w, g = (
        _flat(shape, t)[shape.offset : shape.offset + count].view(parts) for t in (values.detach(), gradient)
    )
    wide = torch.float64 if w.dtype == torch.float64 else torch.float32
    lines = (2 * shape.line_side.logs(x)).exp().mul_(2 * weight).to(wide)
    columns = (2 * shape.column_side.logs(x)).exp().to(wide)
    line_pull, column_pull = torch.zeros_like(lines), torch.zeros_like(columns)
    for part in _chunks(*parts):
        piece = w[part].to(wide)
        slope = piece * lines[part].unsqueeze(2) * columns[part[0]].unsqueeze(1)
        g[part] += slope
        slope *= piece
        line_pull[part] = slope.sum(2)
        column_pull[part[0]] += slope.sum(1)
    for side, sums in ((shape.line_side, line_pull), (shape.column_side, column_pull)):
        pull.index_add_(0, side.ids.flatten(), (sums.double() * side.sign).flatten())
    return line_pull.double().sum() / 2


def _flat(shape: Shape, tensor: Tensor) -> Tensor:
    flat = shape.flat(tensor)
    assert flat is not None  # the model's layout is checked at every call, and a gradient is made in the same
    return flat


def _chunks(batch: int, lines: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Cut (batch, lines) so that a piece with its columns stays in cache."""
    step = max(1, CHUNK // max(columns, 1))
    if step >= lines:
        whole = max(1, step // max(lines, 1))
        yield from ((slice(b, b + whole), slice(0, lines)) for b in range(0, batch, whole))
        return
    for b in range(batch):
        yield from ((slice(b, b + 1), slice(start, start + step)) for start in range(0, lines, step))
