"""The options of the command line: their types and help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

Model = Annotated[
    str,
    Argument(
        metavar="MODEL", help="torchvision:resnet50, timm:NAME, equinorm:resnet18c or package.module:callable"
    ),
]
Inputs = Annotated[
    list[str],
    Option(
        "--input",
        metavar="SHAPE",
        help="One positional input, as 1,3,224,224 or 1,16:int64; may be repeated.",
    ),
]
Json = Annotated[bool, Option("--json", help="Print one JSON object and nothing else.")]
Dtype = Annotated[str | None, Option(help="Work and write in this precision instead of the file's.")]
BatchNorm = Annotated[
    Literal["preserve", "ignore"], Option(help="ignore runs as if it were not there: the function changes.")
]
Weights = Annotated[Path, Option(help="The weights to read: .safetensors, .pt, .pth, .bin or .ckpt.")]
Output = Annotated[Path, Option(help="Where to write the balanced weights, in the format of the suffix.")]
P = Annotated[float, Option(help="The norm: any positive number, or inf.")]
C = Annotated[str, Option(help="A number, adaptive, or a JSON file of parameter name → weight.")]
Solver = Literal["multilevel", "cycle", "cycle-parallel"]
Cycles = Annotated[int | None, Option(min=0, help="Exactly so many, instead of until --tol.")]
Tol = Annotated[float, Option(help="The residual at which the solver stops.")]
Scales = Annotated[
    Literal["real", "pow2"], Option(help="pow2: powers of two, which keep the outputs bit-identical.")
]
Biases = Annotated[bool, Option(help="Move biases with the weights; without, the function changes.")]
Verify = Annotated[bool, Option(help="Compare outputs before and after.")]
Plot = Annotated[Path | None, Option("--plot", help="Draw every layer's channel norms: .png, .svg or .pdf.")]
Force = Annotated[bool, Option("--force", help="Overwrite the output and the picture.")]
Folder = Annotated[Path, Option(help="The folder for the two pictures.")]
