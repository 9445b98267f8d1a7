"""``python -m equinorm.bench.readme [README.md [FOLDER]]``: write the table of measured numbers from the result files.

It stands between two markers; everything else in the file stays as it is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equinorm.bench.output import Table, as_markdown, verdict
from equinorm.checkpoint import write_atomically
from equinorm.errors import ArgumentError, EquinormError

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
ORDER = ("overhead", "step", "convergence", "analysis", "memory")


def table(folder: Path) -> str:
    """All headlines of the results in a folder, the machine once, and the commands."""
    found = [read(folder / f"{name}.json") for name in ORDER if (folder / f"{name}.json").exists()]
    if not found:
        raise ArgumentError(f"{folder}: no results there; run `equinorm bench all --output {folder}`")
    rows = [
        (
            line["what"],
            line["measured"],
            line["target"],
            verdict(line["met"]),
            f"`equinorm bench {result['benchmark']}`",
        )
        for result in found
        for line in result["headlines"]
    ]
    machines = dict.fromkeys(_machine(result["machine"]) for result in found)
    lines = as_markdown(Table("", ("What", "Measured", "Target", "", "Command"), rows))
    return f"{lines}\n\nMeasured on: {'; '.join(machines)}."


def read(path: Path) -> dict[str, Any]:
    """One result file."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{path}: not a readable result ({error})") from error
    if not {"benchmark", "machine", "headlines"} <= content.keys():
        raise ArgumentError(f"{path}: not a result of `equinorm bench`; run it again")
    if not content.get("full"):
        raise ArgumentError(
            f"{path}: a look at a part (--quick, --network, …), no result; run `equinorm bench {content['benchmark']}`"
        )
    return content


def is_full(path: Path) -> bool:
    """Whether a file is a result of a benchmark's own settings, not of a look at a part."""
    try:
        return bool(json.loads(path.read_text(encoding="utf-8")).get("full"))
    except (OSError, ValueError, AttributeError):
        return False


def with_table(page: str, folder: Path) -> str:
    """The page with the table between its markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ArgumentError(f"the page lacks the markers {BEGIN} and {END}, one after the other")
    return f"{before}{BEGIN}\n\n{table(folder)}\n\n{END}{after}"


def _machine(machine: dict[str, Any]) -> str:
    memory = f", {machine['memory_bytes'] / 2**30:.0f} GB" if machine["memory_bytes"] else ""
    device = "" if machine["device"] == "cpu" else f"{machine['device']} beside "
    return (
        f"{device}{machine['cpu']}, {machine['threads']} threads{memory}, Python {machine['python']}, "
        f"torch {machine['torch']}, commit {machine['commit']}, {machine['date'].partition(' ')[0]}"
    )


def main(arguments: Sequence[str]) -> None:
    """Rewrite the page."""
    page = Path(arguments[0] if arguments else "README.md")
    folder = Path(arguments[1] if len(arguments) > 1 else "benchmarks/results")
    text = with_table(page.read_text(encoding="utf-8"), folder)
    write_atomically(page, lambda temporary: temporary.write_text(text, encoding="utf-8"))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except EquinormError as error:
        sys.exit(f"equinorm: {error}")
