"""The folder of one run: config.json, metrics.jsonl, checkpoint.pt, result.json.

The checkpoint holds everything, the finished epochs' metrics too. Whatever the moment at which a run was killed, the
checkpoint is that of the last finished epoch, and metrics.jsonl is written anew from it.
"""

from __future__ import annotations

import fcntl
import json
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

import equinorm
from equinorm.checkpoint import write_atomically
from equinorm.errors import ArgumentError, EquinormError
from equinorm.experiments import provenance
from equinorm.experiments.recipes import Settings
from equinorm.experiments.result import Result, Row, read_json, write_json

FORMAT = 1
"""Of checkpoints; to be raised when their contents change."""


class Busy(EquinormError):
    """Another process is training in the folder."""


class Folder:
    """Reads and writes the files of one run, and refuses those of another.

    Args:
        path: the folder, made when something is written.
        settings: of the run.
        data: what identifies its data.
        processes: how many train it.
    """

    def __init__(self, path: Path, settings: Settings, data: dict[str, Any], processes: int) -> None:
        self.path = path
        self._identity = {
            **asdict(settings),
            **data,
            "processes": processes,
            "equinorm": equinorm.__version__,
        }
        self._metrics, self._checkpoint = path / "metrics.jsonl", path / "checkpoint.pt"

    def result(self) -> Result | None:
        """The finished result, if the run has ended before."""
        config, result = self.path / "config.json", self.path / "result.json"
        if config.exists():
            self._check(config, read_json(config).get("run", {}))
        if not result.exists():
            return None
        ended = Result.read(result)
        self._check(result, {**self._identity, **asdict(ended.settings)})
        return ended

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and keep other processes out of it; a killed process holds no lock."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("ab")
        except OSError as error:
            raise EquinormError(f"{self.path}: cannot be written ({error.strerror})") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy(f"{self.path}: another process is training here; wait for it") from None
            except OSError as error:
                raise EquinormError(f"{self.path}: cannot be locked ({error.strerror})") from error
            for left_over in self.path.glob(".*-*"):  # half-written files of a killed process
                left_over.unlink(missing_ok=True)
            yield

    def start(self, history: Sequence[Row]) -> None:
        """Write config.json, and the metrics of the epochs that are already done."""
        config = {"run": self._identity, "versions": provenance.versions(), "commit": provenance.commit()}
        write_json(self.path / "config.json", config)
        lines = "".join(_line(row) for row in history)
        write_atomically(self._metrics, lambda temporary: temporary.write_text(lines, encoding="utf-8"))

    def checkpoint(self) -> dict[str, Any] | None:
        """The state after the last finished epoch, if there is one; never unpickles code."""
        if not self._checkpoint.exists():
            return None
        try:
            state = torch.load(self._checkpoint, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise self._unreadable("damaged, or holding pickled code, which is not run") from error
        except Exception as error:  # torch.load raises nearly anything on damaged bytes
            raise self._unreadable("damaged") from error
        found = state.get("format") if isinstance(state, dict) else None
        if not isinstance(state, dict) or found != FORMAT:
            raise self._unreadable(f"of format {found}, not {FORMAT}: another version of equinorm wrote it")
        self._check(self._checkpoint, state.get("run", {}))
        return state

    @contextmanager
    def understood(self) -> Iterator[None]:
        """Say so if what the checkpoint holds is not what a training wants to go on from."""
        try:
            yield
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError, ArgumentError) as error:
            reason = (str(error).splitlines() or [""])[0]
            raise self._unreadable(f"not of this training ({type(error).__name__}: {reason})") from error

    def save(self, state: dict[str, Any], row: Row) -> None:
        """Write the checkpoint after an epoch, and add the epoch's metrics."""
        content = {"format": FORMAT, "run": self._identity, **state}
        write_atomically(self._checkpoint, partial(_save, content))
        try:
            with self._metrics.open("a", encoding="utf-8") as file:
                file.write(_line(row))
        except OSError as error:
            raise EquinormError(f"{self._metrics}: cannot be written ({error.strerror})") from error

    def finish(self, result: Result) -> None:
        """Write result.json."""
        result.write(self.path / "result.json")

    def _check(self, path: Path, run: dict[str, Any]) -> None:
        for name, wanted in self._identity.items():
            if name not in run:
                raise ArgumentError(f"{path}: of another version of equinorm (no {name}); use another folder")
            if run[name] != wanted:
                raise ArgumentError(
                    f"{path}: of a run with {name}={run[name]!r}, not {wanted!r}; use another folder, or delete it"
                )

    def _unreadable(self, why: str) -> ArgumentError:
        return ArgumentError(f"{self._checkpoint}: is {why}; delete it to start again")


def _save(content: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # torch's own, in the place of what the disk says
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def _line(row: Row) -> str:
    return json.dumps(row, allow_nan=False) + "\n"
