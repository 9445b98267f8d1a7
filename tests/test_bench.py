"""Benchmarks on tiny networks: everything but the times."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import equinorm
from equinorm.bench import (
    algorithm,
    analysis,
    convergence,
    families,
    memory,
    overhead,
    readme,
    resident,
    room,
    step,
    suite,
    timing,
)
from equinorm.bench.allocated import allocations
from equinorm.bench.methods import METHODS, Seconds, Training
from equinorm.bench.networks import Network, mlp, paper_networks
from equinorm.bench.timing import Rounds, estimate, interleaved
from equinorm.cli import run
from equinorm.errors import ArgumentError
from equinorm.models import resnet18c

CPU = torch.device("cpu")
README = Path(__file__).parent.parent / "README.md"
FEW = Rounds(most=2, least=2)
SMALL = ("MNIST auto-encoder",)
TINY = {
    "overhead": overhead.Settings(
        batches=(2, 3), image=32, methods=("none", "BN", "GN", "ENorm"), rounds=FEW, networks=SMALL
    ),
    "step": step.Settings((2_000,), SMALL, compiled=False, buffer=1 << 10, rounds=FEW),
    "convergence": convergence.Settings((5,), 12, (5, 20), (3,), 1, 30.0, rounds=FEW),
    "analysis": analysis.Settings(("equinorm:mnist_autoencoder",), (3, 4), (8, 16), FEW),
    "memory": memory.Settings(2, 32, SMALL, millions=()),
}


# ---- timing


@pytest.mark.parametrize(
    ("n", "low", "high", "confidence"),
    [
        (1, 1, 1, 0.0),
        (3, 1, 3, 0.75),  # below six, the range: 1 - 2 / 2^n
        (5, 1, 5, 0.9375),
        (6, 1, 6, 0.96875),
        (8, 1, 8, 1 - 2 / 2**8),
        (9, 2, 8, 1 - 2 * (1 + 9) / 2**9),
        (12, 3, 10, 1 - 2 * (1 + 12 + 66) / 2**12),
    ],
)
def test_intervals_by_hand(n: int, low: float, high: float, confidence: float) -> None:
    found = estimate([float(k) for k in range(n, 0, -1)])
    assert (found.median, found.low, found.high, found.n) == ((n + 1) / 2, low, high, n)
    assert found.confidence == pytest.approx(confidence, abs=1e-15)


@pytest.mark.parametrize("n", range(2, 13))
def test_confidence_counts_all_ways_to_fall_around_the_median(n: int) -> None:
    """The oracle: each of n values is below the true median or above it, 2^n ways that are equally likely."""
    found = estimate([float(k) for k in range(1, n + 1)])
    k = int(found.low)
    inside = sum(k <= sum(below) <= n - k for below in itertools.product((0, 1), repeat=n))
    assert found.confidence == pytest.approx(inside / 2**n)


def test_nothing_measured() -> None:
    with pytest.raises(ArgumentError, match="no measurement"):
        estimate([])


def test_rivals_take_turns() -> None:
    order: list[str] = []

    def call(name: str) -> int:
        order.append(name)
        return len(order)

    found = interleaved({name: lambda name=name: call(name) for name in "abc"}, Rounds(3, least=3))
    assert "".join(order[:3]) == "abc", "warm-up"
    assert all(sorted(order[k : k + 3]) == ["a", "b", "c"] for k in range(0, 12, 3))
    assert {name: [order[n - 1] for n in calls] for name, calls in found.items()} == {
        n: [n] * 3 for n in "abc"
    }


def test_nobody_always_follows_the_same_rival() -> None:
    """What one leaves in the caches must not favour another."""
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in "abcd"}
    interleaved(calls, Rounds(most=100, least=100, warm_up=0))
    before = Counter(itertools.pairwise(order))
    for name in "abcd":
        share = [before[other, name] / 99 for other in "abcd" if other != name]
        assert max(share) < 0.5, f"{name} mostly follows one"


@pytest.mark.parametrize(("budget", "rounds"), [(0.5, 2), (3.9, 3), (100.0, 5)])
def test_rounds_end_with_the_time(budget: float, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def call() -> None:
        now[0] += 1.0

    assert len(interleaved({"a": call}, Rounds(5, budget, least=2))["a"]) == rounds


# ---- memory


class FakeMeter:
    """1000 bytes held, 100 for each example at the peak, and a limit."""

    def __init__(self, available: int) -> None:
        self.left, self.batch = available, 0

    def now(self) -> int:
        return 1000

    def reset_peak(self) -> None:
        self.batch = 0

    def peak(self) -> int:
        return 1000 + 100 * self.batch

    def available(self) -> int:
        return self.left


def test_room_follows_the_line() -> None:
    meter = FakeMeter(available=10_000)  # 1000 + 0.85 * 10000 = 1000 + 100 * 85
    found = room.Room(meter)
    assert found.allows(8), "nothing is known yet"
    for batch in (8, 16):
        meter.batch = batch
        assert found.measured(batch) == 1000 + 100 * batch
    assert found.largest() == 80
    assert [found.allows(batch) for batch in (32, 80, 128)] == [True, True, False]


def test_a_single_peak_is_taken_to_grow_in_full() -> None:
    assert room.line([room.Peak(4, 4000)]) == (0.0, 1000.0)
    assert room.largest_batch([room.Peak(4, 4000), room.Peak(8, 4000)], 10**6) is None
    assert room.Room(None).allows(10**9)


def test_allocations_are_exact() -> None:
    def work() -> torch.Tensor:
        torch.empty(5000)
        return torch.empty(1000)

    kept, found = allocations(work, CPU)
    assert kept.numel() == 1000 and found == (4000, 20_000)


@pytest.mark.skipif(resident.meter(CPU) is None, reason="peaks are read on Linux only")
def test_the_peak_of_resident_memory() -> None:
    meter = resident.meter(CPU)
    assert meter is not None
    meter.reset_peak()
    before = meter.now()
    torch.ones(16 << 20)  # 64 MB, gone at once
    assert 60 << 20 < meter.peak() - before < 80 << 20
    meter.reset_peak()
    assert meter.peak() - before < 8 << 20
    assert 0 < meter.available() <= (resident.total_memory() or 0)


# ---- what is compared


def test_traffic_by_hand() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    found = equinorm.symmetries(model, torch.randn(2, 4))
    weights = 4 * 8 + 8 * 3
    assert step.traffic_of(model, found) == (4 * weights, 16 * (weights + 8)), "the last bias does not move"


@pytest.mark.parametrize("network", ["chain", "resnet"])
def test_the_plain_algorithm_does_what_enorm_does(network: str) -> None:
    """Else it would be no rival."""
    sides = []
    for plain in (True, False):
        torch.manual_seed(0)
        model, x = (mlp(500, 4)[0], (7,)) if network == "chain" else (resnet18c(), (3, 32, 32))
        model = model.double()
        x = torch.randn(2, *(x if network == "resnet" else (model[0].in_features,)), dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter) * 1e-3
        optimizer.step()
        found = equinorm.symmetries(model, x)
        work = (
            algorithm.plain_step(model, found, optimizer)
            if plain
            else equinorm.ENorm(model, optimizer, symmetries=found).step
        )
        before = [p.detach().clone() for p in model.parameters()]
        work()
        assert any(not torch.equal(a, p) for a, p in zip(before, model.parameters(), strict=True))
        sides.append([t for p in model.parameters() for t in (p, optimizer.state[p]["momentum_buffer"])])
    for mine, theirs in zip(*sides, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=0)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "ENorm, compiled"])
def test_methods_time_their_own_part(name: str) -> None:
    network = Network(
        "tiny", lambda norm: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), (6,), 3, (4,)
    )
    training = Training(network, METHODS[name], CPU)
    before = training.model[0].weight.detach().clone()
    taken = training.step(*network.data(4, CPU))
    assert 0 <= taken.own < taken.step
    assert (taken.own > 0) == METHODS[name].is_timed_inside
    assert not torch.equal(before, training.model[0].weight)


def test_costs_are_formed_within_rounds() -> None:
    taken = {
        "none": [Seconds(1.0, 0.0), Seconds(10.0, 0.0), Seconds(2.0, 0.0)],
        "BN": [Seconds(1.5, 0.0), Seconds(10.6, 0.0), Seconds(2.4, 0.0)],
        "ENorm": [Seconds(1.1, 0.1), Seconds(10.0, 0.2), Seconds(2.2, 0.1)],
    }
    row = overhead.row("net", 8, 100, taken)
    assert row["methods"]["BN"]["cost"].median == pytest.approx(0.5)
    assert row["methods"]["ENorm"]["cost"].median == pytest.approx(0.1)
    assert row["methods"]["ENorm"]["difference"].median == pytest.approx(0.1)
    assert row["methods"]["ENorm"]["share_of_step"].median == pytest.approx(0.05)
    assert row["times_cheaper"]["ENorm"]["BN"].median == pytest.approx(4.0)  # of 5, 3 and 4
    assert row["methods"]["none"]["cost"] is None


@pytest.mark.parametrize(("bn", "met"), [(1.61, True), (1.59, False)])
def test_targets_are_judged(bn: float, met: bool) -> None:
    """ENorm costs 4 ms here; BN must cost 150 times as much, 600 ms on top of a second."""
    taken = {
        "none": [Seconds(1.0, 0.0)] * 3,
        "BN": [Seconds(bn, 0.0)] * 3,
        "ENorm": [Seconds(1.004, 0.004)] * 3,
    }
    row = overhead.row("ResNet-18-C", 256, 12, taken) | {"peak_bytes": None}
    small = overhead.row("ResNet-18-C", 32, 12, taken) | {"peak_bytes": None}
    lines = {line.what: line for line in overhead.headlines([row, small])}
    assert lines["ResNet-18-C, batch 256: ENorm is cheaper than BN"].met is met
    assert lines["ResNet-18-C, batch 32: ENorm's share of a training step"].met is True


# ---- convergence

FREE = {  # by hand, for depth 5 and width 20 (width 8 or 40 where the name says so, 10 in the dense one)
    "student-t 2": 80,
    "bottlenecks": 20 * 3 + 2,
    "width 8, twice as deep": 8 * 8,
    "5 blocks of width 8, twice as deep": 8 * 40,
    "residual, learnt shortcuts": 20 * (1 + 4 * 2),
    "residual, identity shortcuts": 20 * (1 + 4),
    "dense": 15 * 10,
    "recurrent": 20,
}


def test_curves_are_thinned_evenly() -> None:
    points = [convergence.Point(k, float(k), 1.0) for k in range(1000)]
    kept = convergence.thinned(points, 20)
    assert len(kept) <= 21 and kept[0].cycles == 0 and kept[-1].cycles == 999
    assert convergence.thinned(points[:20], 20) == points[:20]


# ---- the command


def estimates(value: Any) -> Iterator[dict[str, float]]:
    """All medians with intervals inside some JSON."""
    if isinstance(value, dict):
        if {"median", "low", "high", "confidence", "n"} == value.keys():
            yield value
        else:
            yield from itertools.chain.from_iterable(map(estimates, value.values()))
    elif isinstance(value, list):
        yield from itertools.chain.from_iterable(map(estimates, value))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the whole suite on tiny networks."""
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        tiny = {name: replace(suite.BENCHMARKS[name], full=settings) for name, settings in TINY.items()}
        patch.setattr(suite, "BENCHMARKS", tiny)
        assert run(["bench", "all", "--threads", "1", "--output", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("name", TINY)
def test_results(name: str, results: Path) -> None:
    content = json.loads((results / f"{name}.json").read_text())
    expected = {"benchmark", "claim", "machine", "settings", "headlines", "notes", "rows"}
    assert expected <= content.keys() and content["benchmark"] == name
    assert content["machine"]["torch"] == torch.__version__ and content["machine"]["threads"] == 1
    assert content["rows"]
    assert content["headlines"] or name in ("overhead", "memory")  # whose targets are about the ResNet
    found = list(estimates(content["rows"]))
    assert found or name in ("convergence", "memory")
    for value in found:
        assert value["low"] <= value["median"] <= value["high"] and value["n"] == 2


@pytest.mark.parametrize("name", TINY)
def test_pages_and_pictures(name: str, results: Path) -> None:
    page = (results / f"{name}.md").read_text()
    content = json.loads((results / f"{name}.json").read_text())
    assert page.startswith(f"# {name}\n") and f"![{name}]({name}.png)" in page
    assert all(line["what"] in page and line["measured"] in page for line in content["headlines"])
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1, "ragged"
    assert (results / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (results / f"{name}.svg").read_text()


def test_rows_hold_what_is_promised(results: Path) -> None:
    rows = {name: json.loads((results / f"{name}.json").read_text())["rows"] for name in TINY}
    assert [row["batch"] for row in rows["overhead"]] == [32, 256]
    assert all(row["methods"].keys() == {"none", "BN", "GN", "ENorm"} for row in rows["overhead"])
    assert all(row["times_cheaper"]["ENorm"].keys() == {"BN", "GN"} for row in rows["overhead"])
    assert [row["network"] for row in rows["step"]] == ["MNIST auto-encoder", "MLP, 2,000"]
    assert all(row["traffic_bytes"] < 20 * row["parameters"] for row in rows["step"])
    assert {row["kind"] for row in rows["convergence"]} == {"random", "hard", "trained"}
    assert {row["kind"] for row in rows["analysis"]} == {"model", "depth", "width"}
    extra = {row["method"]: row["extra_kept_per_parameter"] for row in rows["memory"]}
    assert extra["none"] == 0
    # BN: weight, bias, their momenta, two running statistics, of 4 bytes, for each of the 3500 normalised channels
    parameters = next(row["parameters"] for row in rows["memory"] if row["method"] == "none")
    assert extra["BN"] == pytest.approx(24 * 3500 / parameters, rel=0.02)
    assert extra["ENorm"] > 0
    (network,) = (n for n in paper_networks(32) if n.label in SMALL)
    again = memory.training(network, TINY["memory"], CPU)
    assert again == rows["memory"], "bytes are counted: the same on every run"


def test_hard_networks_are_solved(results: Path) -> None:
    rows = json.loads((results / "convergence.json").read_text())["rows"]
    hard = {row["network"]: row for row in rows if row["kind"] == "hard"}
    assert hard.keys() == {case.label for case in families.hard_cases(5, 20)} > FREE.keys()
    assert {name: hard[name]["free"] for name in FREE} == FREE
    for row in hard.values():
        for solver, points in row["curves"].items():
            assert row["solvers"][solver]["converged"], f"{row['network']}, {solver}"
            assert points[0][:2] == [0, 0.0] and points[-1][2] <= 1e-8
            assert all(a[0] < b[0] and a[1] <= b[1] for a, b in itertools.pairwise(points))


def test_the_readme_table(results: Path) -> None:
    page = f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n"
    written = readme.with_table(page, results)
    assert written.startswith("before\n") and written.endswith("\nafter\n") and "old" not in written
    assert written.count("`equinorm bench convergence`") >= 3
    assert readme.with_table(written, results) == written
    with pytest.raises(ArgumentError, match="markers"):
        readme.with_table("no markers", results)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("stepp",), "there is no stepp"),
        (("convergence", "--batch", "4"), "batches: none of convergence has such a setting"),
        (("memory", "--network", "LeNet"), "--network LeNet: unknown; use one of ResNet-18-C"),
        (("step", "--device", "cuda:99"), "--device cuda:99"),
        (("step", "--device", "abacus"), "--device abacus"),
    ],
)
def test_bad_arguments(
    arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *arguments, "--output", str(tmp_path / "out")]) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(readme.BEGIN not in README.read_text(), reason="the README has no place for the table")
def test_the_readme_is_current() -> None:
    page = README.read_text()
    wanted = readme.with_table(page, README.parent / "benchmarks/results")
    assert page == wanted, "run `python -m equinorm.bench.readme` and commit README.md"


def test_missing_and_foreign_results(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no results there"):
        readme.table(tmp_path)
    (tmp_path / "step.json").write_text("{}")
    with pytest.raises(ArgumentError, match="not a result"):
        readme.table(tmp_path)
    look = {"benchmark": "step", "machine": {}, "headlines": [], "full": False}
    (tmp_path / "step.json").write_text(json.dumps(look))
    with pytest.raises(ArgumentError, match="a look at a part"):
        readme.table(tmp_path)


def test_a_look_at_a_part_spares_a_whole_result(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (results / "step.json").read_bytes()
    assert json.loads(whole)["full"] is True
    (tmp_path / "step.json").write_bytes(whole)
    assert run(["bench", "step", "--quick", "--output", str(tmp_path)]) != 0
    assert "is a whole result; pass another --output" in capsys.readouterr().err
    assert (tmp_path / "step.json").read_bytes() == whole


def test_one_benchmark_that_fails_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any) -> Any:
        raise ArgumentError("no such thing")

    step_, memory_ = (replace(suite.BENCHMARKS[name], full=TINY[name]) for name in ("step", "memory"))
    monkeypatch.setattr(suite, "BENCHMARKS", {"step": replace(step_, run=fails), "memory": memory_})
    assert run(["bench", "all", "--output", str(tmp_path)]) != 0
    assert "step: no such thing" in capsys.readouterr().err
    assert (tmp_path / "memory.json").exists() and not (tmp_path / "step.json").exists()


def test_models_that_fail_are_noted() -> None:
    settings = analysis.Settings(("equinorm:nothing", "equinorm:mnist_autoencoder"), (), (), FEW)
    found = analysis.run(settings, CPU, lambda text: None)
    assert [row["network"] for row in found.rows] == ["equinorm:mnist_autoencoder"]
    assert any("equinorm:nothing was left out" in note for note in found.notes)


def test_torchvision_that_does_not_import_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    real = __import__

    def without(name: str, *rest: Any) -> Any:
        if name == "torchvision":
            raise RuntimeError("operator torchvision::nms does not exist")
        return real(name, *rest)

    monkeypatch.setattr("builtins.__import__", without)
    settings = analysis.Settings(("torchvision:resnet18", "equinorm:mnist_autoencoder"), (), (), FEW)
    found = analysis.run(settings, CPU, lambda text: None)
    assert [row["network"] for row in found.rows] == ["equinorm:mnist_autoencoder"]
    assert len(found.notes) == 1 and "torchvision::nms does not exist" in found.notes[0]
