"""The commands ``inspect``, ``balance`` and ``demo``."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from torch import Tensor, nn

import equinorm
from equinorm import checkpoint, demo, model_source, options, plot
from equinorm.bench.commands import bench
from equinorm.errors import ArgumentError
from equinorm.experiments.commands import sweep, train
from equinorm.experiments.reproduce.commands import report as _report
from equinorm.experiments.reproduce.commands import reproduce

app = typer.Typer(
    help="Find every positive-rescaling symmetry of a PyTorch model; move its weights to the minimal norm.",
    add_completion=False,
    pretty_exceptions_enable=False,
)

REPORTED = (
    *("norm_before", "norm_after", "log_norm_before", "log_norm_after", "residual", "residual_stored"),
    *("converged", "cycles", "status", "function_change", "still", "capped", "blocked"),
)


def _version(wanted: bool) -> None:
    if wanted:
        print("equinorm", equinorm.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def inspect(
    model: options.Model,
    inputs: options.Inputs = [],  # noqa: B006 (typer reads the default and copies it)
    batch_norm: options.BatchNorm = "preserve",
    dtype: options.Dtype = None,
    as_json: options.Json = False,
) -> None:
    """List the rescaling symmetries of a model, and what is pinned and why."""
    with _working(f"analysing {model}"):
        module, examples = _loaded(model, inputs, dtype)
        found = equinorm.symmetries(module, examples, batch_norm=batch_norm)
    if not as_json:
        print(found)
        return
    _print_json(
        model=model,
        num_free=found.num_free,
        coverage=found.coverage,
        groups=[_group(group) for group in found.groups],
        pinned=[{"what": p.what, "op": p.op, "module": p.module, "reason": p.reason} for p in found.pinned],
    )


@app.command()
def balance(
    model: options.Model,
    weights: options.Weights,
    output: options.Output,
    inputs: options.Inputs = [],  # noqa: B006 (typer reads the default and copies it)
    p: options.P = 2.0,
    c: options.C = "1.0",
    solver: options.Solver = "multilevel",
    cycles: options.Cycles = None,
    tol: options.Tol = 1e-8,
    scales: options.Scales = "real",
    batch_norm: options.BatchNorm = "preserve",
    biases: options.Biases = True,
    verify: options.Verify = True,
    dtype: options.Dtype = None,
    plot_to: options.Plot = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Move a model's weights to the minimal norm on their rescaling orbit, and write them."""
    _check_writable(output, plot_to, force)
    run = partial(equinorm.balance, p=p, c=_asymmetry(c), solver=solver, cycles=cycles, tol=tol)
    run = partial(run, scales=scales, batch_norm=batch_norm, biases=biases, verify=verify)
    with _working(f"balancing {model}"):
        read = checkpoint.read(weights)
        module, examples = _loaded(model, inputs, dtype, read)
        before = plot.channel_norms(module, p) if plot_to else {}
        report = run(module, examples)
        state = module.state_dict()
        checkpoint.write(output, {name: state[name] for name in read.tensors}, read.metadata, force)
        if plot_to is not None:
            plot.energy(plot_to, before, plot.channel_norms(module, p), f"{model}: channel norms (p = {p:g})")
    if as_json:
        _print_json(model=model, output=str(output), plot=plot_to and str(plot_to), **_fields(report))
    else:
        print(report)
        print(f"wrote {output}" + (f" and {plot_to}" if plot_to else ""))


app.command()(bench)
app.command()(train)
app.command()(sweep)
app.command()(reproduce)
app.command("report")(_report)


@app.command("demo")
def _demo(output: options.Folder = Path("equinorm-demo")) -> None:
    """Balance the networks of the paper's illustrations; a table, a progress bar, two pictures."""
    demo.run(output)


def _check_writable(output: Path, plot_to: Path | None, force: bool) -> None:
    """Refuse paths that could not be written before the work that leads to them."""
    checkpoint.check_suffix(output)
    checkpoint.check_output(output, force)
    if plot_to is not None:
        plot.check_path(plot_to)
        checkpoint.check_output(plot_to, force)


def _loaded(
    model: str, inputs: list[str], dtype: str | None, read: checkpoint.Checkpoint | None = None
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module, with the weights of a file if there is one, and example inputs for it."""
    module, usual = model_source.load(model)
    if read is not None:
        checkpoint.load_into(module, read)
    if dtype is not None:
        model_source.cast(module, dtype)
    return module, model_source.example_inputs(module, usual, inputs)


def _asymmetry(text: str) -> float | Literal["adaptive"] | Mapping[str, float]:
    """--c: a number, "adaptive", or the mapping in a JSON file."""
    if text == "adaptive":
        return "adaptive"
    try:
        return float(text)
    except ValueError:
        pass
    try:
        mapping = json.loads(Path(text).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArgumentError(f"--c {text}: neither a number, nor adaptive, nor a file") from None
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--c {text}: not a readable JSON file ({error})") from error
    if not isinstance(mapping, dict) or not all(_is_number(value) for value in mapping.values()):
        raise ArgumentError(f"--c {text}: expected one JSON object of parameter name → number")
    return {name: float(value) for name, value in mapping.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@contextlib.contextmanager
def _working(what: str) -> Iterator[None]:
    """A spinner on standard error; whatever a model prints goes there too, so that JSON stays alone."""
    console = Console(stderr=True)
    with console.status(what), contextlib.redirect_stdout(sys.stderr):
        yield


def _group(group: equinorm.Group) -> dict[str, Any]:
    members = [{"parameter": m.parameter, "dim": m.dim, "sign": m.sign} for m in group.members]
    return {"size": group.size, "members": members}


def _fields(report: equinorm.Report) -> dict[str, Any]:
    vectors = (report.scales.group(index) for index in range(len(report.symmetries.groups)))
    scales = [
        {"min": float(vector.min()), "max": float(vector.max()), **_group(group)}
        for group, vector in zip(report.symmetries.groups, vectors, strict=True)
    ]
    return {**{name: getattr(report, name) for name in REPORTED}, "scales": scales}


def _print_json(**content: Any) -> None:
    plain = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in content.items()
    }
    print(json.dumps(plain, indent=2))
