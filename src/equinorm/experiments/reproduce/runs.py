"""The runs that all figures and tables share: each set of settings is trained once.

results/.work/KEY/          config, metrics and checkpoint of a run; git ignores it
results/NAME/runs/KEY.json  a finished run, beside every figure and table that shows it
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict

from equinorm.experiments.recipes import Settings
from equinorm.experiments.reproduce.experiment import Request
from equinorm.experiments.reproduce.results import RUNS, prepare, write_text
from equinorm.experiments.result import Result
from equinorm.experiments.train import train

WORK = ".work"


class Runs:
    """Trains what is not yet trained, for one request. Under torchrun every process has one; the first writes."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._results: dict[str, Result] = {}
        self._writes = os.environ.get("RANK", "0") == "0"

    @property
    def files(self) -> tuple[str, ...]:
        """What is now in the request's runs/ folder because of it."""
        return tuple(f"{key}.json" for key in self._results)

    @property
    def results(self) -> tuple[Result, ...]:
        """Every result so far."""
        return tuple(self._results.values())

    def run(self, settings: Settings) -> Result:
        """The result for these settings, from this request or an earlier one, or by training now."""
        key = run_key(settings, stand_in=self._request.data_dir is None)
        if key not in self._results:
            result = self._found(key) or self._trained(key, settings)
            if self._writes:
                prepare(self._request.folder)
                result.write(self._request.folder / RUNS / f"{key}.json")
            self._results[key] = result
        return self._results[key]

    def _found(self, key: str) -> Result | None:
        files = sorted(self._request.results.glob(f"*/{RUNS}/{key}.json"))
        return Result.read(files[0]) if files else None

    def _trained(self, key: str, settings: Settings) -> Result:
        request = self._request
        request.say(f"training {key}")
        work = request.results / WORK
        if self._writes and not (work / ".gitignore").exists():
            work.mkdir(parents=True, exist_ok=True)
            write_text(work / ".gitignore", "*\n")
        return train(
            settings,
            work / key,
            data_dir=request.data_dir,
            download=request.download,
            quiet=request.quiet,
        )


def run_key(settings: Settings, stand_in: bool) -> str:
    """A name that differs whenever settings, or real data from their stand-in, differ."""
    content = json.dumps({**asdict(settings), "stand_in": stand_in}, sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return f"{settings.recipe}-{settings.method}-seed{settings.seed}-{digest}".replace("+", "-")
