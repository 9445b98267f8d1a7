"""The runs that all figures and tables share: each set of settings is trained once.

results/.work/KEY/          config, metrics and checkpoint of a run; git ignores .work
results/NAME/runs/KEY.json  a finished run, beside every figure and table that shows it
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict

from equinorm.errors import EquinormError
from equinorm.experiments.data import fingerprint
from equinorm.experiments.recipes import Settings
from equinorm.experiments.reproduce.experiment import Request
from equinorm.experiments.reproduce.results import RUNS, write_text
from equinorm.experiments.result import Result
from equinorm.experiments.train import train


class Runs:
    """Trains what is not yet trained, for one request. Under torchrun every process has one; the first writes."""

    def __init__(self, request: Request, dataset: str) -> None:
        self.request = request
        self.work = request.results / ".work"
        self.data = fingerprint(dataset, request.data_dir)
        self._results: dict[str, Result] = {}
        self._writes = os.environ.get("RANK", "0") == "0"
        if self._writes:
            self._make_work()

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
        key = run_key(settings, self.data)
        if key not in self._results:
            result = self._found(key) or self._trained(key, settings)
            if self._writes:
                result.write(self.request.folder / RUNS / f"{key}.json")
            self._results[key] = result
        return self._results[key]

    def _make_work(self) -> None:
        try:
            self.work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EquinormError(f"{self.work}: cannot be made a folder ({error.strerror})") from error
        write_text(self.work / ".gitignore", "*\n")

    def _found(self, key: str) -> Result | None:
        files = sorted(self.request.results.glob(f"*/{RUNS}/{key}.json"))
        return Result.read(files[0]) if files else None

    def _trained(self, key: str, settings: Settings) -> Result:
        self.request.say(f"training {key}")
        return train(
            settings,
            self.work / key,
            data_dir=self.request.data_dir,
            download=self.request.download,
            quiet=self.request.quiet,
        )


def run_key(settings: Settings, data: str) -> str:
    """A name that differs whenever settings or data do."""
    content = json.dumps({**asdict(settings), "data": data}, sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return f"{settings.recipe}-{settings.method}-seed{settings.seed}-{digest}".replace("+", "-")
