"""The command line: what it prints, what it writes, and one clear line for everything that goes wrong."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import vision  # noqa: F401 (before torchvision)
from safetensors.torch import load_file, save_file
from torch import nn

from equinorm.cli import run

NETS = """
import torch
from torch import nn

def chain():
    print("a model that talks")
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 4), nn.Linear(4, 2)
    def forward(self, ids, offset):
        return self.head(self.embed(ids).mean(1)) + offset

ready = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
number = 3

def fails():
    raise RuntimeError("no luck\\nsecond line")

def exits():
    raise SystemExit(3)

class Branches(nn.Linear):
    def forward(self, x):
        h = super().forward(x)
        return h if h.sum() > 0 else -h

def branches():
    return Branches(5, 3)

def naps():
    import time
    print("napping", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of networks and weights for its chain, made the current one."""
    (tmp_path / "cli_nets.py").write_text(NETS)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].weight *= 100
    save_file(model.state_dict(), tmp_path / "in.safetensors", metadata={"made by": "us"})
    torch.save(model.state_dict(), tmp_path / "in.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "cli_nets", raising=False)
    return tmp_path


CHAIN = ("cli_nets:chain", "--input", "2,5")
BALANCE = ("balance", *CHAIN, "--weights", "in.safetensors", "--output", "out.safetensors")


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status = run(arguments)
    out, err = capsys.readouterr()
    assert status == 0, err
    return out


def test_inspect(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "inspect", *CHAIN).strip()
    found = json.loads(output(capsys, "inspect", *CHAIN, "--json"))
    assert found["num_free"] == 8 and found["coverage"] == 1
    members = {(m["parameter"], m["dim"], m["sign"]) for group in found["groups"] for m in group["members"]}
    assert {("0.weight", 0, 1), ("2.weight", 1, -1)} <= members


@pytest.mark.parametrize(
    "model", ["torchvision:resnet18", "timm:resnet18", "equinorm:mnist_autoencoder", "cli_nets:ready"]
)
def test_every_source_of_models(capsys: pytest.CaptureFixture[str], model: str) -> None:
    shape = ("--input", "2,5") if model == "cli_nets:ready" else ()
    assert json.loads(output(capsys, "inspect", model, *shape, "--json"))["num_free"] > 0


def test_several_inputs_of_several_dtypes(capsys: pytest.CaptureFixture[str]) -> None:
    output(capsys, "inspect", "cli_nets:Tokens", "--input", "1,6:int64", "--input", "1,2", "--json")


def outputs(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).to(next(iter(weights.values())).dtype)
    model.load_state_dict(weights)
    torch.manual_seed(1)
    return model(torch.randn(20, 5).to(model[0].weight.dtype))


def test_balance_lowers_the_norm_keeps_the_function_and_the_metadata(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = json.loads(output(capsys, *BALANCE, "--json", "--plot", "energy.png"))
    before, after = load_file("in.safetensors"), load_file("out.safetensors")
    assert report["norm_after"] < report["norm_before"] and report["converged"]
    assert list(before) == list(after) and [group["size"] for group in report["scales"]] == [8]
    squares = [sum(float(w.square().sum()) for k, w in x.items() if "weight" in k) for x in (before, after)]
    assert squares[1] == pytest.approx(report["norm_after"]) and squares[1] < 0.5 * squares[0]
    torch.testing.assert_close(outputs(after), outputs(before))
    assert Path("energy.png").read_bytes().startswith(b"\x89PNG")
    from equinorm import checkpoint

    assert checkpoint.read("out.safetensors").metadata == {"made by": "us"}


OPTIONS = [
    ("--p", "inf"),
    ("--c", "adaptive", "--no-verify"),
    ("--c", "c.json"),
    ("--solver", "cycle", "--cycles", "3"),
    ("--scales", "pow2"),
    ("--no-biases", "--batch-norm", "ignore"),
    ("--dtype", "float64"),
]


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_options(capsys: pytest.CaptureFixture[str], options: tuple[str, ...]) -> None:
    Path("c.json").write_text('{"0.weight": 2.0, "2.weight": 1}')
    output(capsys, *BALANCE, *options)
    dtype = torch.float64 if "float64" in options else torch.float32
    assert load_file("out.safetensors")["0.weight"].dtype == dtype


def test_other_formats(capsys: pytest.CaptureFixture[str]) -> None:
    output(capsys, "balance", *CHAIN, "--weights", "in.pt", "--output", "out.pth")
    torch.testing.assert_close(outputs(torch.load("out.pth")), outputs(torch.load("in.pt")))


ERRORS = [
    # arguments, exit status, what the line says
    (("inspect",), 2, "MODEL"),
    (("frobnicate",), 2, "frobnicate"),
    (("inspect", *CHAIN, "--frob"), 2, "--frob"),
    (("inspect", "resnet50"), 1, "expected torchvision:NAME"),
    (("inspect", "torchvision:resnet5"), 1, "did you mean resnet50"),
    (("inspect", "timm:resnet_5000"), 1, "unknown model"),
    (("inspect", "equinorm:resnet18d"), 1, "did you mean resnet18"),
    (("inspect", "no_such_module:x"), 1, "no module no_such_module"),
    (("inspect", "cli_nets:nothing"), 1, "has no nothing"),
    (("inspect", "cli_nets:number"), 1, "is of type int"),
    (("inspect", "cli_nets:fails"), 1, "RuntimeError: no luck"),
    (("inspect", "cli_nets:exits"), 1, "SystemExit: 3"),
    (("inspect", "cli_nets:branches", "--input", "2,5"), 1, "torch.export cannot trace Branches"),
    (("inspect", "cli_nets:chain"), 1, "--input"),
    (("inspect", "cli_nets:chain", "--input", "2,x"), 1, "--input 2,x"),
    (("inspect", "cli_nets:chain", "--input", "2,0"), 1, "--input 2,0"),
    (("inspect", "cli_nets:chain", "--input", "2,5:int3"), 1, "unknown dtype int3"),
    (("inspect", "cli_nets:chain", "--input", "2,7"), 1, ""),
    (("inspect", *CHAIN, "--dtype", "int64"), 1, "--dtype int64"),
    (("balance", *CHAIN, "--weights", "in.safetensors"), 2, "--output"),
    (("balance", *CHAIN, "--weights", "no.pt", "--output", "out.pt"), 1, "no.pt: no such file"),
    (("balance", *CHAIN, "--weights", "in.pt", "--output", "in.pt"), 1, "in.pt: exists"),
    (("balance", *CHAIN, "--weights", "in.pt", "--output", "out.npz"), 1, "unknown kind of file"),
    (("balance", *CHAIN, "--weights", "in.pt", "--output", "no/out.pt"), 1, "no folder"),
    (("balance", "equinorm:cifar_nv", "--weights", "in.pt", "--output", "out.pt"), 1, "do not fit the model"),
    ((*BALANCE, "--plot", "e.gif"), 1, "unknown kind of picture"),
    ((*BALANCE, "--solver", "newton"), 2, "--solver"),
    ((*BALANCE, "--cycles", "-1"), 2, "--cycles"),
    ((*BALANCE, "--p", "0"), 1, "p"),
    ((*BALANCE, "--p", "two"), 2, "--p"),
    ((*BALANCE, "--c", "-1"), 1, "c"),
    ((*BALANCE, "--c", "no.json"), 1, "--c no.json"),
    ((*BALANCE, "--c", "cli_nets.py"), 1, "--c cli_nets.py"),
    ((*BALANCE, "--c", "list.json"), 1, "--c list.json"),
    (("demo", "--output", "in.pt/x"), 1, "in.pt/x"),
]


@pytest.mark.parametrize(("arguments", "status", "text"), ERRORS, ids=[" ".join(e[0])[:70] for e in ERRORS])
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], status: int, text: str
) -> None:
    Path("list.json").write_text("[1, 2]")
    files = {path.name: path.read_bytes() for path in Path(".").iterdir() if path.is_file()}
    assert run(arguments) == status
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line != "a model that talks"]
    assert out == "" and len(lines) == 1 and lines[0].startswith("equinorm: ") and text in lines[0], err
    assert files == {path.name: path.read_bytes() for path in Path(".").iterdir() if path.is_file()}


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUINORM_DEBUG", "1")
    with pytest.raises(Exception, match="no luck"):
        run(["inspect", "cli_nets:fails"])


@pytest.mark.parametrize("missing", ["typer", "rich.console", "safetensors.torch"])
def test_missing_extras_are_named(nets: Path, missing: str) -> None:
    script = (
        f"import sys; sys.modules[{missing!r}] = None; import equinorm.cli as c; sys.exit(c.run({BALANCE!r}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=nets)
    assert done.returncode == 1 and 'pip install "equinorm[cli]"' in done.stderr
    assert done.stderr.count("\n") == 1


def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    table = output(capsys, "demo", "--output", "pictures")
    assert "norm after" in table and "12,032,168" in table
    for name in ("energy.png", "norm-per-cycle.png"):
        assert (Path("pictures") / name).read_bytes().startswith(b"\x89PNG") and f"pictures/{name}" in table


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "--version").startswith("equinorm 0.")
    for arguments in ((), ("--help",), ("balance", "--help")):
        assert "Usage" in output(capsys, *arguments)


def test_interrupted(nets: Path) -> None:
    command = [sys.executable, "-m", "equinorm", "inspect", "cli_nets:naps", "--input", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=nets) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "napping\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "equinorm: interrupted\n"
        assert process.wait(30) == 130
