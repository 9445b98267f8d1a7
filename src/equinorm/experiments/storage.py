"""Where a sweep keeps its state: a journal file, or a database for many machines. Both know which workers are alive.

Optuna gives databases a heartbeat, but its journal files none (as of Optuna 5). ``Journal`` adds the one that
Optuna's own loop then uses: the time of the last sign of life, as an attribute of the trial.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from equinorm.errors import ArgumentError, EquinormError
from equinorm.experiments.extra import require

GRACE = 2
"""Heartbeats that may be missed before a worker is taken for dead."""
SCHEMES = ("postgresql", "mysql", "sqlite")
BEAT = "heartbeat"


def open_storage(place: str, heartbeat: int) -> Any:
    """An Optuna storage for a URL (postgresql://, mysql://, sqlite://) or the path of a journal file.

    Args:
        place: the URL or path.
        heartbeat: seconds between a worker's signs of life.
    """
    optuna = require("optuna")
    retry = optuna.storages.RetryHeartbeatStaleTrialCallback
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if "://" not in place:
            return _journal(optuna, Path(place), heartbeat, retry())
        if place.partition("://")[0].partition("+")[0] not in SCHEMES:
            raise ArgumentError(
                f"storage {place}: use {', '.join(f'{s}://…' for s in SCHEMES)} or a file's path"
            )
        try:
            return optuna.storages.RDBStorage(
                place,
                heartbeat_interval=heartbeat,
                grace_period=GRACE * heartbeat,
                heartbeat_stale_trial_callback=retry(),
            )
        except Exception as error:  # of SQLAlchemy, of the database's driver, of Optuna
            reason = str(error).strip().splitlines()[0]
            raise EquinormError(f"storage {place}: cannot be opened ({reason})") from error


def _journal(optuna: Any, path: Path, heartbeat: int, retry: Callable[..., None]) -> Any:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            file.seek(0)
            first = file.readline()
        if first and "op_code" not in json.loads(first):  # Optuna would notice only after adding to it
            raise ValueError("its first line is none of Optuna's")
        return _journal_class(optuna)(_backend(optuna, path.resolve()), heartbeat, retry)
    except OSError as error:
        raise EquinormError(f"storage {path}: cannot be written ({error.strerror})") from error
    except (ValueError, KeyError) as error:
        raise ArgumentError(
            f"storage {path}: not a journal of Optuna ({error}); name another file"
        ) from error


def _backend(optuna: Any, path: Path) -> Any:
    """The journal's file, by its absolute path: a lock that a killed worker left is a link, and would lead nowhere."""

    class Backend(optuna.storages.journal.JournalFileBackend):  # type: ignore[misc]
        """Names the file that cannot be written."""

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            """Write to the file's end."""
            try:
                super().append_logs(logs)
            except OSError as error:
                raise EquinormError(f"storage {path}: cannot be written ({error.strerror})") from error

    lock = optuna.storages.journal.JournalFileSymlinkLock(str(path))
    lock.acquire()
    try:  # nobody is writing now: a line without an end is what a full disk left of one, and would spoil the next
        content = path.read_bytes()
        if not content.endswith(b"\n"):
            os.truncate(path, content.rfind(b"\n") + 1)
    finally:
        lock.release()
    return Backend(str(path), lock)


def _journal_class(optuna: Any) -> Any:
    """The class is made here because its bases are an optional package's."""
    from optuna.storages._heartbeat import BaseHeartbeat  # Optuna exports it nowhere else

    class Journal(optuna.storages.JournalStorage, BaseHeartbeat):  # type: ignore[misc]
        """A journal file with signs of life."""

        def __init__(self, backend: Any, heartbeat: int, retry: Callable[..., None]) -> None:
            super().__init__(backend)
            self._heartbeat, self._retry = heartbeat, retry

        def record_heartbeat(self, trial_id: int) -> None:
            """Note that the trial's worker is alive."""
            # Taken for dead, it ends without being heard; on a full disk, what it writes next says so.
            with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError, EquinormError):
                self.set_trial_system_attr(trial_id, BEAT, time.time())

        def _get_stale_trial_ids(self, study_id: int) -> list[int]:
            running = self.get_all_trials(study_id, states=(optuna.trial.TrialState.RUNNING,))
            deadline = time.time() - GRACE * self._heartbeat
            return [trial._trial_id for trial in running if _last_sign(trial) < deadline]

        def get_heartbeat_interval(self) -> int | None:
            """Seconds between signs of life."""
            return self._heartbeat

        def get_heartbeat_stale_trial_callback(self) -> Callable[..., None]:
            """Put a dead worker's trial back into the queue."""
            return self._retry

    return Journal


def _last_sign(trial: Any) -> float:
    """A retried trial carries its predecessor's attributes, so its own start counts, too."""
    started = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
    return max(started, float(trial.system_attrs.get(BEAT, 0.0)))
