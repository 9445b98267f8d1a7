"""``symmetries``: trace the model, analyse the graphs, collect what is free."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from equinorm.analysis import Analysis
from equinorm.collect import collect
from equinorm.errors import ArgumentError
from equinorm.interpret import interpret
from equinorm.symmetry import Symmetries
from equinorm.threads import single_thread
from equinorm.trace import ExampleInputs, trace

BATCH_NORM_POLICIES = ("preserve", "ignore")


def symmetries(
    model: nn.Module, example_inputs: ExampleInputs, *, batch_norm: str = "preserve"
) -> Symmetries:
    """Find every positive-rescaling symmetry of a model.

    Args:
        model: any module that ``torch.export`` can trace; it is not changed. The cache that Hugging Face's
            decoders return is left out, as with ``use_cache=False``. Complex and integer parameters stay.
        example_inputs: a tensor, a tuple of positional inputs or a dict of keyword inputs of its forward.
        batch_norm: ``"preserve"`` pins what enters a batch norm and rescales its output through its own
            weight; ``"ignore"`` runs as if the layer were not there, as the paper's ENorm + BN: the function
            then changes.

    Returns:
        The free scales in groups, what each multiplies and divides, and what is pinned and why.

    Raises:
        ArgumentError: the model cannot be traced, or the inputs do not fit it.
    """
    if batch_norm not in BATCH_NORM_POLICIES:
        raise ArgumentError(f"batch_norm: expected one of {BATCH_NORM_POLICIES}, got {batch_norm!r}")
    traces, untraced = trace(model, example_inputs)
    with single_thread():
        analysis = Analysis(batch_norm)
        interpret(analysis, traces)
        others = _pin_unreal(analysis, model)
        found = collect(analysis, model, untraced)
    return replace(found, scalings=tuple(s for s in found.scalings if s.parameter not in others))


def _pin_unreal(analysis: Analysis, model: nn.Module) -> set[str]:
    """Pin what complex and integer parameters make and take, as those are left alone; returns their names."""
    others = {name for name, p in model.named_parameters() if not p.is_floating_point()}
    for name in sorted(others):
        kind = str(model.get_parameter(name).dtype).removeprefix("torch.")
        for use in analysis.uses.by_parameter.get(name, []):
            for ids in (use.plus, use.minus):
                analysis.pin_ids(ids, f"parameter {name} is {kind}: only real weights are rescaled")
    return others
