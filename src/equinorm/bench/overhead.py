"""``equinorm bench overhead``: what each normalisation adds to a training step.

The paper counts the elements that a normalisation accesses (section "Computational advantage over BN and GN",
Table 1): on a ResNet-18 BN 636 million at batch 256, GN 40 at batch 16, ENorm 12 at any batch. Here is the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from equinorm.bench import pictures
from equinorm.bench.methods import BN, COMPILED, ENORM, GN, METHODS, NONE, Seconds, Training
from equinorm.bench.networks import Network, count, paper_networks
from equinorm.bench.output import Findings, Headline, Table, seconds, size, spread, times
from equinorm.bench.resident import meter
from equinorm.bench.room import Room
from equinorm.bench.timing import Estimate, Rounds, differences, estimate, interleaved, ratios

CLAIM = """A training step (forward, backward, SGD with momentum and weight decay) under each normalisation, all
methods interleaved in every round; medians over rounds with distribution-free intervals. The cost of BN, GN and
WN is the step's time less that of the step without normalisation in the same round; ENorm and ENorm-Impl are
timed inside the step. Ratios are formed within rounds. None, ENorm and ENorm-Impl end in one batch norm of 1000
(10) features where the paper's do; groups of GN are the networks' own (32 in convolutional ones)."""


ROUNDS = Rounds(most=15, seconds=50.0, least=3)
LARGE_ROUNDS = Rounds(most=4, least=4, warm_up=0)  # minutes each; a median of four bears a cold first one
LARGEST_ROUNDS = Rounds(most=1, least=1, warm_up=0)
PROBES = (2, 8)  # batches that tell how memory grows, before any that might not fit


@dataclass(frozen=True)
class Settings:
    """What is trained and for how long."""

    batches: tuple[int, ...] = (16, 32, 64, 128, 256)  # of the ResNet
    image: int = 224
    methods: tuple[str, ...] = tuple(METHODS)
    rounds: Rounds = ROUNDS
    large: int = 128  # from this batch on, methods whose cost does not grow are left out, but for ENorm
    large_rounds: Rounds = LARGE_ROUNDS
    largest: bool = True  # whether to measure the largest batch that fits, too, where steps take seconds
    networks: tuple[str, ...] = tuple(network.label for network in paper_networks())


FULL = Settings()
QUICK = Settings(
    (16, 32),
    64,
    tuple(name for name in METHODS if name != COMPILED),
    Rounds(most=7, seconds=4.0),
    largest=False,
    networks=("ResNet-18-C", "MNIST auto-encoder"),
)


def run(settings: Settings, device: torch.device, say: Callable[[str], None]) -> Findings:
    """Measure every network at every batch that fits."""
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for network in paper_networks(settings.image, settings.batches):
        if network.label in settings.networks:
            found, told = _network(network, settings, device, say)
            rows, notes = rows + found, notes + told
    return Findings(
        CLAIM,
        rows,
        [_table(rows)],
        headlines(rows),
        notes,
        partial(pictures.overhead, rows=rows),
    )


def _network(
    network: Network, settings: Settings, device: torch.device, say: Callable[[str], None]
) -> tuple[list[dict[str, Any]], list[str]]:
    say(f"{network.label}: building it {len(settings.methods)} times")
    room = Room(meter(device))
    trainings = {name: Training(network, METHODS[name], device) for name in settings.methods}
    parameters = count(trainings[NONE].model)
    for batch in PROBES:
        for training in trainings.values():
            training.step(*network.data(batch, device))
        room.measured(batch)
    rows = []

    def measure(batch: int, names: Sequence[str], rounds: Rounds) -> None:
        say(f"{network.label}, batch {batch}: {', '.join(names)}")
        data = network.data(batch, device)
        taken = interleaved({name: partial(trainings[name].step, *data) for name in names}, rounds)
        rows.append(row(network.label, batch, parameters, taken) | {"peak_bytes": room.measured(batch)})

    for batch in network.batches:
        if room.allows(batch):
            is_large = network.is_large and batch >= settings.large
            names = [n for n in trainings if not is_large or METHODS[n].grows or n == ENORM]
            measure(batch, names, settings.large_rounds if is_large else settings.rounds)
    largest = room.largest()
    if network.is_large and settings.largest and largest and largest not in network.batches:
        measure(largest, [name for name in (NONE, BN, ENORM) if name in trainings], LARGEST_ROUNDS)
    measured = [found["batch"] for found in rows]
    return rows, [
        f"{network.label}: no room for batch {batch}" for batch in network.batches if batch not in measured
    ]


def row(network: str, batch: int, parameters: int, taken: Mapping[str, Sequence[Seconds]]) -> dict[str, Any]:
    """The estimates for one network and batch, from the seconds of each method's steps."""
    steps = {name: [s.step for s in found] for name, found in taken.items()}
    added = {name: differences(steps[name], steps[NONE]) for name in taken if name != NONE}
    own = {name: [s.own for s in found] for name, found in taken.items() if METHODS[name].is_timed_inside}
    costs = added | own
    methods = {
        name: {
            "step": estimate(steps[name]),
            "to_none": estimate(ratios(steps[name], steps[NONE])),
            "cost": estimate(costs[name]) if name in costs else None,
            "share_of_step": estimate(ratios(costs[name], steps[NONE])) if name in costs else None,
            "difference": estimate(added[name]) if name in added else None,
            "timed_inside": name in own,
        }
        for name in taken
    }
    cheaper = {
        name: {other: estimate(ratios(added[other], own[name])) for other in added if other not in own}
        for name in own
    }
    return {
        "network": network,
        "parameters": parameters,
        "batch": batch,
        "methods": methods,
        "times_cheaper": cheaper,
    }


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    header = (
        "network, batch",
        "method",
        "step",
        "to none",
        "step less none",
        "cost of normalising",
        "% of a step",
        "× below BN",
        "× below GN",
        "n",
    )
    lines = []
    for found in rows:
        for name, method in found["methods"].items():
            cost, below = method["cost"], found["times_cheaper"].get(name, {})
            lines.append(
                (
                    f"{found['network']}, {found['batch']}",
                    name,
                    seconds(method["step"]),
                    f"{method['to_none'].median:.3f}",
                    "" if method["difference"] is None else seconds(method["difference"]),
                    "" if cost is None else spread(cost, seconds),
                    "" if cost is None else f"{100 * method['share_of_step'].median:.2f}",
                    spread(below[BN], times) if BN in below else "",
                    spread(below[GN], times) if GN in below else "",
                    str(method["step"].n),
                )
            )
    return Table("a training step, and what normalising costs of it", header, lines)


def headlines(rows: Sequence[Mapping[str, Any]]) -> list[Headline]:
    """What goes into the README, with the targets of the issues."""
    resnet = {found["batch"]: found for found in rows if found["network"].startswith("ResNet")}
    lines = []
    if resnet:
        largest = max(resnet)
        for batch in dict.fromkeys((256, largest)):
            lines += _below(resnet, batch, BN, 150, exact=256)
        lines += _below(resnet, 16, GN, 10, exact=16)
        peak = resnet[largest]["peak_bytes"]
        if peak:
            lines.append(
                Headline(f"ResNet-18-C, batch {largest}, the largest measured: peak memory", size(peak))
            )
    for name in ("ENorm", "ENorm, compiled", "ENorm-Impl"):
        method = resnet.get(32, {"methods": {}})["methods"].get(name)
        if method:
            share: Estimate = method["share_of_step"]
            bound = 0.05 if name == "ENorm-Impl" else 0.02
            lines.append(
                Headline(
                    f"ResNet-18-C, batch 32: {name}'s share of a training step",
                    spread(share, "{:.2%}".format),
                    f"≤ {bound:.0%}",
                    share.median <= bound,
                )
            )
    whole = resnet.get(32, {"methods": {}})["methods"].get(ENORM)
    if whole:
        ratio: Estimate = whole["to_none"]
        what = "ResNet-18-C, batch 32: a whole step with ENorm to one without"
        lines.append(Headline(what, spread(ratio, "{:.3f}×".format), "≤ 1.02×", ratio.median <= 1.02))
    return lines


def _below(
    resnet: Mapping[int, Mapping[str, Any]], batch: int, rival: str, least: float, exact: int
) -> list[Headline]:
    """How many times cheaper ENorm is than a rival; the target is for one batch."""
    ratio = resnet.get(batch, {"times_cheaper": {}})["times_cheaper"].get(ENORM, {}).get(rival)
    if ratio is None:
        return []
    target = f"≥ {least:g}×" if batch == exact else ""
    met = ratio.median >= least if batch == exact else None
    return [
        Headline(
            f"ResNet-18-C, batch {batch}: ENorm is cheaper than {rival}", spread(ratio, times), target, met
        )
    ]
