"""Every recipe with every method, end to end on tiny data; several processes; reruns; divergence; bad input."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from experiment_runs import assert_same_run, data_of, on_ranks, run, small, state, write_data

import equinorm
from equinorm.cli import run as cli
from equinorm.errors import EquinormError
from equinorm.experiments import companions
from equinorm.experiments.methods import METHODS
from equinorm.experiments.recipes import RECIPES
from equinorm.experiments.result import Result
from equinorm.experiments.shared_batch_norm import share_
from equinorm.experiments.train import train
from equinorm.experiments.world import joined
from equinorm.models import mnist_autoencoder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


SLOW = {("imagenet-resnet18", m) for m in METHODS if m != "enorm"} | {
    ("imagenet-resnet50", m) for m in METHODS
}
CASES = [pytest.param(recipe, method, marks=pytest.mark.slow if (recipe, method) in SLOW else ())
         for recipe in RECIPES for method in METHODS]  # fmt: skip


@pytest.mark.parametrize(("recipe", "method"), CASES)
def test_every_recipe_with_every_method(recipe: str, method: str, data: Path, tmp_path: Path) -> None:
    folder, wanted = tmp_path / "run", small(recipe, method)
    result = train(wanted, folder, **data_of(recipe, data))
    assert result.status == "finished" and result.final is not None and result.settings == wanted
    assert result == Result.read(folder / "result.json")
    (row,) = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row] == result.history and row["epoch"] == 1 and row["norm"] > 0
    assert ("validation_metric" in row) == (wanted.validation > 0)
    assert result.final == row[f"{RECIPES[recipe].headline}_metric"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint.pt", "config.json", "lock", "metrics.jsonl", "result.json",
    ]  # fmt: skip
    written = (folder / "result.json").stat().st_mtime_ns
    assert train(wanted, folder, **data_of(recipe, data)) == result
    assert (folder / "result.json").stat().st_mtime_ns == written


@pytest.mark.parametrize("method", ["gn", "wn+bn", "enorm+bn", "path-sgd"])
def test_reruns_are_bit_identical_and_seeds_differ(method: str, data: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        torch.manual_seed(len(name) + seed)  # the caller's generators do not matter
        before = torch.get_rng_state()
        train(small("cifar10-fc", method, seed=seed), tmp_path / name, **data_of("cifar10-fc", data))
        assert torch.equal(torch.get_rng_state(), before)
    assert_same_run(tmp_path / "a", tmp_path / "b")
    weights = [state(tmp_path / name)["model"]["fc1.bias"] for name in "ac"]
    assert not torch.equal(*weights)


def test_a_step_is_sgd_by_hand(data: Path, tmp_path: Path) -> None:
    """One epoch of the auto-encoder against a loop written down from the paper's paragraph."""
    from equinorm.experiments.data import load
    from equinorm.experiments.data.order import seed_of

    wanted = small("mnist-autoencoder", "baseline", lr=0.1, seed=5, epochs=2)
    result = train(wanted, tmp_path, **data_of("mnist-autoencoder", data))
    torch.manual_seed(seed_of("initialisation", 5))
    model = mnist_autoencoder()
    images = load("mnist", data / "mnist").train
    steps, done, rate = 3, 0, 0.0
    for epoch in range(2):
        losses, count = 0.0, 0
        for x, _ in images.batches(16, seed=5, epoch=epoch):
            rate = 0.1 * (1 - done / (2 * steps))
            loss = (model(x) - x.flatten(1)).square().mean()
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for p, g in zip(model.parameters(), gradients, strict=True):
                    p -= rate * (g + 1e-3 * p)
            losses, count, done = losses + loss.item() * len(x), count + len(x), done + 1
        assert result.history[epoch]["train_loss"] == pytest.approx(losses / count, rel=1e-5)
        assert result.history[epoch]["lr"] == pytest.approx(rate)
    assert done == 2 * steps and result.final == pytest.approx(losses / count, rel=1e-5)
    trained = state(tmp_path)["model"]
    for name, p in model.named_parameters():
        torch.testing.assert_close(trained[name], p.detach(), rtol=1e-4, atol=1e-6)
    norm = sum(p.square().sum().item() for name, p in model.named_parameters() if "weight" in name)
    assert result.history[-1]["norm"] == pytest.approx(norm, rel=1e-5)


def test_accumulated_parts_make_the_whole_batch(data: Path, tmp_path: Path) -> None:
    for parts in (1, 3):
        wanted = small("cifar10-fc", "enorm-impl", accumulate=parts, momentum=0.9)
        train(wanted, tmp_path / str(parts), **data_of("cifar10-fc", data))
    whole, cut = (state(tmp_path / str(parts)) for parts in (1, 3))
    for name, tensor in whole["model"].items():
        torch.testing.assert_close(cut["model"][name], tensor, rtol=1e-4, atol=1e-6)
    assert whole["companion"]["log_scales"].abs().max() > 0
    torch.testing.assert_close(cut["companion"], whole["companion"], rtol=1e-3, atol=1e-8)


def test_bfloat16_rounds_and_trains(data: Path, tmp_path: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        train(small("cifar10-conv", "enorm", dtype=dtype), tmp_path / dtype, **data_of("cifar10-conv", data))
    losses = [
        Result.read(tmp_path / d / "result.json").history[0]["train_loss"] for d in ("float32", "bfloat16")
    ]
    assert losses[0] != losses[1] == pytest.approx(losses[0], rel=0.05)
    assert all(
        t.dtype == torch.float32 for n, t in state(tmp_path / "bfloat16")["model"].items() if "weight" in n
    )


def test_enorm_lowers_the_norm_and_balances(data: Path, tmp_path: Path) -> None:
    """The method's rows do what they are called: after a run, only the weights of ENorm are near balance."""
    wanted = small("cifar10-fc", "enorm", epochs=8, c=1.0)
    train(wanted, tmp_path / "enorm", **data_of("cifar10-fc", data))
    train(small("cifar10-fc", "baseline", epochs=8), tmp_path / "baseline", **data_of("cifar10-fc", data))
    residual = {}
    for name in ("enorm", "baseline"):
        model = RECIPES["cifar10-fc"].build(wanted, "none", False, 10)
        model.load_state_dict(state(tmp_path / name)["model"])
        optimizer = torch.optim.SGD(model.parameters())
        residual[name] = equinorm.ENorm(model, optimizer, torch.zeros(2, 3, 32, 32)).residual()
    assert residual["enorm"] < 0.3 * residual["baseline"]


def test_tensorboard(data: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = train(
        small("cifar10-fc", "bn", epochs=2), tmp_path, tensorboard=True, **data_of("cifar10-fc", data)
    )
    found = EventAccumulator(str(tmp_path)).Reload()
    assert set(found.Tags()["scalars"]) == set(result.history[0]) - {"epoch"}
    shown = [(event.step, event.value) for event in found.Scalars("train_loss")]
    assert shown == [(row["epoch"], pytest.approx(row["train_loss"])) for row in result.history]


@pytest.mark.parametrize("method", ["baseline", "enorm"])
def test_divergence_is_a_result(
    method: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        *(
            "train",
            "mnist-autoencoder",
            "--method",
            method,
            "--lr",
            "1e4",
            "--epochs",
            "4",
            "--batch-size",
            "16",
        ),
        *("--data-dir", str(data / "mnist"), "--output", str(tmp_path / "run"), "--quiet"),
    ]
    for _ in range(2):  # the second time it is read
        assert cli(arguments) == 0
        out, err = capsys.readouterr()
        assert out.startswith("diverged at epoch 1") and out.count("\n") == 1 and err == ""
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert found["status"] == "diverged" and found["final"] is None and found["diverged_at"]["epoch"] == 1


def test_two_ranks_train_imagenet(data: Path, tmp_path: Path) -> None:
    """torchrun, gloo, JPEGs; the final BN over both ranks, so that the statistics are those of one process.

    Crops and flips are drawn per rank; without them two ranks see what one sees.
    """
    limit = [
        "--image-size",
        32,
        "--batch-size",
        4,
        "--epochs",
        1,
        "--workers",
        0,
        "--data-dir",
        data / "imagenet",
    ]
    done = run("train", "imagenet-resnet18", "--method", "enorm", *limit, "--output", tmp_path, ranks=2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("finished: test top-1 accuracy") and done.stdout.count("\n") == 1
    result = Result.read(tmp_path / "result.json")
    assert result.processes == 2 and len(result.history) == 1
    assert state(tmp_path)["model"]["final_bn.running_mean"].abs().max() > 0


ONE_OR_TWO = [
    ("cifar10-conv", "baseline", {"batch_size": 8, "limit": 16, "crop": 32, "flip": False, "lr": 0.01}),
    ("cifar10-conv", "enorm", {"batch_size": 8, "limit": 16, "crop": 32, "flip": False, "lr": 0.01}),
    ("cifar10-fc", "enorm-impl", {"accumulate": 2, "momentum": 0.9}),
]


@pytest.mark.parametrize(("recipe", "method", "overrides"), ONE_OR_TWO)
def test_two_ranks_give_the_weights_of_one(
    recipe: str, method: str, overrides: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    """Without augmentation, and with no norm but the shared final BN, sharing a batch out changes only rounding."""
    wanted = small(recipe, method, **overrides)
    train(wanted, tmp_path / "one", **data_of(recipe, data))
    on_ranks(2, lambda: train(wanted, tmp_path / "two", **data_of(recipe, data)))
    one, two = state(tmp_path / "one"), state(tmp_path / "two")
    assert two["run"]["processes"] == 2
    for name, tensor in one["model"].items():
        assert (
            two["model"][name] - tensor
        ).abs().sum() <= 1e-3 * tensor.abs().sum() + 1e-7 * tensor.numel(), name
    rows = [found["history"][0] for found in (one, two)]
    for key in set(rows[0]) - {"seconds"}:
        assert rows[1][key] == pytest.approx(rows[0][key], rel=1e-2), key


def test_shared_batch_norm_is_batch_norm_of_the_whole_batch(tmp_path: Path) -> None:
    """Outputs, gradients of a loss summed over ranks, statistics; in evaluation, too."""
    torch.manual_seed(0)
    x, weigh = torch.randn(2, 6, 5, dtype=torch.float64)

    def passed(norm: torch.nn.Module, part: slice) -> dict[str, torch.Tensor]:
        inputs = x[part].clone().requires_grad_()
        for _ in range(2):
            loss = (norm(inputs).sin() * weigh[part]).sum()
        loss.backward()
        out = {"output": norm(inputs), "input": inputs.grad, "evaluated": norm.eval()(inputs)}
        return {
            k: v.detach()
            for k, v in (
                out | {n: p.grad for n, p in norm.named_parameters()} | dict(norm.named_buffers())
            ).items()
        }

    def fresh() -> torch.nn.BatchNorm1d:
        norm = torch.nn.BatchNorm1d(5, dtype=torch.float64)
        with torch.no_grad():
            norm.weight.copy_(torch.arange(1.0, 6.0))
        return norm

    def work() -> None:
        with joined("cpu") as world:
            found = passed(share_(fresh()), slice(3 * world.rank, 3 * world.rank + 3))
            torch.save(found, tmp_path / f"{world.rank}.pt")

    on_ranks(2, work)
    wanted, (first, second) = (
        passed(fresh(), slice(0, 6)),
        (torch.load(tmp_path / f"{r}.pt") for r in range(2)),
    )
    for name in ("output", "input", "evaluated"):
        torch.testing.assert_close(torch.cat([first[name], second[name]]), wanted[name])
    for name in ("weight", "bias"):
        torch.testing.assert_close(first[name] + second[name], wanted[name])
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        for found in (first, second):
            torch.testing.assert_close(found[name], wanted[name])


def test_without_any_option_and_without_data(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a fresh machine: ENorm on the digits, which says so; real data later do not meet its folder."""
    monkeypatch.chdir(tmp_path)
    for place in ((), ("--data-dir", str(data / "mnist"))):
        assert cli(["train", "mnist-autoencoder", "--epochs", "1", "--limit", "32", *place]) == 0
        out, err = capsys.readouterr()
        assert out.startswith("finished: ") and ("digits" in err) == (not place)
    found = [Result.read(path) for path in sorted(tmp_path.rglob("result.json"))]
    assert [result.settings.method for result in found] == ["enorm", "enorm"]
    assert len({result.note for result in found}) == 2


MNIST = ("train", "mnist-autoencoder", "--method", "bn", "--epochs", "1", "--batch-size", "16")
ERRORS: list[tuple[tuple[str, ...], int, str]] = [
    (("train", "mnist", "--method", "bn"), 1, "did you mean mnist-autoencoder"),
    (("train", "mnist-autoencoder", "--method", "xyz"), 1, "use one of baseline"),
    ((*MNIST, "--lrr", "1"), 2, "--lr"),
    ((*MNIST, "--lr", "fast"), 1, "--lr fast: expected a number"),
    ((*MNIST, "--lr", "0.1,0.2"), 1, "equinorm sweep"),
    ((*MNIST, "--c", "1.2"), 1, "method bn has no c"),
    ((*MNIST, "--seed", "-1"), 1, "seed=-1"),
    ((*MNIST, "--limit", "1"), 1, "at least two examples"),
    ((*MNIST, "--accumulate", "9"), 1, "at least two examples"),
    ((*MNIST, "--device", "tpu9"), 1, "device='tpu9'"),
    ((*MNIST, "--device", "cuda"), 1, "device='cuda'"),
    ((*MNIST, "--data-dir", "nowhere"), 1, "nowhere"),
    ((*MNIST, "--data-dir", "truncated"), 1, "truncated"),
    ((*MNIST, "--download"), 1, "--data-dir"),
    ((*MNIST, "--output", "file/run"), 1, "file/run: cannot be written"),
    ((*MNIST, "--output", "file"), 1, "file"),
    (("train", "mnist-autoencoder", "--method", "gn", "--groups", "7"), 1, "groups=7 does not divide"),
    (("train", "imagenet-resnet18", "--method", "bn"), 1, "--data-dir"),
]


@pytest.mark.parametrize(("arguments", "status", "text"), ERRORS, ids=[" ".join(e[0]) for e in ERRORS])
def test_errors_are_one_line_and_leave_nothing(
    arguments: tuple[str, ...],
    status: int,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if "--data-dir" not in arguments and "--download" not in arguments:
        arguments = (*arguments, "--limit", "64") if "--limit" not in arguments else arguments
    Path("file").write_text("a file")
    write = {
        "truncated": "train-images-idx3-ubyte train-labels-idx1-ubyte t10k-images-idx3-ubyte t10k-labels-idx1-ubyte"
    }
    Path("truncated").mkdir()
    for name in write["truncated"].split():
        Path("truncated", name).write_bytes(b"\0\0\x08")
    before = sorted(Path().rglob("*"))
    assert cli(arguments) == status
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("equinorm: ") and text in err, err
    assert sorted(Path().rglob("*")) == before


def test_a_full_disk(data: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands in for it: the line names the file, and no half of it stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(EquinormError, match=r"checkpoint\.pt: cannot be written \(.*File too large"):
            train(small("cifar10-fc", "bn"), tmp_path / "run", **data_of("cifar10-fc", data))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["config.json", "lock", "metrics.jsonl"]
    train(small("cifar10-fc", "bn"), tmp_path / "run", **data_of("cifar10-fc", data))


def test_the_implicit_penalty_starts_as_weight_decay(data: Path) -> None:
    """enorm-impl's lambda is half of --weight-decay: at scales of one it pulls as the optimizer's decay does."""
    model, wanted = mnist_autoencoder(), small("mnist-autoencoder", "enorm-impl", weight_decay=0.02)
    penalty = companions.Implicit(model, torch.zeros(2, 1, 28, 28), wanted).penalty()
    assert penalty is not None
    penalty.backward()
    for name, p in model.named_parameters():
        if "weight" in name:
            torch.testing.assert_close(p.grad, 0.02 * p.detach())
