"""``balance``: move a model's weights to the point of minimal norm on their symmetry orbit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equinorm.apply import rescale
from equinorm.errors import ArgumentError, EquinormError
from equinorm.find import BATCH_NORM_POLICIES
from equinorm.find import symmetries as find_symmetries
from equinorm.objective import Objective
from equinorm.report import Report, Scales
from equinorm.solve import METHODS, Solution, solve
from equinorm.solve.certificate import residual_of
from equinorm.symmetry import Symmetries
from equinorm.trace import ExampleInputs
from equinorm.verify import Probe, restore
from equinorm.weighting import log_weights

SCALES = ("real", "pow2")


def balance(
    model: nn.Module,
    example_inputs: ExampleInputs | None = None,
    *,
    p: float = 2.0,
    c: float | str | Mapping[str, float] = 1.0,
    solver: str = "multilevel",
    cycles: int | None = None,
    tol: float = 1e-8,
    scales: str = "real",
    batch_norm: str = "preserve",
    biases: bool = True,
    verify: bool = True,
    symmetries: Symmetries | None = None,
) -> Report:
    """Rescale a model's weights in place to the unique point of minimal norm that computes the same function.

    Args:
        model: any module that ``torch.export`` can trace. Balance ``copy.deepcopy(model)`` to keep the
            original.
        example_inputs: a tensor, a tuple of positional inputs or a dict of keyword inputs. Not needed with
            ``symmetries`` and ``verify=False``.
        p: the norm minimised is sum c_k ||W_k||_p^p; any positive number, or infinity to equalise the largest
            entries on both sides of every channel.
        c: weights c_k of the layers. A number is the paper's uniform asymmetric scaling, ``"adaptive"`` its
            adaptive one; or a mapping from parameter names.
        solver: ``"multilevel"``, ``"cycle"`` (the paper's Algorithm 1) or ``"cycle-parallel"`` (the paper's
            approximation for ResNets of type C).
        cycles: do exactly so many; otherwise iterate until the residual is at most ``tol``.
        scales: ``"real"``, or ``"pow2"``: powers of two that every value survives exactly, so that outputs
            are bit-identical.
        batch_norm: ``"preserve"``, or ``"ignore"``: as if batch norms were not there. The function
            then changes.
        biases: ``False`` leaves biases alone, as the paper's code does. The function then changes.
        verify: compare outputs before and after, and restore the weights with an error if they differ beyond
            rounding (with ``batch_norm="ignore"`` or ``biases=False``: only report). Takes a copy of the
            parameters.
        symmetries: the result of an earlier :func:`equinorm.symmetries`, to skip the analysis.

    Returns:
        The norms, the certificate of optimality, the scales, and how far the outputs moved.

    Raises:
        ArgumentError: an argument or a weight that cannot be used; the model is untouched.
        EquinormError: the outputs changed; the model is as it was.
    """
    request = _Request(p, solver, scales, batch_norm, biases)
    request.check(cycles, tol)
    found = _symmetries(model, example_inputs, batch_norm, symmetries)
    if verify and example_inputs is None:
        raise ArgumentError("example_inputs: needed to verify the function; give them or pass verify=False")
    tensors = _parameters(model, found)
    weights = log_weights(c, p, found)
    objective = Objective(found, tensors, p, weights)
    solution = solve(objective, solver, cycles, tol)
    if scales == "pow2":
        from equinorm.solve.powers import round_to_powers

        solution = round_to_powers(objective, solution, found, tensors, biases)
    before = objective.value(objective.start())
    del objective  # its matrices make room for those of the rescaled weights
    probe = Probe(model, example_inputs) if verify and example_inputs is not None else None
    with _restored_on_error(tensors if probe else {}) as originals:
        stored = rescale(found, tensors, solution.log_scales, p, weights, biases)
        change = _checked_change(probe, originals, request) if probe else None
    return _report(request, found, solution, before, stored, change)


@dataclass(frozen=True)
class _Request:
    p: float
    solver: str
    scales: str
    batch_norm: str
    biases: bool

    @property
    def preserves(self) -> bool:
        return self.biases and self.batch_norm == "preserve"

    def check(self, cycles: int | None, tol: float) -> None:
        if isinstance(self.p, bool) or not isinstance(self.p, (int, float)) or not self.p > 0:
            raise ArgumentError(f"p: expected a positive number or infinity, got {self.p!r}")
        for name, value, known in (
            ("solver", self.solver, tuple(METHODS)),
            ("scales", self.scales, SCALES),
            ("batch_norm", self.batch_norm, BATCH_NORM_POLICIES),
        ):
            if value not in known:
                raise ArgumentError(f"{name}: expected one of {', '.join(map(repr, known))}, got {value!r}")
        if cycles is not None and (isinstance(cycles, bool) or not isinstance(cycles, int) or cycles < 0):
            raise ArgumentError(f"cycles: expected a whole number or None, got {cycles!r}")
        if not isinstance(tol, (int, float)) or not 0 < tol < math.inf:
            raise ArgumentError(f"tol: expected a positive number, got {tol!r}")
        if self.scales == "pow2" and math.isinf(self.p):
            raise ArgumentError('scales: "pow2" needs a finite p')


def _symmetries(
    model: nn.Module, example_inputs: ExampleInputs | None, batch_norm: str, given: Symmetries | None
) -> Symmetries:
    if given is None:
        if example_inputs is None:
            raise ArgumentError("example_inputs: needed to find the symmetries")
        return find_symmetries(model, example_inputs, batch_norm=batch_norm)
    if given.batch_norm != batch_norm:
        raise ArgumentError(
            f"symmetries: found with batch_norm={given.batch_norm!r}, balance was asked for {batch_norm!r}"
        )
    return given


def _parameters(model: nn.Module, symmetries: Symmetries) -> dict[str, Tensor]:
    """The parameters that the symmetries speak of, checked against the model."""
    present = dict(model.named_parameters())
    if set(present) != set(symmetries.shapes):
        odd = sorted(set(present) ^ set(symmetries.shapes))
        raise ArgumentError(f"symmetries: found on another model; parameter {odd[0]} is only in one of them")
    for name, shape in symmetries.shapes.items():
        if present[name].shape != shape:
            raise ArgumentError(
                f"symmetries: found on another model; parameter {name} had shape {tuple(shape)}, "
                f"now it has {tuple(present[name].shape)}"
            )
    used = {scaling.parameter for scaling in symmetries.scalings}
    for name in sorted(used):
        if not present[name].is_floating_point():
            raise ArgumentError(
                f"parameter {name} has type {present[name].dtype}; only real weights can be balanced"
            )
        if present[name].device.type == "meta":
            raise ArgumentError(
                f"parameter {name} is on the meta device and has no values; load the weights first"
            )
    return {name: present[name].detach() for name in present if name in used}


@contextmanager
def _restored_on_error(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Keep a copy, and put it back whatever goes wrong, Ctrl-C included."""
    originals = {name: tensor.clone() for name, tensor in tensors.items()}
    try:
        yield originals
    except BaseException:
        restore(tensors, originals)
        raise


def _checked_change(probe: Probe, originals: Mapping[str, Tensor], request: _Request) -> float:
    change = probe.change()
    if not request.preserves:
        return change
    exact = request.scales == "pow2"
    eps = max((torch.finfo(tensor.dtype).eps for tensor in originals.values()), default=0.0)
    allowed = 0.0 if exact else eps
    if change > allowed and not exact:
        allowed = probe.rounding(originals)
    if not change <= allowed:
        raise EquinormError(
            f"the outputs changed by {change:.1e} (relative), more than the {allowed:.1e} that rounding "
            "explains; the weights are restored. If the model is random or keeps state between calls, pass "
            "verify=False; otherwise please report it with the model"
        )
    return change


def _report(
    request: _Request,
    found: Symmetries,
    solution: Solution,
    before: float,
    stored: Objective,
    change: float | None,
) -> Report:
    start = stored.start()
    return Report(
        norm_before=before,
        norm_after=stored.value(start),
        residual=solution.residual,
        residual_stored=residual_of(stored, solution),
        converged=solution.converged,
        cycles=solution.cycles,
        status=solution.status.value,
        function_change=change,
        still=int(solution.still.sum()),
        capped=int(solution.capped.sum()),
        blocked=0,
        p=request.p,
        scales=Scales(found, solution.log_scales, request.biases),
        symmetries=found,
        log_scales=solution.log_scales,
        history=solution.history,
    )
