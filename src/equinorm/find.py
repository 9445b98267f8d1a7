"""``symmetries``: trace the model, analyse the graphs, collect what is free."""

from __future__ import annotations

from torch import nn

from equinorm.analysis import Analysis
from equinorm.collect import collect
from equinorm.errors import ArgumentError
from equinorm.symmetry import Symmetries
from equinorm.threads import single_thread
from equinorm.trace import ExampleInputs, trace

BATCH_NORM_POLICIES = ("preserve", "ignore")


def symmetries(
    model: nn.Module, example_inputs: ExampleInputs, *, batch_norm: str = "preserve"
) -> Symmetries:
    """Find every positive-rescaling symmetry of a model.

    Args:
        model: any module that ``torch.export`` can trace; it is not changed.
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
        for graph in traces:
            analysis.run(graph)
        return collect(analysis, model, untraced)
