"""Sweeps: the grid on held-out examples, the seeds of the best; many workers, dead workers, nothing twice."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from experiment_runs import forked, killed, write_data
from optuna.trial import TrialState

from equinorm.cli import run as cli
from equinorm.errors import EquinormError
from equinorm.experiments.folder import Busy
from equinorm.experiments.recipes import Settings
from equinorm.experiments.result import Result
from equinorm.experiments.storage import open_storage
from equinorm.experiments.sweep import Summary, sweep
from equinorm.experiments.train import train


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


class Bench:
    """Stands in for training: values by a formula, and a line in a file for every run, as processes have no memory."""

    def __init__(self, folder: Path, value: Callable[[Settings], float | None], seconds: float = 0.0) -> None:
        self.log, self.value, self.seconds = folder / "log", value, seconds

    def __call__(self, settings: Settings, folder: Path) -> Result:
        with self.log.open("a") as file:
            file.write(f"{folder.parent.name}/{folder.name}\n")
        time.sleep(self.seconds)
        value = self.value(settings)
        status = "finished" if value is not None else "diverged"
        return Result(settings, status, [], value, value, None, "", {}, None, "cpu", 1, 0.0, "", "", True)

    @property
    def runs(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


def at_best(settings: Settings) -> float | None:
    """Accuracy: best at lr 0.05 (and 10 groups); diverges from 0.1; on all examples, the seed."""
    if settings.lr >= 0.1:
        return None
    if settings.validation == 0:
        return float(settings.seed)
    groups = 0 if settings.groups is None else abs(settings.groups - 10)
    return -abs(math.log(settings.lr / 0.05)) - groups


def test_search_then_seeds(tmp_path: Path) -> None:
    bench = Bench(tmp_path, at_best)
    found = {s.method: s for s in sweep("cifar10-fc", ["bn", "gn"], tmp_path, bench, overrides={"depth": 3})}
    assert found["bn"].chosen == {"lr": 0.05} and found["gn"].chosen == {"lr": 0.05, "groups": 10}
    assert len(found["bn"].search) == 6 and len(found["gn"].search) == 6 * 4
    assert found["bn"].search[-1] == ({"lr": 0.1}, None), "what diverged is the worst"
    for summary in found.values():
        assert summary.finals == [0.0, 1.0, 2.0, 3.0, 4.0] and summary.diverged == 0
        assert summary.mean == 2 and summary.error == pytest.approx(statistics.stdev(range(5)) / 5**0.5)
    assert len(bench.runs) == len(set(bench.runs)) == 6 + 24 + 5 + 5
    again = sweep("cifar10-fc", ["bn", "gn"], tmp_path, bench, overrides={"depth": 3})
    assert len(bench.runs) == 40 and again == list(found.values()), "finished trials are never rerun"
    written = json.loads((tmp_path / "sweep.json").read_text())
    assert [Summary(**{**m, "search": [tuple(p) for p in m["search"]]}) for m in written["methods"]] == again
    sweep("cifar10-fc", ["bn"], tmp_path, bench, overrides={"depth": 5})
    assert len(bench.runs) == 51, "other settings are another study"


def test_what_is_searched(tmp_path: Path) -> None:
    """Lists replace grids; a single value is fixed; what does not apply to a method is left out of it."""
    bench = Bench(tmp_path, at_best)
    grids = {"lr": [0.05], "groups": [5, 10], "weight_decay": [1e-3, 1e-2]}
    bn, gn = sweep("cifar10-fc", ["bn", "gn"], tmp_path, bench, seeds=2, grids=grids)
    assert [point for point, _ in bn.search] == [{"weight_decay": 1e-3}, {"weight_decay": 1e-2}]
    assert len(gn.search) == 4 and gn.chosen == {"lr": 0.05, "groups": 10, "weight_decay": 1e-3}
    impl = sweep("cifar10-fc", ["enorm-impl"], tmp_path, bench, seeds=1, grids={"lr": [0.05]})[0]
    assert [point for point, _ in impl.search] == [{"weight_decay": w} for w in (1e-4, 1e-3, 1e-2)]
    before = len(bench.runs)
    (imagenet,) = sweep("imagenet-resnet18", ["enorm"], tmp_path, bench, seeds=3)
    assert imagenet.search == [] and imagenet.chosen == {} and len(bench.runs) == before + 3


def test_divergence_everywhere_is_a_result(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lambda settings: None)
    (summary,) = sweep("mnist-autoencoder", ["baseline"], tmp_path, bench)
    assert summary.chosen is None and summary.mean is None and len(bench.runs) == 3
    some = Bench(tmp_path, lambda settings: None if settings.seed == 1 else 0.5)
    (summary,) = sweep("mnist-autoencoder", ["bn"], tmp_path, some, seeds=3)
    assert summary.finals == [0.5, 0.5] and summary.diverged == 1


def test_equal_values_over_numbers_and_words_are_ranked(tmp_path: Path) -> None:
    """As where both a number and "adaptive" diverge."""
    grids = {"lr": [0.1], "c": [1.0, "adaptive"]}
    for number, value in enumerate((None, 0.5)):
        bench = Bench(tmp_path, lambda settings, value=value: value)
        folder = tmp_path / str(number)
        (summary,) = sweep("mnist-autoencoder", ["enorm"], folder, bench, seeds=1, grids=grids)
        assert [found for _, found in summary.search] == [value] * 2
        assert (summary.chosen is None) == (value is None)


def test_an_error_ends_the_sweep_and_the_trial_is_tried_again(tmp_path: Path) -> None:
    def broken(settings: Settings) -> float | None:
        raise EquinormError("no data")

    with pytest.raises(EquinormError, match="no data"):
        sweep("mnist-autoencoder", ["bn"], tmp_path, Bench(tmp_path, broken))
    (summary,) = sweep("mnist-autoencoder", ["bn"], tmp_path, Bench(tmp_path, lambda s: s.lr), seeds=2)
    assert summary.chosen == {"lr": 0.001} and summary.finals == [0.001, 0.001]


STORAGES = ["study.log", "sqlite:///{}/study.db"]


@pytest.mark.parametrize("storage", STORAGES)
def test_workers_share_a_sweep(storage: str, tmp_path: Path) -> None:
    """Four workers in threads of one process, each with its own storage: nothing is run twice."""
    place = storage.format(tmp_path) if "://" in storage else str(tmp_path / storage)
    bench = Bench(tmp_path, at_best, seconds=0.05)
    sweep(
        "cifar10-fc", ["bn"], tmp_path / "x", bench, storage=place, seeds=1, overrides={"depth": 1}
    )  # makes tables
    first, found = len(bench.runs), []

    def work() -> None:
        found.append(
            sweep("cifar10-fc", ["bn", "enorm"], tmp_path, bench, storage=place, seeds=2, heartbeat=8)
        )

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runs = bench.runs[first:]
    assert len(found) == 4 and all(other == found[0] for other in found)
    assert sorted(runs) == sorted(set(runs)) and len(runs) == 2 * (6 + 2)


@pytest.mark.parametrize("storage", STORAGES)
def test_a_dead_workers_trial_is_retried(storage: str, tmp_path: Path) -> None:
    place = storage.format(tmp_path) if "://" in storage else str(tmp_path / storage)

    def dying(settings: Settings) -> float | None:
        if settings.lr == 0.01:
            os.kill(os.getpid(), signal.SIGKILL)
        return settings.lr

    arguments: dict[str, Any] = {"storage": place, "seeds": 1, "heartbeat": 1}
    assert killed(lambda: sweep("mnist-autoencoder", ["bn"], tmp_path, Bench(tmp_path, dying), **arguments))
    dead, waits = Bench(tmp_path, dying).runs, []
    bench = Bench(tmp_path, lambda s: s.lr)
    (summary,) = sweep("mnist-autoencoder", ["bn"], tmp_path, bench, **arguments, say=waits.append)
    assert summary.chosen == {"lr": 0.001} and len(summary.search) == 3
    assert sorted(bench.runs) == sorted([*set(bench.runs), dead[-1]]), (
        "only the dead worker's trial ran twice"
    )
    assert len(waits) <= 1


@pytest.mark.parametrize("storage", STORAGES)
def test_a_worker_taken_for_dead_that_lives(storage: str, tmp_path: Path) -> None:
    """Its trial is failed by others while it trains; its result counts when the trial is retried."""
    place = storage.format(tmp_path) if "://" in storage else str(tmp_path / storage)
    wronged: list[float] = []

    def value(settings: Settings) -> float | None:
        if settings.lr == 0.01 and not wronged:
            wronged.append(settings.lr)
            opened = open_storage(place, 1)
            study = opened.get_all_studies()[0]._study_id
            (running,) = opened.get_all_trials(study, states=(TrialState.RUNNING,))
            opened.set_trial_state_values(running._trial_id, TrialState.FAIL)
        return settings.lr

    bench = Bench(tmp_path, value)
    (summary,) = sweep("mnist-autoencoder", ["bn"], tmp_path, bench, storage=place, seeds=1, heartbeat=1)
    assert wronged and summary.chosen == {"lr": 0.001} and len(summary.search) == 3


def test_a_folder_in_use_is_waited_for(tmp_path: Path) -> None:
    """Which happens to the one that retries such a trial."""
    refusals: list[float] = []

    def value(settings: Settings) -> float | None:
        if settings.lr == 0.01 and len(refusals) < 2:
            refusals.append(settings.lr)
            raise Busy("another process is training here")
        return settings.lr

    waits: list[str] = []
    (summary,) = sweep(
        "mnist-autoencoder", ["bn"], tmp_path, Bench(tmp_path, value), seeds=1, heartbeat=1, say=waits.append
    )
    assert len(refusals) == 2 and waits and summary.finals == [0.001] and len(summary.search) == 3


def test_a_worker_killed_while_training(data: Path, tmp_path: Path) -> None:
    """Another one, that shares the sweep, goes on with the training from its checkpoint."""
    out = tmp_path / "out"
    going_on = tmp_path / "going on"

    def run(settings: Settings, folder: Path) -> Result:
        if (folder / "checkpoint.pt").exists():
            going_on.write_text(folder.name)
        return train(settings, folder, data_dir=data / "mnist", quiet=True)

    def work() -> object:
        overrides = {"epochs": 12, "batch_size": 8}
        grids = {"lr": [0.01, 0.1]}
        return sweep(
            "mnist-autoencoder", ["bn"], out, run, seeds=1, overrides=overrides, grids=grids, heartbeat=1
        )

    victim = forked(work)
    while not any(path.read_text() for path in out.rglob("metrics.jsonl")):
        time.sleep(0.01)
    survivor = forked(work)
    os.kill(victim, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(victim, 0)[1]) and os.waitpid(survivor, 0)[1] == 0
    results = [Result.read(path) for path in out.rglob("result.json")]
    assert len(results) == 2 + 1 and all(len(result.history) == 12 for result in results)
    assert going_on.exists() and (out / "sweep.json").exists()


def test_the_command(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sweep", "mnist-autoencoder", "--methods", "baseline,bn", "--lr", "0.01,1e4", "--seeds", "2"]
    arguments += ["--epochs", "1", "--batch-size", "16", "--data-dir", str(data / "mnist"), "--quiet"]
    assert cli([*arguments, "--output", str(tmp_path / "out"), "--storage", str(tmp_path / "study.log")]) == 0
    out, err = capsys.readouterr()
    assert err == "" and f"wrote {tmp_path / 'out' / 'sweep.json'}" in out
    assert "train squared error" in out and out.count("lr 0.01") == 2 and out.count("±") == 2
    assert (tmp_path / "study.log").exists() and not (tmp_path / "out" / "study.log").exists()


def test_a_journal_on_a_full_disk(tmp_path: Path) -> None:
    """It is named; what was left half-written does not spoil what is written when there is room again."""
    journal, (soft, hard) = tmp_path / "study.log", resource.getrlimit(resource.RLIMIT_FSIZE)

    def filling(settings: Settings) -> float | None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (journal.stat().st_size + 20, hard))
        return settings.lr

    try:
        with pytest.raises(EquinormError, match=r"study\.log: cannot be written \(File too large\)"):
            sweep("mnist-autoencoder", ["bn"], tmp_path, Bench(tmp_path, filling), heartbeat=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not journal.read_bytes().endswith(b"\n")
    bench = Bench(tmp_path, lambda s: s.lr)
    (summary,) = sweep("mnist-autoencoder", ["bn"], tmp_path, bench, seeds=1, heartbeat=1)
    assert len(summary.search) == 3 and summary.finals == [0.001]


def test_a_lock_that_a_killed_worker_left_can_be_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optuna asks for the age of what the lock, a link, leads to; by a relative path it would wait for ever."""
    monkeypatch.chdir(tmp_path)
    lock = open_storage("below/study.log", 1)._backend._lock
    lock.acquire()
    (link,) = [path for path in (tmp_path / "below").iterdir() if path.is_symlink()]
    assert link.resolve().samefile(tmp_path / "below" / "study.log")
    lock.release()


ERRORS = [
    (("--methods", "bn,enrom"), "did you mean enorm"),
    (("--methods", "bn,bn"), "name each once"),
    (("--methods", "bn", "--lr", "0.1,x"), "--lr 0.1,x: expected a number"),
    (("--methods", "bn", "--lr", "0.1,-1"), "lr=-1.0"),
    (("--methods", "bn", "--c", "1.2"), "method bn has no c"),
    (("--methods", "bn", "--depth", "3"), "has no depth"),
    (("--methods", "bn", "--storage", "redis://host/0"), "use postgresql://"),
    (("--methods", "bn", "--storage", "sqlite:////nowhere/study.db"), "cannot be opened"),
    (("--methods", "bn", "--storage", "file/study.log"), "cannot be written"),
    (("--methods", "bn", "--storage", "file"), "not a journal of Optuna"),
]


@pytest.mark.parametrize(("arguments", "text"), ERRORS, ids=[e[1] for e in ERRORS])
def test_errors_are_one_line(
    arguments: tuple[str, ...],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("a file\n")
    assert cli(["sweep", "mnist-autoencoder", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("equinorm: ") and text in err, err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_not_under_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(EquinormError, match="not under torchrun"):
        sweep("mnist-autoencoder", ["bn"], tmp_path, Bench(tmp_path, at_best))
