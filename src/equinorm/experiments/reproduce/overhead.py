"""table-overhead: Table 1, the elements that each normalisation accesses, counted from the models.

The paper's caption counts, for ENorm, the weights; for BN and GN, the activations that enter the norms, at the
batch size of the column. Its BN and GN numbers are those of ResNets of type B (identity shortcuts except where the
shape changes), its 12 million for ENorm those of either type; its 30 million for ResNet-50 those of neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from equinorm.experiments.reproduce import paper
from equinorm.experiments.reproduce.environment import environment
from equinorm.experiments.reproduce.experiment import Experiment, Findings, Request
from equinorm.experiments.reproduce.results import RUNS, Table
from equinorm.experiments.result import write_json
from equinorm.models import resnet18, resnet18c, resnet50, resnet50c

NETWORKS: dict[str, dict[str, Callable[..., nn.Module]]] = {
    "ResNet-18": {"B": resnet18, "C": resnet18c},
    "ResNet-50": {"B": resnet50, "C": resnet50c},
}
METHODS = {"ENorm": ("none", 1, "C"), "BN": ("bn", 256, "B"), "GN": ("gn", 16, "B")}
"""The model's norm, the batch size of the paper's caption, and the shortcuts that its ResNet-18 number fits."""
NORMS = (_BatchNorm, nn.GroupNorm)
IMAGE = (1, 3, 224, 224)


@dataclass(frozen=True)
class Count:
    """Elements accessed per step by one normalisation of one network."""

    network: str
    method: str
    shortcuts: str
    batch: int
    elements: int
    learnt: int  # channels of the norms: one of each channel's two learnt numbers, as the paper counts


def activations(model: nn.Module) -> int:
    """Elements that enter the model's norms for one image, by hooks."""
    entering: list[int] = []

    def count(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        entering.append(inputs[0].numel())

    hooks = [
        module.register_forward_pre_hook(count) for module in model.modules() if isinstance(module, NORMS)
    ]
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(IMAGE))
    finally:
        for hook in hooks:
            hook.remove()
    return sum(entering)


def weights(model: nn.Module) -> int:
    """Elements of the weights of all linear maps, which one ENorm cycle reads."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.ndim > 1)


def count(network: str, method: str, shortcuts: str) -> Count:
    """One cell of Table 1."""
    norm, batch, _ = METHODS[method]
    model = NETWORKS[network][shortcuts](norm=norm)
    learnt = sum(m.weight.numel() for m in model.modules() if isinstance(m, NORMS))
    elements = weights(model) if method == "ENorm" else batch * activations(model)
    return Count(network, method, shortcuts, batch, elements, learnt)


def find(request: Request) -> Findings:
    """Count both networks with both kinds of shortcuts under each normalisation."""
    start = time.perf_counter()
    counts = []
    for network in NETWORKS:
        for method in METHODS:
            for shortcuts in NETWORKS[network]:
                request.say(f"{network}, {method}, type {shortcuts}")
                counts.append(count(network, method, shortcuts))
    found = {(c.network, c.method, c.shortcuts): c for c in counts}
    seconds = time.perf_counter() - start
    content = {"counts": [asdict(c) for c in counts], "environment": environment(), "seconds": seconds}
    write_json(request.folder / RUNS / "counts.json", content)
    return Findings(headline(found), table(found), (), ("counts.json",), seconds, notes=_notes(found))


Counts = dict[tuple[str, str, str], Count]


def headline(found: Counts) -> str:
    """How many of the paper's numbers come out, and those that do not."""
    off = []
    for (network, method), printed in paper.ELEMENTS.items():
        ours = found[network, method, METHODS[method][2]].elements / 1e6
        if round(ours) != printed:
            off.append(f"{method} on {network}: {ours:.1f} million, the paper prints {printed}")
    agreeing = len(paper.ELEMENTS) - len(off)
    return "; ".join([f"{agreeing} of {len(paper.ELEMENTS)} numbers agree", *off])


def table(found: Counts) -> Table:
    """The paper's number, ours with the shortcuts that the caption seems to mean, and with the others."""
    rows = []
    for (network, method), printed in paper.ELEMENTS.items():
        _, batch, shortcuts = METHODS[method]
        ours = found[network, method, shortcuts].elements / 1e6
        other = "B" if shortcuts == "C" else "C"
        others = found[network, method, other].elements / 1e6
        what = method if method == "ENorm" else f"{method}, B = {batch}"
        difference = f"{round(ours) - printed:+,d}"
        rows.append(
            (
                f"{network}, {what}",
                f"{printed:,d}",
                f"{ours:,.1f} (type {shortcuts})",
                difference,
                f"{others:,.1f} (type {other})",
            )
        )
    columns = ("Millions of elements", "Paper", "Ours", "Difference, rounded", "Other shortcuts")
    return Table(columns, tuple(rows))


def _notes(found: Counts) -> tuple[str, ...]:
    ratio = {
        m: found["ResNet-18", m, "B"].elements / found["ResNet-18", "ENorm", "C"].elements for m in METHODS
    }
    learnt = ", ".join(
        f"{network}: {found[network, 'BN', 'B'].learnt:,d} (paper: {printed:,d})"
        for network, printed in paper.LEARNT_BY_NORMS.items()
    )
    return (
        "ENorm: the weights of all convolutions and of the FC layer. BN, GN: the activations that enter the norms "
        "for one 224×224 image, by hooks, times the batch size.",
        "The paper's numbers for BN and GN are those of type-B shortcuts; its 30 million for ENorm on ResNet-50 "
        f"fits neither type B ({found['ResNet-50', 'ENorm', 'B'].elements / 1e6:.1f}) nor type C "
        f"({found['ResNet-50', 'ENorm', 'C'].elements / 1e6:.1f}), which ENorm needed in the paper.",
        f"On a ResNet-18 BN accesses {ratio['BN']:.0f} times and GN {ratio['GN']:.1f} times as many elements as "
        "ENorm (paper: 50 and 3).",
        f"Parameters learnt by the norms, one per channel as the paper seems to count. {learnt}.",
    )


EXPERIMENT = Experiment(
    "table-overhead",
    "Elements accessed by a normalisation",
    'Table 1 (tab:overhead), section "Computational advantage over BN and GN"',
    "ENorm accesses about 50 times fewer elements than BN and 3 times fewer than GN on a ResNet-18.",
    find,
)
