"""``equinorm bench analysis``: time and memory of ``symmetries`` and ``balance``, against one forward pass."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import equinorm
from equinorm import model_source
from equinorm.bench import pictures
from equinorm.bench.allocated import allocations
from equinorm.bench.families import random_chain
from equinorm.bench.networks import count
from equinorm.bench.output import Findings, Headline, Table, seconds, size, times
from equinorm.bench.timing import Rounds, estimate, interleaved, ratios, seconds_of
from equinorm.errors import EquinormError
from equinorm.models import MODELS

CLAIM = """Seconds of symmetries (both traces included) and of a whole balance (analysis and verify included),
against one forward pass of the same model on one input; random weights, medians over interleaved rounds. Cycles
are multilevel's to a residual of 1e-8. Memory is the peak of all tensors made meanwhile (balance: with
verify=False, symmetries found before). "bare" is the model with every batch norm replaced by the identity: with
batch norms the problem falls into trivial pairs."""

FAMILIES = (  # of torchvision's classifiers, one each
    *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "inception_v3", "maxvit_t"),
    *("mnasnet1_0", "mobilenet_v2", "mobilenet_v3_large", "regnet_y_400mf", "resnet50", "resnext50_32x4d"),
    *("shufflenet_v2_x1_0", "squeezenet1_0", "swin_t", "vgg16", "vit_b_16", "wide_resnet50_2"),
)
TIMM = ("mixer_s16_224", "repvgg_a0", "ghostnet_100")
SAMPLE = (
    *(f"equinorm:{name}" for name in MODELS),
    *(f"torchvision:{name}" for name in FAMILIES),
    *(f"timm:{name}" for name in TIMM),
)
Build = Callable[[], "tuple[nn.Module, Tensor] | None"]
TIMES = ("forward", "analysis", "balance")
ROUNDS = Rounds(most=3, seconds=3.0, least=1, warm_up=0)


@dataclass(frozen=True)
class Settings:
    """Which models, each also without batch norms; "torchvision" stands for all of its classification models."""

    models: tuple[str, ...] = SAMPLE
    depths: tuple[int, ...] = (10, 20, 40, 80, 160)  # of chains, 200 channels wide
    widths: tuple[int, ...] = (250, 500, 1000, 2000, 4000)  # of chains of 5 layers
    rounds: Rounds = ROUNDS


FULL = Settings()
QUICK = Settings(
    ("equinorm:resnet18c", "torchvision:resnet18", "timm:repvgg_a0"),
    (10, 20),
    (250, 500),
    Rounds(3, 1.0, 1, 0),
)


def run(settings: Settings, device: torch.device, say: Callable[[str], None]) -> Findings:
    """Measure every model that can be imported, then chains of growing depth and width."""
    rows, notes = [], _missing(settings.models)
    for label, kind, build in _cases(settings):
        say(label)
        try:
            built = build()
            if built is not None:
                rows.append({"network": label, "kind": kind} | measure(*built, device, settings.rounds))
        except EquinormError as error:
            notes.append(f"{label} was left out: {error}")
    return Findings(
        CLAIM,
        rows,
        [_table([row for row in rows if row["kind"] in kinds], *named) for kinds, named in TABLES if rows],
        headlines(rows),
        notes,
        partial(pictures.analysis, rows=rows),
    )


def _missing(models: Sequence[str]) -> list[str]:
    """One note per library that does not import, rather than one per model."""
    notes = []
    for library in ("torchvision", "timm"):
        if any(name.partition(":")[0] == library for name in models):
            try:
                __import__(library)
            except Exception as error:  # a build for another torch fails in its own ways
                first = (str(error).splitlines() or [""])[0]
                notes.append(f"no model of {library}: it does not import ({type(error).__name__}: {first})")
    return notes


def _cases(settings: Settings) -> Iterator[tuple[str, str, Build]]:
    for spec in _named(settings.models):
        yield spec, "model", partial(_loaded, spec)
        yield f"{spec}, bare", "bare", partial(_bare, spec)
    for depth in settings.depths:
        yield f"{depth} layers of 200", "depth", partial(_chain, depth, 200)
    for width in settings.widths:
        yield f"5 layers of {width}", "width", partial(_chain, 5, width)


def _named(models: Sequence[str]) -> Iterator[str]:
    """The models whose library imports."""
    for spec in models:
        library, _, name = spec.partition(":")
        if library in ("torchvision", "timm"):
            try:
                module = __import__(library)
            except Exception:  # noted already
                continue
            if not name:
                yield from (f"{spec}:{known}" for known in module.models.list_models(module=module.models))
                continue
        yield spec


def _loaded(spec: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model, shape = model_source.load(spec)
    (x,) = model_source.example_inputs(model, shape, [])
    return model, x


def _bare(spec: str) -> tuple[nn.Module, Tensor] | None:
    """The model without its batch norms; None if it has none."""
    model, x = _loaded(spec)
    norms = [n for n, m in model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for name in norms:
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, nn.Identity())
    return (model, x) if norms else None


def _chain(depth: int, width: int) -> tuple[nn.Module, Tensor]:
    return random_chain(depth, width).eval(), torch.randn(1, width)


def measure(model: nn.Module, x: Tensor, device: torch.device, rounds: Rounds) -> dict[str, Any]:
    """Seconds, memory, and what was found."""
    model, x = model.to(device), x.to(device)
    host = torch.device("cpu")  # the analysis and the solver work there, whatever the device
    _, forward = allocations(partial(_forward, model, x), x.device)
    found, analysed = allocations(partial(equinorm.symmetries, model, x), host)
    solve = partial(equinorm.balance, copy.deepcopy(model), symmetries=found, verify=False)
    report, balanced = allocations(solve, host)
    calls = {
        "forward": lambda: seconds_of(lambda: _forward(model, x), device),
        "analysis": lambda: seconds_of(lambda: equinorm.symmetries(model, x), device),
        "balance": lambda: _balance_seconds(model, x),
    }
    taken = interleaved(calls, rounds)
    return {
        "parameters": count(model),
        "free": found.num_free,
        "coverage": found.coverage,
        "cycles": report.cycles,
        "residual": report.residual,
        "converged": report.converged,
        "seconds": {name: estimate(taken[name]) for name in TIMES},
        "to_forward": {name: estimate(ratios(taken[name], taken["forward"])) for name in TIMES[1:]},
        "peak_bytes": {"forward": forward.peak, "analysis": analysed.peak, "balance": balanced.peak},
    }


def _forward(model: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        model(x)


def _balance_seconds(model: nn.Module, x: Tensor) -> float:
    copied = copy.deepcopy(model)  # balanced weights would be solved at once the next time
    return seconds_of(lambda: equinorm.balance(copied, x), x.device)


TABLES = (
    (("model", "bare"), ("models", "", None)),
    (
        ("depth",),
        ("chains of growing depth", "balance per layer", lambda row: int(row["network"].split()[0])),
    ),
    (("width",), ("chains of growing width", "balance per 1e6 weights", lambda row: row["parameters"] / 1e6)),
)


def _table(
    rows: Sequence[Mapping[str, Any]], title: str, unit: str, per: Callable[[Mapping[str, Any]], float] | None
) -> Table:
    header = [
        "network",
        "parameters",
        "free",
        "cycles",
        "forward",
        "memory",
        "analysis",
        "of forward",
        "memory",
    ]
    header += ["balance", "of forward", "memory", *([unit] if per else [])]
    return Table(title, tuple(header), [_line(row, per) for row in rows])


def _line(row: Mapping[str, Any], per: Callable[[Mapping[str, Any]], float] | None) -> tuple[str, ...]:
    used = {name: size(value) for name, value in row["peak_bytes"].items()}
    line: list[str] = [row["network"], f"{row['parameters'] / 1e6:.1f} M", f"{row['free']:,}"]
    line += [
        f"{row['cycles']}" + ("" if row["converged"] else " (not converged)"),
        seconds(row["seconds"]["forward"]),
        used["forward"],
    ]
    for name in TIMES[1:]:
        line += [seconds(row["seconds"][name]), times(row["to_forward"][name].median), used[name]]
    return (*line, *([seconds(row["seconds"]["balance"].median / per(row))] if per else []))


def headlines(rows: Sequence[Mapping[str, Any]]) -> list[Headline]:
    """What goes into the README, with the targets of the issues."""
    lines = []
    by_name = {row["network"]: row for row in rows}
    resnet = by_name.get("torchvision:resnet50", by_name.get("equinorm:resnet50"))
    if resnet:
        for name, most in (("analysis", 2.0), ("balance", 3.0)):
            took = resnet["seconds"][name].median
            measured = f"{seconds(took)}, {times(resnet['to_forward'][name].median)} a forward pass"
            lines.append(Headline(f"ResNet-50: {name}", measured, f"< {most:g} s", took < most))
    models = [row for row in rows if row["kind"] in ("model", "bare")]
    if models:
        slow = max(models, key=lambda row: row["seconds"]["analysis"].median)
        took = slow["seconds"]["analysis"].median
        what = f"slowest analysis of {len(models)} models"
        lines.append(Headline(what, f"{seconds(took)} ({slow['network']})", "< 10 s", took < 10))
        hard = max(models, key=lambda row: (not row["converged"], row["cycles"]))
        met = hard["converged"] and hard["cycles"] <= 40
        what = f"most cycles of multilevel on {len(models)} models"
        lines.append(Headline(what, f"{hard['cycles']} ({hard['network']})", "≤ 40", met))
    for kind, unit in (("depth", "layer"), ("width", "weight")):
        curve = [row for row in rows if row["kind"] == kind]
        if len(curve) > 1:
            lines.append(
                Headline(
                    f"cost of balance per {unit}, of the largest chain to the one before",
                    _growth(curve, kind),
                )
            )
    return lines


def _growth(curve: Sequence[Mapping[str, Any]], kind: str) -> str:
    def per(row: Mapping[str, Any]) -> float:
        units = int(row["network"].split()[0]) if kind == "depth" else row["parameters"]
        return float(row["seconds"]["balance"].median / units)

    return f"{times(per(curve[-1]) / per(curve[-2]))} ({curve[-2]['network']}, {curve[-1]['network']})"
