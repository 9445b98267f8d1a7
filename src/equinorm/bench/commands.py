"""The command ``bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def bench(
    which: Annotated[
        list[str], typer.Argument(help="overhead, step, convergence, analysis, memory, or all of them.")
    ] = ["all"],  # noqa: B006 (typer copies it)
    quick: Annotated[
        bool, typer.Option("--quick", help="Small networks and few rounds: a look, no result.")
    ] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 2,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "cpu",
    output: Annotated[Path, typer.Option(help="The folder for JSON, Markdown and pictures.")] = Path(
        "equinorm-bench"
    ),
    batch: Annotated[
        list[int], typer.Option(min=2, help="overhead: a batch of the ResNet; may be repeated.")
    ] = [],  # noqa: B006
    model: Annotated[
        list[str],
        typer.Option(help="analysis: a MODEL, or torchvision for all of its classifiers; may be repeated."),
    ] = [],  # noqa: B006
    network: Annotated[
        list[str],
        typer.Option(help="overhead, step, memory: only this one of the paper's networks; may be repeated."),
    ] = [],  # noqa: B006
) -> None:
    """Measure what normalising costs, side by side with its rivals; print it, and save JSON, Markdown and pictures."""
    from equinorm.bench import suite  # what it imports takes seconds

    given = {"batches": tuple(sorted(batch)), "models": tuple(model), "networks": tuple(network)}
    suite.run(which, output, device, threads, quick, {key: value for key, value in given.items() if value})
