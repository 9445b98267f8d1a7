"""A run killed at any moment, and started again, ends with the bits of one that was not."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

import pytest
import torch
from experiment_runs import (
    assert_same_run,
    command,
    data_of,
    environment,
    killed,
    on_ranks,
    run,
    small,
    state,
    write_data,
)
from tiny_data import write_image_folder, write_mnist

from equinorm.cli import run as cli
from equinorm.errors import EquinormError
from equinorm.experiments import folder as folders
from equinorm.experiments.data import fingerprint
from equinorm.experiments.recipes import Settings
from equinorm.experiments.train import train
from equinorm.experiments.trainer import Trainer


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(target: object, name: str, number: int, before: bool = True) -> Any:
    """Patches a function to be the last thing that happens: killed before or after its call of that number."""
    original: Callable[..., Any] = getattr(target, name)
    calls = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and before:
            die()
        result = original(*args, **kwargs)
        if calls == number:
            die()
        return result

    return patch.object(target, name, counted)


def half_written(content: object, file: IO[bytes]) -> None:
    file.write(b"half of a checkpoint")
    file.flush()
    die()


# 3 epochs of 3 steps; before the first checkpoint, config.json and metrics.jsonl are put in place.
MOMENTS: dict[str, Callable[[], Any]] = {
    "first step": lambda: at_call(Trainer, "_step", 1),
    "middle of the second epoch": lambda: at_call(Trainer, "_step", 5),
    "evaluation": lambda: at_call(Trainer, "_evaluated", 2),
    "config.json not yet in place": lambda: at_call(os, "replace", 1),
    "first checkpoint not yet in place": lambda: at_call(os, "replace", 3),
    "second checkpoint not yet in place": lambda: at_call(os, "replace", 4),
    "checkpoint in place, metrics not yet": lambda: at_call(os, "replace", 4, before=False),
    "metrics written": lambda: at_call(folders.Folder, "save", 2, before=False),
    "half of a checkpoint": lambda: patch.object(torch, "save", half_written),
    "result not yet in place": lambda: at_call(os, "replace", 6),
    "result in place": lambda: at_call(folders.Folder, "finish", 1, before=False),
}
METHODS = {
    # what must be carried over: momentum and scales; batch statistics; log-scales; gains and directions
    "enorm": {"momentum": 0.9},
    "enorm+bn": {},
    "enorm-impl": {"momentum": 0.9},
    "wn+bn": {"momentum": 0.9},
}


def three_epochs(method: str) -> Settings:
    return small("cifar10-fc", method, epochs=3, **METHODS[method])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, data: Path) -> dict[str, Path]:
    runs = {method: tmp_path_factory.mktemp("whole") / method for method in METHODS}
    for method, folder in runs.items():
        train(three_epochs(method), folder, **data_of("cifar10-fc", data))
    return runs


CASES = [("enorm", moment) for moment in MOMENTS] + [
    (m, "middle of the second epoch") for m in METHODS if m != "enorm"
]


@pytest.mark.parametrize(("method", "moment"), CASES)
def test_killed_and_resumed(
    method: str, moment: str, data: Path, tmp_path: Path, uninterrupted: dict[str, Path]
) -> None:
    def work() -> object:
        return train(three_epochs(method), tmp_path / "run", **data_of("cifar10-fc", data))

    with MOMENTS[moment]():
        assert killed(work)
    work()
    assert_same_run(tmp_path / "run", uninterrupted[method])
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "checkpoint.pt", "config.json", "lock", "metrics.jsonl", "result.json",
    ]  # fmt: skip


def test_killed_again_and_again(data: Path, tmp_path: Path, uninterrupted: dict[str, Path]) -> None:
    """Every process gets four steps further than the last checkpoint's three: one epoch each."""

    def work() -> object:
        return train(three_epochs("enorm"), tmp_path / "run", **data_of("cifar10-fc", data))

    with at_call(Trainer, "_step", 4):
        assert [killed(work) for _ in range(3)] == [True, True, False]
    assert_same_run(tmp_path / "run", uninterrupted["enorm"])


def test_two_ranks_killed_and_resumed(data: Path, tmp_path: Path) -> None:
    """With the running statistics of each rank's own batch norms, and crops drawn by rank."""
    wanted = small("cifar10-conv", "enorm+bn", epochs=2)

    def work(name: str) -> object:
        return train(wanted, tmp_path / name, **data_of("cifar10-conv", data))

    on_ranks(2, lambda: work("whole"))
    with at_call(Trainer, "_step", 3), pytest.raises(AssertionError):
        on_ranks(2, lambda: work("run"))
    assert state(tmp_path / "run")["epoch"] == 1
    on_ranks(2, lambda: work("run"))
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_processes_that_see_different_checkpoints_do_not_wait_for_ever(data: Path, tmp_path: Path) -> None:
    """As on several machines without a common folder, of which one was new."""
    wanted = small("cifar10-fc", "bn", epochs=2)

    def work(folder: str) -> None:
        train(wanted, tmp_path / folder, **data_of("cifar10-fc", data))

    def apart() -> None:
        with pytest.raises(EquinormError, match="do not see the same checkpoint"):
            work(os.environ["RANK"])

    with at_call(Trainer, "_step", 5), pytest.raises(AssertionError):
        on_ranks(2, lambda: work("0"))
    assert state(tmp_path / "0")["epoch"] == 1
    on_ranks(2, apart)


def test_the_command_killed_from_outside(data: Path, tmp_path: Path) -> None:
    arguments = ["train", "mnist-autoencoder", "--method", "enorm+bn", "--epochs", 6, "--batch-size", 4]
    arguments += ["--data-dir", data / "mnist", "--output"]
    metrics = tmp_path / "run" / "metrics.jsonl"
    with subprocess.Popen(
        command(*arguments, tmp_path / "run"), env=environment(), stderr=subprocess.DEVNULL
    ) as process:
        while not metrics.exists() or not metrics.read_text():
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    lines = len(metrics.read_text().splitlines())
    done = run(*arguments, tmp_path / "run")
    assert done.returncode == 0 and done.stdout.startswith("finished"), done.stderr
    if lines < 6:
        assert "going on after epoch" in done.stderr and len(done.stderr.splitlines()) <= 1 + 6 - lines + 1
    assert cli([*map(str, arguments), str(tmp_path / "whole"), "--quiet"]) == 0
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def finished(data: Path, folder: Path) -> Settings:
    wanted = small("cifar10-fc", "enorm")
    train(wanted, folder, **data_of("cifar10-fc", data))
    return wanted


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"lr": 0.2}, "of a run with lr=0.01, not 0.2"),
        ({"epochs": 2}, "of a run with epochs=1, not 2"),
        ({"seed": 1}, "of a run with seed=0, not 1"),
        ({"limit": 30}, "of a run with limit=None, not 30"),
    ],
)
def test_another_run_in_the_same_folder_is_refused(
    overrides: dict[str, Any], text: str, data: Path, tmp_path: Path
) -> None:
    finished(data, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(EquinormError, match=text):
        train(small("cifar10-fc", "enorm", **overrides), tmp_path, **data_of("cifar10-fc", data))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_other_data_are_refused(data: Path, tmp_path: Path) -> None:
    wanted = finished(data, tmp_path)
    with pytest.raises(EquinormError, match=r"data='CIFAR-10.* 40 training .*, not .*digits"):
        train(wanted, tmp_path, quiet=True)


def test_other_data_of_the_same_size_are_refused(data: Path, tmp_path: Path) -> None:
    """The digits that stand in for CIFAR-10 must not get its result."""
    wanted = small("cifar10-fc", "bn", limit=5)
    train(wanted, tmp_path, **data_of("cifar10-fc", data))
    with pytest.raises(EquinormError, match=r"5 training and 1 test .* 5 training and 1 test"):
        train(wanted, tmp_path, quiet=True)


def test_other_images_of_the_same_number_are_refused(data: Path, tmp_path: Path) -> None:
    wanted = small("mnist-autoencoder", "bn")
    for seed in (0, 1):
        write_mnist(tmp_path / str(seed), seed=seed)
    train(wanted, tmp_path / "run", data_dir=tmp_path / "0", quiet=True)
    with pytest.raises(EquinormError, match="data's fingerprint"):
        train(wanted, tmp_path / "run", data_dir=tmp_path / "1", quiet=True)


def test_other_files_of_the_same_number_are_refused(tmp_path: Path) -> None:
    for name, size in (("a", 40), ("b", 44)):
        write_image_folder(tmp_path / name, size=size)
    found = [fingerprint("imagenet", tmp_path / name) for name in ("a", "b", "a")]
    assert found[0] == found[2] != found[1]


def recipe_changed(content: dict[str, Any]) -> None:
    content["run"]["recipe"] = "cifar10-conv"


def version_changed(content: dict[str, Any]) -> None:
    content["format"] = 0


def settings_missing(content: dict[str, Any]) -> None:
    del content["run"]["cycles"]


def run_missing(content: dict[str, Any]) -> None:
    del content["run"]


def history_missing(content: dict[str, Any]) -> None:
    del content["history"]


def weight_missing(content: dict[str, Any]) -> None:
    content["model"].popitem()


def companion_empty(content: dict[str, Any]) -> None:
    content["companion"] = {}


def library_changed(content: dict[str, Any]) -> None:
    content["run"]["equinorm"] = "0.0.1"


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran",)


def code_inside(content: dict[str, Any]) -> None:
    content["model"] = Code()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (recipe_changed, "recipe='cifar10-conv', not 'cifar10-fc'"),
        (version_changed, "format 0, not 1"),
        (settings_missing, "no cycles"),
        (library_changed, "equinorm='0.0.1', not"),
        (run_missing, "another version of equinorm"),
        (history_missing, "not of this training .KeyError: 'history'.; delete it to start again"),
        (weight_missing, "not of this training .RuntimeError: .*; delete it"),
        (companion_empty, "not of this training .*; delete it"),
        (code_inside, "pickled code, which is not run"),
    ],
)
def test_a_checkpoint_from_elsewhere_is_refused(
    change: Callable[[dict[str, Any]], None],
    text: str,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = finished(data, tmp_path)
    (tmp_path / "result.json").unlink()
    content = state(tmp_path)
    change(content)
    torch.save(content, tmp_path / "checkpoint.pt")
    with pytest.raises(EquinormError, match=rf"checkpoint\.pt: .*{text}"):
        train(wanted, tmp_path, **data_of("cifar10-fc", data))
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", ["checkpoint.pt", "config.json", "result.json"])
@pytest.mark.parametrize("content", [b"", b"{]", b"[]", b"{}"])
def test_damaged_files_are_named(name: str, content: bytes, data: Path, tmp_path: Path) -> None:
    wanted = finished(data, tmp_path)
    if name != "result.json":
        (tmp_path / "result.json").unlink()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(EquinormError, match=name):
        train(wanted, tmp_path, **data_of("cifar10-fc", data))


def test_one_process_at_a_time(data: Path, tmp_path: Path) -> None:
    wanted = small("cifar10-fc", "bn")
    other = folders.Folder(tmp_path, wanted, {}, 1)
    with other.locked(), pytest.raises(EquinormError, match="another process is training here"):
        train(wanted, tmp_path, **data_of("cifar10-fc", data))
    assert train(wanted, tmp_path, **data_of("cifar10-fc", data)).status == "finished"
