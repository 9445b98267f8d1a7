"""``Grid``: the points of a grid as trials of one Optuna study that any number of workers share."""

from __future__ import annotations

import contextlib
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from equinorm.experiments.extra import require
from equinorm.experiments.folder import Busy
from equinorm.experiments.storage import GRACE

Point = dict[str, Any]
BORN = "born"
"""The attribute that says that a trial's worker has given a sign of life: its number, as retries copy attributes."""


class Grid:
    """Evaluates every point once, whatever happens to the workers.

    Optuna's grid sampler hands out the points, and its heartbeats find the trials of dead workers. What is added
    here: a worker runs nothing twice when only others' trials are left, and a trial that failed is put back.

    Args:
        storage: see ``open_storage``.
        name: of the study; the same name means the same study.
        space: the values of each setting.
        maximize: whether larger values are better.
        evaluate: runs a point; None means that it diverged, which is worse than any value.
        about: recorded with the study.
    """

    def __init__(
        self,
        storage: Any,
        name: str,
        space: Mapping[str, Sequence[Any]],
        maximize: bool,
        evaluate: Callable[[Point], float | None],
        about: Mapping[str, Any],
    ) -> None:
        self._optuna, self._storage = require("optuna"), storage
        self._optuna.logging.set_verbosity(self._optuna.logging.ERROR)
        self._space, self._evaluate = dict(space), evaluate
        self._size = math.prod(map(len, self._space.values()))
        self._worst = -math.inf if maximize else math.inf
        self._study = self._optuna.create_study(
            storage=storage,
            study_name=name,
            sampler=self._optuna.samplers.GridSampler(self._space, seed=0),
            direction="maximize" if maximize else "minimize",
            load_if_exists=True,
        )
        for key, value in about.items():
            if self._study.user_attrs.get(key) != value:
                self._study.set_user_attr(key, value)

    def values(self) -> list[tuple[Point, float | None]]:
        """The points that were evaluated, best first; None for those that diverged."""
        found: dict[int, tuple[Point, float]] = {}
        for trial in self._trials():
            if trial.state == self._optuna.trial.TrialState.COMPLETE:
                found.setdefault(self._point_of(trial), (trial.params, trial.value))
        sign = -1 if self._worst < 0 else 1
        ranked = sorted(
            found.values(), key=lambda pair: (sign * pair[1], json.dumps(pair[0], sort_keys=True))
        )
        return [(point, value if math.isfinite(value) else None) for point, value in ranked]

    def finished(self) -> bool:
        """Whether every point was evaluated."""
        return len(self.values()) == self._size

    def advance(self) -> bool:
        """Run one trial; False if there is none to run, as others are running what is left."""
        states = self._optuna.trial.TrialState
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            self._optuna.storages.fail_stale_trials(self._study)
            self._fail_unborn()
            self._retry_failed()
            trials = self._trials()
            waiting = any(trial.state == states.WAITING for trial in trials)
            if not waiting and len({self._point_of(trial) for trial in trials}) >= self._size:
                return False
            return self._run_trial()

    def _run_trial(self) -> bool:
        """Run the next trial; False if it turns out to be run by a worker that was taken for dead, but lives."""
        self._busy = self._given_up = False
        try:
            self._study.optimize(self._objective, n_trials=1)
        except ValueError:  # Optuna's "Cannot tell a FAIL trial"
            if not self._given_up:
                raise
        except AssertionError as error:  # Optuna's "Should not reach", in the place of what the storage says
            if error.__context__ is not None:
                raise error.__context__ from None
            raise
        return not self._busy

    def _trials(self) -> list[Any]:
        return list(self._study.get_trials(deepcopy=False))

    def _point_of(self, trial: Any) -> int:
        """The sampler's number of a trial's point: that of the trial while there are points without one."""
        return int(trial.system_attrs.get("grid_id", trial.number))

    def _fail_unborn(self) -> None:
        """Optuna's databases never find a worker dead that died before its first sign of life."""
        states = self._optuna.trial.TrialState
        long_ago = datetime.now() - timedelta(seconds=GRACE * self._storage.get_heartbeat_interval())
        for trial in self._trials():
            unborn = trial.state == states.RUNNING and trial.user_attrs.get(BORN) != trial.number
            if unborn and trial.datetime_start < long_ago:
                with contextlib.suppress(self._optuna.exceptions.UpdateFinishedTrialError):
                    self._storage.set_trial_state_values(trial._trial_id, states.FAIL)

    def _retry_failed(self) -> None:
        """Queue again what has failed: interrupted, or its worker died between noticing a dead one and acting."""
        states = self._optuna.trial.TrialState
        by_point: dict[int, list[Any]] = {}
        for trial in self._trials():
            by_point.setdefault(self._point_of(trial), []).append(trial)
        for trials in by_point.values():
            if all(trial.state in (states.FAIL, states.PRUNED) for trial in trials):
                self._optuna.storages.RetryHeartbeatStaleTrialCallback()(self._study, trials[-1])

    def _objective(self, trial: Any) -> float:
        self._storage.record_heartbeat(trial._trial_id)
        trial.set_user_attr(BORN, trial.number)
        point = {name: trial.suggest_categorical(name, values) for name, values in self._space.items()}
        if self._taken(trial):
            raise self._optuna.TrialPruned
        try:
            value = self._evaluate(point)
        except Busy:
            self._busy = True
            raise self._optuna.TrialPruned from None
        # Others may have taken this worker for dead: Optuna refuses the value then, and the retry finds the result.
        if self._study.trials[trial.number].state != self._optuna.trial.TrialState.RUNNING:
            self._given_up = True
            raise self._optuna.TrialPruned
        return self._worst if value is None else value

    def _taken(self, trial: Any) -> bool:
        """Two workers may start the last point at once: the earlier trial keeps it."""
        states = self._optuna.trial.TrialState
        mine = self._point_of(self._study.trials[trial.number])
        return any(
            self._point_of(other) == mine
            and (
                other.state == states.COMPLETE
                or (other.state == states.RUNNING and other.number < trial.number)
            )
            for other in self._trials()
        )
