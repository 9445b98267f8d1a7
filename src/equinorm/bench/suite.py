"""The benchmarks by name, and how to run some of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from equinorm import plot
from equinorm.bench import analysis, convergence, memory, output, overhead, step
from equinorm.bench.machine import this_machine
from equinorm.bench.networks import paper_networks
from equinorm.bench.readme import is_full
from equinorm.errors import ArgumentError, EquinormError

WIDTH = 170  # of tables in a file or a pipe
NETWORKS = tuple(network.label for network in paper_networks())


@dataclass(frozen=True)
class Benchmark:
    """A measurement with its two settings; ``minutes`` is what they take on 2 quiet cores."""

    run: Callable[[Any, torch.device, Callable[[str], None]], output.Findings]
    full: Any
    quick: Any
    minutes: tuple[float, float]


BENCHMARKS = {
    "overhead": Benchmark(overhead.run, overhead.FULL, overhead.QUICK, (16.0, 0.5)),
    "step": Benchmark(step.run, step.FULL, step.QUICK, (5.0, 0.8)),
    "convergence": Benchmark(convergence.run, convergence.FULL, convergence.QUICK, (9.0, 0.3)),
    "analysis": Benchmark(analysis.run, analysis.FULL, analysis.QUICK, (12.0, 0.4)),
    "memory": Benchmark(memory.run, memory.FULL, memory.QUICK, (3.0, 0.3)),
}


def run(
    which: Sequence[str],
    folder: Path,
    device: str = "cpu",
    threads: int = 2,
    quick: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> None:
    """Run benchmarks one after the other; each prints and saves as soon as it is done, also when another fails.

    ``changes`` replace settings of the same name, of every chosen benchmark that has them.
    """
    names = _names(which)
    settings = {name: _settings(name, quick, changes or {}) for name in names}
    _all_used(settings, changes or {})
    full = {name: settings[name] == BENCHMARKS[name].full for name in names}
    _spare_results(folder, [name for name in names if not full[name]])
    where = _device(device)
    plot.check_path(folder / "figure.png")  # matplotlib is there
    console, screen = Console(), Console(stderr=True)
    if not console.is_terminal:
        console.width = WIDTH
    minutes = sum(BENCHMARKS[name].minutes[quick] for name in names)
    with _threads(threads):
        machine = this_machine(where)
        console.print(machine.line(), markup=False)
        screen.print(f"{', '.join(names)}: about {minutes:.2g} minutes on 2 quiet cores", markup=False)
        start, failed = time.perf_counter(), []
        for name in names:
            try:
                findings = BENCHMARKS[name].run(settings[name], where, _saying(screen, name, start))
            except EquinormError as error:
                failed.append(f"{name}: {error}")
                continue
            output.show(name, findings, console)
            written = output.save(name, findings, machine, settings[name], folder, full[name])
            console.print(f"wrote {', '.join(map(str, written))}", markup=False, soft_wrap=True)
    if failed:
        raise EquinormError("; ".join(failed))


def _names(which: Sequence[str]) -> list[str]:
    for name in which:
        if name not in (*BENCHMARKS, "all"):
            raise ArgumentError(f"bench: there is no {name}; use {', '.join(BENCHMARKS)} or all")
    return list(BENCHMARKS) if "all" in which else list(dict.fromkeys(which))


def _spare_results(folder: Path, partial: Sequence[str]) -> None:
    """A look at a part must not take the place of a whole result."""
    for name in partial:
        path = folder / f"{name}.json"
        if path.exists() and is_full(path):
            raise ArgumentError(
                f"{path} is a whole result; pass another --output for a look at a part of {name}"
            )


def _settings(name: str, quick: bool, changes: Mapping[str, Any]) -> Any:
    unknown = set(changes.get("networks", ())) - set(NETWORKS)
    if unknown:
        raise ArgumentError(f"--network {min(unknown)}: unknown; use one of {', '.join(NETWORKS)}")
    chosen = BENCHMARKS[name].quick if quick else BENCHMARKS[name].full
    known = {field.name for field in fields(chosen)}
    return replace(chosen, **{key: value for key, value in changes.items() if key in known})


def _all_used(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    for key in changes:
        if not any(hasattr(chosen, key) for chosen in settings.values()):
            raise ArgumentError(f"{key}: none of {', '.join(settings)} has such a setting")


def _saying(screen: Console, name: str, start: float) -> Callable[[str], None]:
    def say(text: str) -> None:
        screen.print(f"[{time.perf_counter() - start:6.0f} s] {name}: {text}", markup=False, highlight=False)

    return say


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise EquinormError(
            f"--device {name}: {(str(error).splitlines() or ['cannot be used'])[0]}"
        ) from error
    return device


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
