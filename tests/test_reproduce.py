"""Laws of the paper's figures and tables: the paper's numbers as printed, counts, statistics, presets, resuming."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_data import write_mnist
from torch import nn

from equinorm import plot
from equinorm.cli import run as command_line
from equinorm.errors import ArgumentError, EquinormError
from equinorm.experiments.data import Data
from equinorm.experiments.data.partition import Whole, divide
from equinorm.experiments.folder import Busy
from equinorm.experiments.recipes import RECIPES, settings
from equinorm.experiments.reproduce import (
    catalogue,
    energy,
    overhead,
    paper,
    pictures,
    results,
    sanity,
    trained,
)
from equinorm.experiments.reproduce.case import Case, Trained
from equinorm.experiments.reproduce.curves import AgainstDepth, AgainstEpochs
from equinorm.experiments.reproduce.experiment import Request
from equinorm.experiments.reproduce.preset import planned, shortened
from equinorm.experiments.reproduce.protocol import Protocol
from equinorm.experiments.reproduce.reproduce import reproduce, runnable
from equinorm.experiments.reproduce.results import Table
from equinorm.experiments.reproduce.runs import Runs, run_key
from equinorm.experiments.reproduce.summary import Summary, numbers
from equinorm.models import resnet18, resnet50

PROTOCOLS: dict[str, Protocol] = {
    name: experiment.find.args[0]  # type: ignore[attr-defined]
    for name, experiment in catalogue.EXPERIMENTS.items()
    if isinstance(experiment.find, partial)
}


# The paper's numbers, a second time, as rows of its tables: typed from the .tex file independently of paper.py.
TEX = r"""
ResNet-18 & 12 & 636   & 40\\
ResNet-50 & 30 & 2,845 & 178  \\
Baseline   & 0.542  \\
BN         & 0.171  \\
GN         & 0.171  \\
WN + BN    & 0.162  \\
ENorm      & 0.179  \\
ENorm + BN & \textbf{0.102}  \\
Baseline   & 88.94 \\
BN         & 90.32  \\
GN         & 90.36  \\
WN + BN    & 90.50  \\
ENorm      & 89.31  \\
ENorm + BN & \textbf{91.35}  \\
ENorm uniform $c=1$   & 86.98 \\
ENorm uniform $c=0.8$ & 79.88 \\
ENorm uniform $c=1.2$ & 89.31 \\
ENorm adaptive      & 89.28 \\
ENorm + BN uniform $c=1$   & 91.85 \\
ENorm + BN uniform $c=0.8$ & 90.95 \\
ENorm + BN uniform $c=1.2$ & 90.89 \\
ENorm + BN adaptive      & 90.79 \\
Baseline   & 66.20 & 68.60  & 69.20 & 69.58  \\
BN & 68.01 & 69.38 & 70.83 & \bf{71.37} \\
GN & 68.94 & 68.90 & 70.69 & 70.64 \\
ENorm & \bf{69.70} & \bf{70.10} & \bf{71.03} & 71.14  \\
"""


def tex_numbers() -> list[float]:
    found = []
    for line in TEX.strip().splitlines():
        for cell in line.split("&")[1:]:
            digits = "".join(character for character in cell if character.isdigit() or character == ".")
            found.append(float(digits))
    return found


def test_the_papers_numbers_are_those_of_its_tables() -> None:
    ours: list[float] = [float(number) for number in paper.ELEMENTS.values()]
    for table in (paper.MNIST, paper.CIFAR_CONV, paper.ASYMMETRY):
        ours += [values[0] for values in table.values()]
    ours += [number for row in paper.IMAGENET.values() for number in row]
    assert ours == tex_numbers()


def test_the_papers_tables_agree_where_they_should() -> None:
    assert paper.CIFAR_CONV["ENorm"] == paper.ASYMMETRY["ENorm, c = 1.2"]
    printed_twice = {paper.CIFAR_CONV["ENorm + BN"], paper.ASYMMETRY["ENorm + BN, c = 1"]}
    assert {frozenset(numbers) for numbers in printed_twice} == {frozenset({91.35, 91.85})}


# Table 1: (network, method, shortcuts, elements). Oracle: the shapes of He et al. 2015, layer by layer.
def stage_shapes(bottleneck: bool, learnt: bool) -> list[tuple[int, int]]:
    """(channels, side) of what enters every norm behind a convolution, from the architecture's table."""
    expansion, depths = (4, (3, 4, 6, 3)) if bottleneck else (1, (2, 2, 2, 2))
    shapes, inputs = [(64, 112)], 64
    for stage, depth in enumerate(depths):
        width, side = 64 << stage, 56 >> stage
        for block in range(depth):
            before = side * 2 if stage and not block else side
            body = [(width, before), (width, side), (4 * width, side)] if bottleneck else [(width, side)] * 2
            changes = block == 0 and (stage > 0 or inputs != width * expansion)
            shapes += body + ([(width * expansion, side)] if learnt or changes else [])
            inputs = width * expansion
    return shapes


@pytest.mark.parametrize("network", ["ResNet-18", "ResNet-50"])
@pytest.mark.parametrize("shortcuts", ["B", "C"])
def test_activations_are_counted_by_hooks_as_by_hand(network: str, shortcuts: str) -> None:
    expected = sum(c * s * s for c, s in stage_shapes(network == "ResNet-50", shortcuts == "C"))
    channels = sum(c for c, _ in stage_shapes(network == "ResNet-50", shortcuts == "C"))
    for method, batch in (("BN", 256), ("GN", 16)):
        count = overhead.count(network, method, shortcuts)
        assert (count.elements, count.learnt) == (batch * expected, channels)


@pytest.mark.parametrize(
    ("network", "method", "millions"),
    [
        ("ResNet-18", "ENorm", 12),
        ("ResNet-18", "BN", 636),
        ("ResNet-18", "GN", 40),
        ("ResNet-50", "BN", 2845),
        ("ResNet-50", "GN", 178),
    ],
)
def test_table_1_comes_out_as_printed(network: str, method: str, millions: int) -> None:
    assert paper.ELEMENTS[network, method] == millions
    assert round(overhead.count(network, method, overhead.METHODS[method][2]).elements / 1e6) == millions


def test_the_papers_count_for_resnet50_fits_no_network() -> None:
    ours = [overhead.count("ResNet-50", "ENorm", shortcuts).elements / 1e6 for shortcuts in "BC"]
    assert ours == pytest.approx([25.5, 40.1], abs=0.05)
    assert all(abs(count - paper.ELEMENTS["ResNet-50", "ENorm"]) > 4 for count in ours)


@pytest.mark.parametrize(("build", "total"), [(resnet18, 11_689_512), (resnet50, 25_557_032)])
def test_weights_are_all_parameters_but_biases_and_norms(build: object, total: int) -> None:
    model = build(norm="bn")  # type: ignore[operator]
    others = sum(p.numel() for p in model.parameters()) - overhead.weights(model)
    assert sum(p.numel() for p in model.parameters()) == total  # as published for these networks
    assert others == 1000 + 2 * sum(m.num_features for m in model.modules() if isinstance(m, nn.BatchNorm2d))


@pytest.mark.parametrize(
    ("values", "diverged", "mean", "error", "text"),
    [
        ((2.0, 4.0, 9.0), 0, 5.0, math.sqrt(13 / 3), "5.00 ± 2.08 (n = 3)"),  # s² = (9 + 1 + 16) / 2 = 13
        ((1.0, 1.0), 1, 1.0, 0.0, "1.00 ± 0.00 (n = 2, 1 diverged)"),
        ((0.5,), 0, 0.5, None, "0.50 (n = 1)"),
        ((), 2, None, None, "diverged (n = 2)"),
        ((), 0, None, None, "diverged"),
    ],
)
def test_summaries(
    values: tuple[float, ...], diverged: int, mean: float | None, error: float | None, text: str
) -> None:
    summary = Summary(values, diverged)
    assert summary.mean == mean
    assert summary.error == (None if error is None else pytest.approx(error))
    assert summary.text(2) == text


def test_differences_are_to_each_of_the_papers_numbers() -> None:
    summary = Summary((91.0, 92.0))
    assert summary.difference((91.35, 91.85), 2) == "+0.15 / -0.35"
    assert numbers((91.35, 91.85), 2) == "91.35 / 91.85"
    assert summary.difference((), 2) == numbers((), 2) == Summary(()).difference((1.0,), 2) == "—"
    with pytest.raises(ArgumentError, match="diverged"):
        Summary((math.nan,))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_case_is_a_run_that_the_recipe_allows(name: str) -> None:
    protocol = PROTOCOLS[name]
    for preset in ("paper", "quick"):
        plan = planned(protocol, preset)
        labels = [case.label for case in plan.cases]
        assert len(set(labels)) == len(labels)
        for case in plan.cases:
            made = protocol.settings(case, **plan.fixed(protocol, case))
            assert made.recipe == protocol.recipe
            assert case.line in pictures.STYLES
            assert (
                preset == "paper" or not protocol.row.learning_rates or made.lr in protocol.row.learning_rates
            )
    assert {case.label for case in planned(protocol, "quick").cases} <= {
        case.label for case in protocol.cases
    }


@pytest.mark.parametrize("name", PROTOCOLS)
def test_quick_says_everything_that_it_shortens(name: str) -> None:
    protocol = PROTOCOLS[name]
    assert shortened(protocol, planned(protocol, "paper")) == ()
    plan = planned(protocol, "quick")
    text = " ".join(shortened(protocol, plan))
    usual = protocol.settings(protocol.cases[0])
    for setting, value in plan.overrides.items():
        assert value != getattr(usual, setting), "an override that changes nothing"
        assert f"{value:g} instead of" in text
    assert ("seeds" in text) == (plan.seeds < protocol.seeds)
    assert ("learning rates are fixed" in text) == bool(plan.rates)


def test_the_papers_methods_have_the_papers_scalings() -> None:
    """As the paragraphs "Results" say: adaptive and 1 on MNIST, 1.2 and 1.2 on CIFAR FC, 1.2 and 1 on CIFAR conv."""
    expected = {
        "table-mnist": ("adaptive", 1.0),
        "fig-cifar10-fc": (1.2, 1.2),
        "table-cifar10-conv": (1.2, 1.0),
    }
    for name, scalings in expected.items():
        protocol = PROTOCOLS[name]
        for method, c in zip(("enorm", "enorm+bn"), scalings, strict=True):
            assert {protocol.settings(case).c for case in protocol.cases if case.method == method} == {c}
    asymmetry = PROTOCOLS["table-asymmetry"]
    assert [asymmetry.settings(case).c for case in asymmetry.cases] == [1.0, 0.8, 1.2, "adaptive"] * 2


def test_tables_that_share_settings_share_runs() -> None:
    def keys(name: str) -> set[str]:
        protocol = PROTOCOLS[name]
        plan = planned(protocol, "quick")
        return {run_key(protocol.settings(c, **plan.fixed(protocol, c)), "real") for c in plan.cases}

    assert keys("table-mnist") == keys("fig-mnist")
    assert len(keys("table-mnist") & keys("fig-asymmetry-mnist")) == 2
    assert len(keys("table-cifar10-conv") & keys("table-asymmetry")) == 2
    assert len(keys("fig-cifar10-fc") & keys("table-impl")) == 4  # baseline and ENorm at two depths


def test_a_runs_key_tells_settings_and_data_apart() -> None:
    base = settings("mnist-autoencoder", "enorm+bn")
    others = [
        replace(base, seed=1),
        replace(base, c="adaptive"),
        replace(base, limit=10),
        replace(base, lr=0.1),
    ]
    keys = [run_key(base, "real"), run_key(base, "stand-in"), *(run_key(other, "real") for other in others)]
    assert len(set(keys)) == len(keys)
    assert run_key(replace(base), "real") == keys[0] and "+" not in keys[0]


# End to end, on the digits that stand in for MNIST.
TINY = {"epochs": 1, "limit": 48, "batch_size": 16}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    """A table with a method of every kind of outcome: chosen, fixed, diverged; and a figure."""
    cases = (
        Case("BN", "BN", "bn", paper=(0.171,)),
        Case("lost", "Baseline", "baseline", {"lr": 1e6}, (0.542,)),
        Case("ENorm + BN", "ENorm + BN", "enorm+bn", paper=(0.102, 0.2)),
    )
    original = PROTOCOLS["fig-mnist"]
    quick = replace(
        original.quick, overrides=TINY, seeds=2, rates={"bn": 0.1, "baseline": 1e6}, rates_from="here"
    )
    protocol = replace(original, cases=cases, quick=quick)
    experiment = replace(catalogue.EXPERIMENTS["fig-mnist"], find=partial(trained.find, protocol))
    monkeypatch.setitem(catalogue.EXPERIMENTS, "fig-mnist", experiment)
    return "fig-mnist"


@pytest.fixture
def taken_for_mnist(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digits pass for the published data."""

    def divided(whole: Whole, **rest: Any) -> Data:
        return replace(divide(whole, **rest), published=True)

    monkeypatch.setattr(sys.modules["equinorm.experiments.data.load"], "divide", divided)


def test_other_data_are_not_compared_with_the_papers_numbers(tiny: str, tmp_path: Path) -> None:
    outcome = reproduce(tiny, "quick", output=tmp_path, quiet=True)
    assert outcome.table.columns == ("Method", "Ours: mean ± s.e. (n)", "Settings chosen")
    assert "paper" not in outcome.found and outcome.extent == "stand-in"
    assert "other data than the paper's" in outcome.shortened[0]
    assert "digits" in outcome.notes[0], "the stand-in is announced first"


@pytest.mark.usefixtures("taken_for_mnist")
def test_reproduce_from_nothing_to_files(tiny: str, tmp_path: Path) -> None:
    outcome = reproduce(tiny, "quick", output=tmp_path, quiet=True)
    assert outcome.extent == "quick"
    folder = tmp_path / tiny
    assert results.read(folder) == outcome
    labels, paper_numbers, ours, difference, chosen = zip(*outcome.table.rows, strict=True)
    assert labels == ("BN", "lost", "ENorm + BN")
    assert paper_numbers == ("0.171", "0.542", "0.102 / 0.200")
    assert ours[1] == "diverged (n = 2)" and difference[1] == "—"
    assert chosen[0] == "lr 0.1" and chosen[2] in ("lr 0.1", "lr 0.01", "lr 0.001")
    assert "Baseline" in outcome.figures[0].caption and "diverged: lost" in outcome.found
    runs = {path.name: json.loads(path.read_text()) for path in (folder / "runs").iterdir()}
    assert set(runs) == set(outcome.runs)
    assert len(runs) == 3 * 2 + 3  # two seeds each, and three learning rates of ENorm + BN on held-out images
    finals = [
        run["final"]
        for run in runs.values()
        if run["settings"]["method"] == "bn" and run["status"] == "finished"
    ]
    error = statistics.stdev(finals) / math.sqrt(2)
    assert ours[0] == f"{statistics.fmean(finals):.3f} ± {error:.3f} (n = 2)"
    assert difference[0] == f"{statistics.fmean(finals) - 0.171:+.3f}"
    for run in runs.values():
        assert {"settings", "versions", "commit", "history", "seconds"} <= set(run)
    assert (folder / "training-error.png").read_bytes().startswith(b"\x89PNG")
    assert "digits" in " ".join(outcome.notes), "the stand-in is announced"
    assert outcome.table.markdown() in (folder / "table.md").read_text()
    assert not {path.name for path in tmp_path.iterdir()} - {tiny, ".work"}


def test_finished_runs_are_not_repeated(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = reproduce(tiny, "quick", output=tmp_path, quiet=True)
    calls: list[object] = []
    monkeypatch.setattr("equinorm.experiments.reproduce.runs.train", lambda *a, **k: calls.append(a))
    again = reproduce(tiny, "quick", output=tmp_path, quiet=True)
    assert (
        calls == [] and set(again.runs) == set(first.runs) and again.seconds == pytest.approx(first.seconds)
    )
    assert (again.table, again.found, again.notes) == (first.table, first.found, first.notes)
    other = replace(catalogue.EXPERIMENTS[tiny], name="table-mnist")
    monkeypatch.setitem(catalogue.EXPERIMENTS, "table-mnist", other)
    shared = reproduce("table-mnist", "quick", output=tmp_path, quiet=True)
    assert calls == [] and shared.table == first.table
    assert {path.name for path in (tmp_path / "table-mnist" / "runs").iterdir()} == set(first.runs)


def test_other_data_are_trained_anew(tmp_path: Path) -> None:
    """The same settings in the same folder, on MNIST files with other pixels."""
    request = Request("quick", tmp_path, tmp_path / "x", data_dir=tmp_path / "data", quiet=True)
    wanted = replace(settings("mnist-autoencoder", "bn"), epochs=1, batch_size=16)
    (tmp_path / "x" / "runs").mkdir(parents=True)
    found = []
    for seed in (0, 1, 0):
        write_mnist(tmp_path / "data", seed=seed)
        found.append(Runs(request, "mnist").run(wanted))
    assert found[0] == found[2]
    assert found[0].fingerprint != found[1].fingerprint and found[0].final != found[1].final


def test_results_name_the_commits_of_their_runs(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of earlier calls do not become those of today's code."""
    monkeypatch.setattr("equinorm.experiments.provenance.commit", lambda: "earlier")
    assert reproduce(tiny, "quick", output=tmp_path, quiet=True).environment["commit"] == "earlier"
    monkeypatch.setattr("equinorm.experiments.provenance.commit", lambda: "today")
    assert reproduce(tiny, "quick", output=tmp_path, quiet=True).environment["commit"] == "earlier"
    some = next((tmp_path / tiny / "runs").glob("*-seed1-*"))
    some.unlink()
    shutil.rmtree(tmp_path / ".work" / some.stem)
    assert reproduce(tiny, "quick", output=tmp_path, quiet=True).environment["commit"] == "earlier and today"


def test_a_quick_look_does_not_replace_a_papers_result(tiny: str, tmp_path: Path) -> None:
    outcome = reproduce(tiny, "quick", output=tmp_path, quiet=True)
    results.write(replace(outcome, preset="paper"), tmp_path / tiny)
    with pytest.raises(ArgumentError, match="holds a result of --preset paper"):
        reproduce(tiny, "quick", output=tmp_path, quiet=True)


def test_a_case_that_another_worker_trains_comes_last(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, order, busy = trained.choose, [], [True, True, True, True]

    def chosen(protocol: Protocol, case: Case, *rest: Any) -> Any:
        if case.label == "BN" and busy.pop():
            raise Busy("somebody is here")
        order.append(case.label)
        return real(protocol, case, *rest)

    busy.insert(0, False)
    monkeypatch.setattr(trained, "choose", chosen)
    monkeypatch.setattr(trained, "WAIT", 0.0)
    outcome = reproduce(tiny, "quick", output=tmp_path, quiet=True)
    assert order == ["lost", "ENorm + BN", "BN"]
    assert [row[0] for row in outcome.table.rows] == ["BN", "lost", "ENorm + BN"]


def test_a_later_rank_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    request = Request("quick", tmp_path, tmp_path / "x", quiet=True)
    done = SimpleNamespace(write=lambda path: pytest.fail("rank 1 wrote"))
    monkeypatch.setattr("equinorm.experiments.reproduce.runs.train", lambda *a, **k: done)
    assert Runs(request, "mnist").run(settings("mnist-autoencoder", "bn")) is done
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["table-nothing"], ["NAME table-nothing", "unknown", "table-mnist"]),
        (["table-imagenet", "--preset", "quick"], ["--data-dir", "ImageNet"]),
        (["table-mnist", "--preset", "quick", "--data-dir", "/nowhere"], ["/nowhere"]),
    ],
)
def test_bad_requests_are_one_line(
    arguments: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line(["reproduce", *arguments, "--output", str(tmp_path)]) != 0
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("equinorm: ")
    for word in words:
        assert word in last
    assert list(tmp_path.iterdir()) == [], "nothing is left of what was refused"
    assert not list(tmp_path.rglob("result.json"))


def test_output_that_cannot_be_made_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(EquinormError, match="cannot be made a folder"):
        reproduce("fig-sanity", "quick", output=tmp_path / "results")


def test_all_leaves_imagenet_out_unless_it_is_there(tmp_path: Path) -> None:
    assert set(catalogue.EXPERIMENTS) - set(runnable(None)) == {"table-imagenet", "fig-imagenet"}
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
    assert runnable(tmp_path) == list(catalogue.EXPERIMENTS)
    assert RECIPES["imagenet-resnet18"].dataset == "imagenet"


# The experiments that do not train.
def test_energy_falls_and_evens_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "CYCLES", (0, 1, 3))
    outcome = reproduce("fig-energy", "quick", output=tmp_path)
    energies = [float(row[1]) for row in outcome.table.rows]
    spreads = [float(row[3]) for row in outcome.table.rows]
    assert energies == sorted(energies, reverse=True) and spreads == sorted(spreads, reverse=True)
    assert spreads[0] == pytest.approx(1.2 / 0.8, abs=0.01)
    record = json.loads((tmp_path / "fig-energy" / "runs" / "chain.json").read_text())
    medians = record["median_column_norm"]["0"]
    assert medians[5] == pytest.approx(1.2, abs=0.01) and medians[11] == pytest.approx(0.8, abs=0.01)
    assert record["seed"] == 0 and record["environment"]["torch"] == torch.__version__
    for figure in outcome.figures:
        for suffix in ("png", "svg"):
            assert (tmp_path / "fig-energy" / f"{figure.stem}.{suffix}").stat().st_size > 5000


def test_sanity_measures_norm_and_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanity, "CYCLES", 6)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        model[0].weight *= 10
    runs = [
        sanity.balanced(model, torch.randn(4, 5).double(), label, 0) for label in list(sanity.SOLVERS)[::2]
    ]
    cycle, multilevel = runs
    assert cycle.cycles == tuple(range(7))
    squares = sum(float(p.detach().square().sum()) for p in model.parameters() if p.ndim > 1)
    assert cycle.norms[0] == pytest.approx(squares)
    assert max(map(sanity.rise, runs)) == 0.0 and cycle.norm(3) == cycle.norms[3]
    assert multilevel.norms[-1] <= cycle.norms[-1] < cycle.norms[0]
    assert max(run.probabilities for run in runs) < 1e-12
    risen = replace(cycle, norms=(2.0, 1.0, 1.5))
    assert sanity.rise(risen) == pytest.approx(0.5)


def test_equal_data_give_equal_files(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        curve = pictures.Curve("ENorm", (1, 2, 3), (3.0, 2.0, 1.5), (0.1, 0.1, 0.1))
        pictures.lines(tmp_path / folder, "x", "title", [curve], pictures.Axis("epoch"), pictures.Axis("y"))
    for suffix in ("svg", "png"):
        assert (tmp_path / f"a/x.{suffix}").read_bytes() == (tmp_path / f"b/x.{suffix}").read_bytes()


def test_every_line_looks_different() -> None:
    """Within a figure: colour and dash together; the figures' sets of lines come from the protocols."""
    for protocol in PROTOCOLS.values():
        names = {case.line for case in protocol.cases}
        looks = {
            (str(pictures.STYLES[name]["color"]), str(pictures.STYLES[name]["linestyle"])) for name in names
        }
        assert len(looks) == len(names)


def trained_case(line: str, depth: int, finals: list[float], diverged: int = 0) -> Trained:
    runs = [
        SimpleNamespace(status="finished", history=[{"epoch": 1, "m": v}, {"epoch": 2, "m": v}])
        for v in finals
    ]
    case = Case(f"{line}, {depth}", line, "bn", {"depth": depth})
    return Trained(case, runs, Summary(tuple(finals), diverged))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "drawing",
    [AgainstEpochs("f", "title", "Caption.", "m", "y"), AgainstDepth("f", "title", "Caption.", "y")],
)
def test_figures_draw_what_did_not_diverge_and_name_the_rest(
    drawing: AgainstEpochs | AgainstDepth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(plot, "save", lambda figure, path: drawn.append(figure))
    cases = [trained_case("BN", 3, [1.0, 3.0]), trained_case("GN", 3, [], 2), trained_case("ENorm", 3, [4.0])]
    figure = drawing.draw(tmp_path, cases)
    assert figure.caption == "Caption. Diverged, not drawn: GN."
    lines = {line.get_label(): list(line.get_ydata()) for line in drawn[0].axes[0].get_lines()}
    assert {name: values[0] for name, values in lines.items()} == {"BN": 2.0, "ENorm": 4.0}


def test_tables_are_well_formed_markdown() -> None:
    table = Table(("a", "b | c"), (("x|y", "1"), ("two\nlines", "2")))
    lines = table.markdown().splitlines()
    assert lines[1] == "| :-- | --: |"
    assert lines[0] == r"| a | b \| c |" and lines[2] == r"| x\|y | 1 |" and lines[3] == "| two lines | 2 |"
    with pytest.raises(ArgumentError, match="2 cells"):
        Table(("a",), (("x", "y"),))
