"""Small runs of the paper's recipes on data that the tests make, and the comparison of two of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import vision  # noqa: F401 (before torchvision)
from tiny_data import write_cifar10, write_image_folder, write_mnist

import equinorm
from equinorm.experiments.recipes import RECIPES, Settings, settings

HERE = Path(__file__).parent
SMALL: dict[str, dict[str, Any]] = {
    "mnist-autoencoder": {"batch_size": 16},
    "cifar10-fc": {"batch_size": 16, "depth": 1},
    "cifar10-conv": {"batch_size": 4, "crop": 12, "limit": 8},
    "imagenet-resnet18": {"batch_size": 4, "crop": 32},
    "imagenet-resnet50": {"batch_size": 4, "crop": 32},
}
"""What makes an epoch of each recipe a few steps."""


def write_data(folder: Path) -> Path:
    """All data sets, each in a folder of its name."""
    write_mnist(folder / "mnist", 40, 20)
    write_cifar10(folder / "cifar10", 8, 10)
    write_image_folder(folder / "imagenet", 3, 4, 2)
    return folder


def small(recipe: str, method: str, **overrides: Any) -> Settings:
    return settings(recipe, method, **{"epochs": 1, **SMALL[recipe], **overrides})


def data_of(recipe: str, data: Path) -> dict[str, Any]:
    """The arguments of ``train`` for a recipe's data, without progress."""
    return {"data_dir": data / RECIPES[recipe].dataset, "workers": 0, "quiet": True}


def state(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(folder / "checkpoint.pt", weights_only=True)
    return content


def assert_same_run(found: Path, wanted: Path) -> None:
    """Two runs ended with the same bits, in weights, optimizer, companion and metrics, but for the clock."""
    _assert_same(_timeless(state(found)), _timeless(state(wanted)), "checkpoint")
    lines = [
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (found, wanted)
    ]
    _assert_same(_timeless(lines[0]), _timeless(lines[1]), "metrics")
    results = [json.loads((run / "result.json").read_text()) for run in (found, wanted)]
    _assert_same(_timeless(results[0]), _timeless(results[1]), "result")
    assert len(lines[0]) == len(results[0]["history"])


def _timeless(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _timeless(value) for key, value in content.items() if key != "seconds"}
    return [_timeless(value) for value in content] if isinstance(content, list) else content


def _assert_same(found: Any, wanted: Any, where: str) -> None:
    assert type(found) is type(wanted), where
    if isinstance(wanted, torch.Tensor):
        assert torch.equal(found, wanted), where
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), where
        for key in wanted:
            _assert_same(found[key], wanted[key], f"{where}.{key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for k, value in enumerate(wanted):
            _assert_same(found[k], value, f"{where}[{k}]")
    else:
        assert found == wanted, where


def environment() -> dict[str, str]:
    """For a process that runs this code: one thread, this package, the tests' modules."""
    source = str(Path(equinorm.__file__).parents[1])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([source, str(HERE)])}


def command(*arguments: object, ranks: int = 0) -> list[str]:
    """The ``equinorm`` command in a process of its own, or in several started by torchrun."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
    return [sys.executable, *launch, str(HERE / "experiment_cli.py"), *map(str, arguments)]


def run(*arguments: object, ranks: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments, ranks=ranks), env=environment(), capture_output=True, text=True, timeout=300, cwd=cwd
    )  # fmt: skip


def killed(work: Callable[[], object]) -> bool:
    """Do it in a forked process; whether that was killed, not ended."""
    _, status = os.waitpid(forked(work), 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the work failed"
    return os.WIFSIGNALED(status)


def on_ranks(size: int, work: Callable[[], object]) -> None:
    """Do it in as many forked processes, with the environment that torchrun gives: quicker than torchrun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    children = [forked(work, {**master, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(size)]
    assert [_status(child) for child in children] == [0] * size


def _status(child: int, seconds: float = 120.0) -> int:
    """How a forked process ended; one that waits for ever is killed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def forked(work: Callable[[], object], variables: Mapping[str, str] = MappingProxyType({})) -> int:
    """Start it in a forked process; returns its number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from Python 3.12
        child = os.fork()
    if child:
        return child
    os.environ.update(variables)
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
