"""The commands ``inspect``, ``balance`` and ``demo``."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

import equinorm
from equinorm import checkpoint, demo, model_source, plot
from equinorm.errors import ArgumentError

app = typer.Typer(
    help="Find every positive-rescaling symmetry of a PyTorch model; move its weights to the minimal norm.",
    add_completion=False,
    pretty_exceptions_enable=False,
)

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="torchvision:resnet50, timm:NAME, equinorm:resnet18c or package.module:callable"
    ),
]
Inputs = Annotated[
    list[str],
    typer.Option(
        "--input",
        metavar="SHAPE",
        help="One positional input, as 1,3,224,224 or 1,16:int64; may be repeated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Dtype = Annotated[str | None, typer.Option(help="Work and write in this precision instead of the file's.")]
BatchNorm = Annotated[
    Literal["preserve", "ignore"],
    typer.Option(help="ignore runs as if it were not there: the function changes."),
]
REPORTED = (
    *("norm_before", "norm_after", "residual", "residual_stored", "converged", "cycles", "status"),
    *("function_change", "still", "capped", "blocked"),
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
    model: Model,
    inputs: Inputs = [],  # noqa: B006 (typer reads the default and copies it)
    batch_norm: BatchNorm = "preserve",
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """List the rescaling symmetries of a model, and what is pinned and why."""
    with _working(f"analysing {model}"):
        module, usual = model_source.load(model)
        if dtype is not None:
            model_source.cast(module, dtype)
        examples = model_source.example_inputs(module, usual, inputs)
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
    model: Model,
    weights: Annotated[
        Path, typer.Option(help="The weights to read: .safetensors, .pt, .pth, .bin or .ckpt.")
    ],
    output: Annotated[
        Path, typer.Option(help="Where to write the balanced weights, in the format of the suffix.")
    ],
    inputs: Inputs = [],  # noqa: B006 (typer reads the default and copies it)
    p: Annotated[float, typer.Option(help="The norm: any positive number, or inf.")] = 2.0,
    c: Annotated[
        str, typer.Option(help="A number, adaptive, or a JSON file of parameter name → weight.")
    ] = "1.0",
    solver: Literal["multilevel", "cycle", "cycle-parallel"] = "multilevel",
    cycles: Annotated[
        int | None, typer.Option(min=0, help="Exactly so many, instead of until --tol.")
    ] = None,
    tol: Annotated[float, typer.Option(help="The residual at which the solver stops.")] = 1e-8,
    scales: Annotated[
        Literal["real", "pow2"],
        typer.Option(help="pow2: powers of two, which keep the outputs bit-identical."),
    ] = "real",
    batch_norm: BatchNorm = "preserve",
    biases: Annotated[
        bool, typer.Option(help="Move biases with the weights; without, the function changes.")
    ] = True,
    verify: Annotated[bool, typer.Option(help="Compare outputs before and after.")] = True,
    dtype: Dtype = None,
    plot_to: Annotated[
        Path | None, typer.Option("--plot", help="Draw every layer's channel norms: .png, .svg or .pdf.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output and the picture.")] = False,
    as_json: Json = False,
) -> None:
    """Move a model's weights to the minimal norm on their rescaling orbit, and write them."""
    checkpoint.check_suffix(output)
    checkpoint.check_output(output, force)
    if plot_to is not None:
        plot.check_path(plot_to)
        checkpoint.check_output(plot_to, force)
    asymmetry = _asymmetry(c)
    with _working(f"balancing {model}"):
        read = checkpoint.read(weights)
        module, usual = model_source.load(model)
        checkpoint.load_into(module, read)
        if dtype is not None:
            model_source.cast(module, dtype)
        examples = model_source.example_inputs(module, usual, inputs)
        before = plot.channel_norms(module, p) if plot_to else {}
        report = equinorm.balance(
            module,
            examples,
            p=p,
            c=asymmetry,
            solver=solver,
            cycles=cycles,
            tol=tol,
            scales=scales,
            batch_norm=batch_norm,
            biases=biases,
            verify=verify,
        )
        state = module.state_dict()
        checkpoint.write(output, {name: state[name] for name in read.tensors}, read.metadata, force)
        if plot_to is not None:
            plot.energy(plot_to, before, plot.channel_norms(module, p), f"{model}: channel norms (p = {p:g})")
    if not as_json:
        print(report)
        print(f"wrote {output}" + (f" and {plot_to}" if plot_to else ""))
        return
    vectors = (report.scales.group(index) for index in range(len(report.symmetries.groups)))
    _print_json(
        model=model,
        output=str(output),
        plot=plot_to and str(plot_to),
        **{name: getattr(report, name) for name in REPORTED},
        scales=[
            {"min": float(vector.min()), "max": float(vector.max()), **_group(group)}
            for group, vector in zip(report.symmetries.groups, vectors, strict=True)
        ],
    )


@app.command("demo")
def _demo(
    output: Annotated[Path, typer.Option(help="The folder for the two pictures.")] = Path("equinorm-demo"),
) -> None:
    """Balance the networks of the paper's illustrations; a table, a progress bar, two pictures."""
    demo.run(output)


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


def _print_json(**content: Any) -> None:
    plain = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in content.items()
    }
    print(json.dumps(plain, indent=2))
