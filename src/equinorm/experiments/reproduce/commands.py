"""The commands ``reproduce`` and ``report``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

Name = Annotated[str, Argument(metavar="NAME", help="A figure or table of the paper, or all.")]
Preset = Annotated[
    Literal["paper", "quick"], Option(help="quick: minutes on two cores; it says what it shortened.")
]
DataDir = Annotated[
    Path | None, Option(help="The folder of MNIST, of CIFAR-10, or of ImageNet's train/ and val/.")
]
Download = Annotated[bool, Option("--download", help="Get missing data sets into the folder.")]
Output = Annotated[Path, Option(help="The folder of all results.")]
Results = Annotated[Path, Argument(help="The folder that reproduce wrote to.")]
Page = Annotated[Path | None, Option("--output", help="The page; RESULTS/report.html if not given.")]
Readme = Annotated[
    Path | None, Option(help="Also write the table of results between the markers of this file.")
]


def reproduce(
    name: Name,
    preset: Preset = "paper",
    data_dir: DataDir = None,
    download: Download = False,
    output: Output = Path("results"),
) -> None:
    """Reproduce a figure or table of the paper into results/NAME/; finished runs are not repeated."""
    from equinorm.experiments.reproduce.reproduce import reproduce as run
    from equinorm.experiments.reproduce.reproduce import runnable

    for one in runnable(data_dir) if name == "all" else [name]:

        def say(line: str, one: str = one) -> None:
            print(f"{one}: {line}", file=sys.stderr)

        outcome = run(one, preset, data_dir=data_dir, download=download, output=output, say=say)
        lines = [f"* {line}" for line in (*outcome.shortened, *outcome.notes)]
        print(f"# {outcome.title}\n\n{outcome.table.markdown()}\n" + "\n".join(lines))
        print(f"\nwrote {output / one}\n")


def report(results: Results = Path("results"), output: Page = None, readme: Readme = None) -> None:
    """Build one self-contained HTML page from the results."""
    from equinorm.experiments.report import page
    from equinorm.experiments.report import readme as markers
    from equinorm.experiments.reproduce.catalogue import EXPERIMENTS
    from equinorm.experiments.reproduce.results import read_all

    outcomes = read_all(results, tuple(EXPERIMENTS))
    path = output or results / "report.html"
    page.write(path, outcomes, results)
    if readme is not None:
        markers.update(readme, outcomes, results)
    print(f"wrote {path}" + (f" and {readme}" if readme else ""))
