"""``equinorm bench step``: ``ENorm.step()`` against SGD's step, a plain Algorithm 1, and the memory's bandwidth."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

import equinorm
from equinorm.bench import pictures
from equinorm.bench.algorithm import plain_step
from equinorm.bench.machine import BUFFER, READ, SCALE, Bandwidth
from equinorm.bench.networks import count, mlp, paper_networks
from equinorm.bench.output import Findings, Headline, Table, seconds, size, spread, times
from equinorm.bench.resident import meter
from equinorm.bench.room import SHARE
from equinorm.bench.timing import Estimate, Rounds, estimate, interleaved, ratios, seconds_of

CLAIM = """One call of ENorm.step(), as it comes and compiled, and Algorithms 1 and 2 written plainly, against one
step of SGD(momentum=0.9, foreach=True) on the same parameters. As in training: a pass over 256 MB leaves nothing
of the network in the caches, as a backward pass does; then comes SGD's step, and directly after it one of the
rivals. All take turns in every round, each is compared with the SGD step before it, medians over rounds. The limit
is the traffic that cannot be avoided (each float32 weight read once for the norms; each weight and each momentum
read and written once: 20 bytes per parameter that moves) at the best bandwidth that a plain pass over 256 MB (a
read, a copy, a scaling in place) reached in the same rounds; "as passes" is the same traffic at the rates of a plain
read and of a plain scaling in place. A network that fits into the caches can beat both."""

NORMS, SCALING = 4, 16  # bytes per float32 parameter: read the weight; read and write weight and momentum
SGD, PLAIN, ENORM, COMPILED = "SGD", "plain Algorithm 1", "ENorm", "ENorm, compiled"
NEEDED = (
    14  # bytes per parameter while this runs: weight, gradient, momentum, and the plain algorithm's squares
)


ROUNDS = Rounds(most=31, seconds=10.0, least=5)


@dataclass(frozen=True)
class Settings:
    """Which networks, and how long."""

    parameters: tuple[int, ...] = (100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000)  # of MLPs
    networks: tuple[str, ...] = tuple(network.label for network in paper_networks())
    compiled: bool = True
    buffer: int = BUFFER
    rounds: Rounds = ROUNDS


FULL = Settings()
QUICK = Settings(
    (100_000, 1_000_000, 10_000_000), compiled=False, rounds=Rounds(most=11, seconds=3.0, least=5)
)


def run(settings: Settings, device: torch.device, say: Callable[[str], None]) -> Findings:
    """Measure every network."""
    cases: list[tuple[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]]] = [
        (n.label, partial(_built, n.build, n.shape))
        for n in paper_networks(64)
        if n.label in settings.networks
    ]
    cases += [(f"MLP, {wanted:,}", partial(mlp, wanted)) for wanted in settings.parameters]
    sizes = [0] * (len(cases) - len(settings.parameters)) + list(settings.parameters)
    rows, notes = [], []
    for (label, build), wanted in zip(cases, sizes, strict=True):
        memory = meter(device)
        if memory is not None and wanted * NEEDED > SHARE * memory.available():
            notes.append(f"{label}: left out, it needs {size(wanted * NEEDED)} of memory")
            continue
        say(label)
        model, shape = build()
        rows.append({"network": label} | measure(model.to(device), shape, settings, device))
    return Findings(
        CLAIM,
        rows,
        [_table(rows)],
        headlines(rows),
        notes,
        partial(pictures.step, rows=rows),
    )


def _built(build: Callable[[Any], nn.Module], shape: tuple[int, ...]) -> tuple[nn.Module, tuple[int, ...]]:
    return build("none"), shape


def measure(
    model: nn.Module, shape: tuple[int, ...], settings: Settings, device: torch.device
) -> dict[str, Any]:
    """Seconds by rival, and what they mean against SGD and against the bandwidth."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9, foreach=True)
    optimizer.step()
    found = equinorm.symmetries(model, torch.zeros(2, *shape, device=device))
    works: dict[str, Callable[[], object]] = {
        PLAIN: plain_step(model, found, optimizer),
        ENORM: equinorm.ENorm(model, optimizer, symmetries=found).step,
    }
    if settings.compiled:
        works[COMPILED] = equinorm.ENorm(model, optimizer, symmetries=found, compile=True).step
        works[COMPILED]()  # compiles
    memory = Bandwidth(device, settings.buffer)

    def after_sgd(work: Callable[[], object]) -> tuple[float, float]:
        memory.clear_caches()
        return seconds_of(optimizer.step, device), seconds_of(work, device)

    passes = memory.passes()
    calls: dict[str, Callable[[], Any]] = {name: partial(after_sgd, work) for name, work in works.items()}
    calls |= {name: call for name, (call, _) in passes.items()}
    taken = interleaved(calls, settings.rounds)
    rates = {name: [size / s for s in taken[name]] for name, (_, size) in passes.items()}
    pairs = {name: list(zip(*taken[name], strict=True)) for name in works}
    return {"parameters": count(model)} | _compared(pairs, rates, traffic_of(model, found))


def _compared(
    taken: Mapping[str, Sequence[Sequence[float]]],
    rates: Mapping[str, Sequence[float]],
    traffic: tuple[int, int],
) -> dict[str, Any]:
    """Estimates, from the seconds of SGD and of the rival after it, and from the rates of plain passes."""
    best = [max(at) for at in zip(*rates.values(), strict=True)]
    limit = [sum(traffic) / rate for rate in best]
    as_passes = [
        traffic[0] / read + traffic[1] / scale for read, scale in zip(rates[READ], rates[SCALE], strict=True)
    ]
    sgd = [statistics.median(at) for at in zip(*(before for before, _ in taken.values()), strict=True)]
    return {
        "traffic_bytes": sum(traffic),
        "bandwidth": {name: estimate(values) for name, values in rates.items()},
        "seconds": {SGD: estimate(sgd), **{name: estimate(own) for name, (_, own) in taken.items()}},
        "to_sgd": {name: estimate(ratios(own, before)) for name, (before, own) in taken.items()},
        "limit_seconds": estimate(limit),
        "limit_to_sgd": estimate(ratios(limit, sgd)),
        "passes_to_sgd": estimate(ratios(as_passes, sgd)),
        "share_of_limit": {name: estimate(ratios(limit, own)) for name, (_, own) in taken.items()},
    }


def traffic_of(model: nn.Module, found: equinorm.Symmetries) -> tuple[int, int]:
    """Bytes that one step must move: norms of every counted weight, scaling of every parameter that moves."""
    sizes = {
        name: parameter.numel() * parameter.element_size() for name, parameter in model.named_parameters()
    }
    moving = [s for s in found.scalings if s.plus.any() or s.minus.any()]
    counted = {s.parameter for s in moving if s.counted}
    norms = sum(sizes[name] for name in counted) * NORMS // 4
    return norms, sum(sizes[name] for name in {s.parameter for s in moving}) * SCALING // 4


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    header = (
        "network",
        "parameters",
        "SGD",
        "plain",
        "ENorm",
        "compiled",
        "ENorm % of limit",
        "compiled %",
        "limit",
        "as passes",
    )
    lines = []
    for row in rows:
        ratio, share = row["to_sgd"], row["share_of_limit"]
        lines.append(
            (
                row["network"],
                f"{row['parameters']:,}",
                seconds(row["seconds"][SGD]),
                *(times(ratio[name].median) if name in ratio else "" for name in (PLAIN, ENORM, COMPILED)),
                *(f"{100 * share[name].median:.0f}" if name in share else "" for name in (ENORM, COMPILED)),
                times(row["limit_to_sgd"].median),
                times(row["passes_to_sgd"].median),
            )
        )
    return Table("seconds of SGD's step; the others as multiples of it", header, lines)


def headlines(rows: Sequence[Mapping[str, Any]]) -> list[Headline]:
    """What goes into the README, with the targets of the issues."""
    lines = []
    for row in rows:
        for name, most in ((ENORM, 1.5), (COMPILED, 1.0)):
            if name in row["to_sgd"] and not row["network"].startswith("MLP"):
                ratio: Estimate = row["to_sgd"][name]
                what = (
                    f"{row['network']}: {name}.step() to SGD's"
                    if name == ENORM
                    else f"{row['network']}: compiled"
                )
                lines.append(Headline(what, spread(ratio, times), f"≤ {most:g}×", ratio.median <= most))
    large = [row for row in rows if row["network"].startswith("MLP") and row["parameters"] >= 9e6]
    for row in large:
        share: Estimate = row["share_of_limit"][ENORM]
        what = f"{row['network']} parameters: ENorm.step()'s share of the bandwidth limit"
        lines.append(Headline(what, spread(share, "{:.0%}".format), "≥ 60%", share.median >= 0.6))
    return lines
