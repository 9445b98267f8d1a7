"""``balance``: move a model's weights to the point of minimal norm on their symmetry orbit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from equinorm.apply import rescale
from equinorm.errors import ArgumentError, EquinormError
from equinorm.find import symmetries as find_symmetries
from equinorm.interrupts import interrupts_deferred
from equinorm.objective import Objective
from equinorm.report import Report, Scales
from equinorm.request import Request, parameters
from equinorm.solve import Solution, round_to_powers, solve
from equinorm.solve.certificate import residual_of
from equinorm.symmetry import Symmetries
from equinorm.threads import single_thread
from equinorm.trace import ExampleInputs
from equinorm.verify import NEVER_ROUNDING, Probe, largest, restore
from equinorm.weighting import log_weights


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
            parameters, from which every bit is restored whatever goes wrong. ``False`` takes none: Ctrl-C
            then waits until all weights are written, and if writing them fails half way (out of memory),
            what was done is undone, exactly with ``scales="pow2"`` and else to within rounding.
        symmetries: the result of an earlier :func:`equinorm.symmetries`, to skip the analysis.

    Returns:
        The norms, the certificate of optimality, the scales, and how far the outputs moved.

    Raises:
        ArgumentError: an argument or a weight that cannot be used; the model is untouched.
        EquinormError: the outputs changed; the model is as it was.
    """
    request = Request(p, solver, cycles, tol, scales, batch_norm, biases, verify)
    found = _symmetries(model, example_inputs, batch_norm, symmetries)
    if verify and example_inputs is None:
        raise ArgumentError("example_inputs: needed to verify the function; give them or pass verify=False")
    tensors = parameters(model, found)
    weights = log_weights(c, p, found)
    with single_thread():
        objective = Objective(found, tensors, p, weights)
        solution = solve(objective, solver, cycles, tol)
        if scales == "pow2":
            solution = round_to_powers(objective, solution, found, tensors, biases)
        before = objective.energy(objective.start())
    del objective  # its matrices make room for those of the rescaled weights
    with _restored_on_error(_restorable(model) if verify else {}) as originals:
        probe = Probe(model, example_inputs, originals) if example_inputs is not None and verify else None
        with single_thread():
            stored = rescale(found, tensors, solution, p, weights, biases)
        given = symmetries is not None
        change = _checked_change(probe, tensors, originals, request, given) if probe else None
    with single_thread():
        return _report(request, found, solution, before, stored, change)


def _symmetries(
    model: nn.Module, example_inputs: ExampleInputs | None, batch_norm: str, given: Symmetries | None
) -> Symmetries:
    if given is None:
        if example_inputs is None:
            raise ArgumentError("example_inputs: needed to find the symmetries")
        return find_symmetries(model, example_inputs, batch_norm=batch_norm)
    if not isinstance(given, Symmetries):
        raise ArgumentError(
            f"symmetries: expected the result of equinorm.symmetries, got {type(given).__name__}"
        )
    if given.batch_norm != batch_norm:
        raise ArgumentError(
            f"symmetries: found with batch_norm={given.batch_norm!r}, balance was asked for {batch_norm!r}"
        )
    return given


def _restorable(model: nn.Module) -> dict[str, Tensor]:
    """All parameters that have values of their own: those that no scale touches, a forward pass may write to."""
    return {
        name: parameter.detach()
        for name, parameter in model.named_parameters()
        if parameter.layout == torch.strided and parameter.device.type != "meta"
    }


@contextmanager
def _restored_on_error(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Keep a copy, and put it back whatever goes wrong, Ctrl-C included."""
    originals = {name: tensor.clone() for name, tensor in tensors.items()}
    try:
        yield originals
    except BaseException:
        with interrupts_deferred():
            restore(tensors, originals)
        raise


def _checked_change(
    probe: Probe,
    parameters: Mapping[str, Tensor],
    originals: dict[str, Tensor],
    request: Request,
    given: bool,
) -> float:
    changes = probe.changes()
    exact = request.scales == "pow2"
    allowed = 0.0 if exact else probe.roundings()
    suspects = [run for run, change in enumerate(changes) if change > allowed]
    if request.preserves and suspects:
        rounding = probe.amplified(suspects, parameters, originals)
        for run, measured in zip(suspects, rounding, strict=True):
            bound = allowed if exact else max(allowed, measured)
            if changes[run] > bound:
                raise EquinormError(
                    _why_changed(changes[run], bound, exact, _underflown(parameters, originals), given)
                )
    return largest(changes)


def _why_changed(change: float, bound: float, exact: bool, underflown: str | None, given: bool) -> str:
    what = f"the outputs changed by {change:.1e} (relative), the weights are restored: "
    wider = "use a wider precision or a larger p"
    if underflown is not None:
        return f"{what}entries of {underflown} fell below the range of their precision; {wider}"
    if exact or math.isinf(change):
        return f"{what}an activation must have left the range of its precision; {wider}"
    what += f"that is more than the {bound:.1e} which rounding explains. "
    if given:
        return f"{what}Are the symmetries those of this model? Leave them out to analyse it again"
    if bound >= NEVER_ROUNDING:
        return (
            f"{what}One unit in the last place of the weights already changes them by about as much: the model makes "
            "discrete choices (top-k, argmax, rounding) that are close calls. Balance it in a wider precision, or "
            "pass verify=False"
        )
    return f"{what}Please report this with the model; verify=False skips the test"


def _underflown(parameters: Mapping[str, Tensor], originals: Mapping[str, Tensor]) -> str | None:
    """The first parameter whose largest entry along some dimension is no longer a normal number."""
    for name, now in parameters.items():
        for dim in range(max(now.dim(), 1)):
            before, after = (_largest_along(dim, tensor) for tensor in (originals[name], now))
            least = torch.finfo(now.dtype).smallest_normal
            if bool(((before >= least) & (after < least)).any()):
                return name
    return None


def _largest_along(dim: int, tensor: Tensor) -> Tensor:
    """Of every slice across a dimension."""
    others = [d for d in range(tensor.dim()) if d != dim]
    return tensor.abs().amax(others) if others else tensor.abs()


def _report(
    request: Request,
    found: Symmetries,
    solution: Solution,
    before: float,
    stored: Objective,
    change: float | None,
) -> Report:
    rounded = "" if solution.exponents is None else "; then rounded to powers of two"
    return Report(
        log_norm_before=before,
        log_norm_after=stored.energy(stored.start()),
        residual=solution.residual,
        residual_stored=residual_of(stored, solution),
        converged=solution.converged,
        cycles=solution.cycles,
        status=solution.status.value + rounded,
        function_change=change,
        still=int(solution.still.sum()),
        capped=int(solution.capped.sum()),
        blocked=int(solution.blocked.sum()),
        powers_of_two=solution.exponents is not None,
        p=request.p,
        scales=Scales(found, solution.log_scales, request.biases),
        symmetries=found,
        log_scales=solution.log_scales,
        history=solution.history,
    )
