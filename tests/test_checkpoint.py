"""Laws of reading and writing weights: nothing is lost, run, guessed or half-written."""

import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from equinorm import checkpoint
from equinorm.errors import ArgumentError, EquinormError


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert list(one) == list(other) or set(one) == set(other)
    for name in one:
        assert one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]), name


@pytest.mark.parametrize("suffix", checkpoint.SUFFIXES)
@pytest.mark.parametrize("dtype", checkpoint.PRECISIONS)
def test_roundtrip(tmp_path: Path, suffix: str, dtype: torch.dtype) -> None:
    path = tmp_path / f"weights{suffix}"
    model = Tied().to(dtype)
    checkpoint.write(path, model.state_dict(), {"license": "ours"})
    found = checkpoint.read(path)
    assert_same(found.tensors, model.state_dict())
    assert found.metadata == ({"license": "ours"} if suffix == ".safetensors" else {})
    other = Tied()
    checkpoint.load_into(other, found)
    assert_same(other.state_dict(), model.state_dict())
    assert other.head.weight is other.embed.weight


def test_a_tied_weight_may_be_stored_once(tmp_path: Path) -> None:
    model = Tied()
    state = {name: value for name, value in model.state_dict().items() if name != "head.weight"}
    save_file(state, tmp_path / "once.safetensors")
    other = Tied()
    checkpoint.load_into(other, checkpoint.read(tmp_path / "once.safetensors"))
    assert_same(other.state_dict(), model.state_dict())


@pytest.mark.parametrize("key", checkpoint.WRAPPERS)
def test_wrapped_state(tmp_path: Path, key: str) -> None:
    model = Tied()
    torch.save({key: model.state_dict(), "epoch": 3}, tmp_path / "w.pt")
    assert_same(checkpoint.read(tmp_path / "w.pt").tensors, model.state_dict())


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.mkdir, ("exploded",)


def test_pickled_code_is_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Bomb()}, "bomb.pt")
    with pytest.raises(ArgumentError, match=r"bomb\.pt.*does not run"):
        checkpoint.read("bomb.pt")
    assert not Path("exploded").exists()


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("damage", [b"", b"\x80", b"garbage" * 100, None])
def test_damaged_files(tmp_path: Path, suffix: str, damage: bytes | None) -> None:
    path = tmp_path / f"bad{suffix}"
    checkpoint.write(path, {"a": torch.ones(1000)}, {})
    path.write_bytes(path.read_bytes()[:-500] if damage is None else damage)
    with pytest.raises(ArgumentError) as caught:
        checkpoint.read(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_missing_files_folders_and_other_formats(tmp_path: Path) -> None:
    for name, word in (("no.pt", "no such file"), ("w.npz", "unknown kind"), ("folder.pt", "not a file")):
        (tmp_path / "folder.pt").mkdir(exist_ok=True)
        with pytest.raises(ArgumentError, match=word):
            checkpoint.read(tmp_path / name)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ArgumentError, match="no state_dict"):
        checkpoint.read(tmp_path / "list.pt")
    torch.save({"a": 3}, tmp_path / "number.pt")
    with pytest.raises(ArgumentError, match="'a' is not a tensor"):
        checkpoint.read(tmp_path / "number.pt")


def test_keys_that_do_not_match_leave_the_model_alone(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    wrong = {"0.weight": torch.ones(4, 9), "1.weight": torch.ones(2, 4), "2.weight": torch.ones(1)}
    with pytest.raises(ArgumentError) as caught:
        checkpoint.load_into(model, checkpoint.Checkpoint(Path("w.pt"), wrong))
    text = str(caught.value)
    assert "2 missing (0.bias, 1.bias)" in text and "1 unexpected (2.weight)" in text
    assert "0.weight (4, 9) instead of (4, 3)" in text and "\n" not in text
    assert_same(model.state_dict(), before)


def test_integer_weights_are_refused() -> None:
    model = nn.Linear(2, 2, bias=False)
    given = checkpoint.Checkpoint(Path("w.pt"), {"weight": torch.ones(2, 2, dtype=torch.int8)})
    with pytest.raises(ArgumentError, match=r"weight is torch\.int8"):
        checkpoint.load_into(model, given)


def test_no_overwriting_without_force(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    checkpoint.write(path, {"a": torch.zeros(1)}, {})
    with pytest.raises(ArgumentError, match="--force"):
        checkpoint.write(path, {"a": torch.ones(1)}, {})
    path.chmod(0o640)
    checkpoint.write(path, {"a": torch.ones(1)}, {}, force=True)
    assert checkpoint.read(path).tensors["a"] == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("interruption", [OSError("disk full"), KeyboardInterrupt()])
def test_interrupted_before_the_replacement_the_old_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: BaseException
) -> None:
    path = tmp_path / "w.safetensors"
    checkpoint.write(path, {"a": torch.zeros(1)}, {})

    def fail(*_: object) -> None:
        raise interruption

    monkeypatch.setattr(checkpoint.os, "replace", fail)
    with pytest.raises((EquinormError, KeyboardInterrupt)):
        checkpoint.write(path, {"a": torch.ones(1)}, {}, force=True)
    assert os.listdir(tmp_path) == ["w.safetensors"]
    assert checkpoint.read(path).tensors["a"] == 0


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "real.pt", {"a": torch.zeros(1)}, {})
    (tmp_path / "link.pt").symlink_to("real.pt")
    checkpoint.write(tmp_path / "link.pt", {"a": torch.ones(1)}, {}, force=True)
    assert (tmp_path / "link.pt").is_symlink()
    assert checkpoint.read(tmp_path / "real.pt").tensors["a"] == 1


def test_output_paths_are_refused_early(tmp_path: Path) -> None:
    for path, word in ((tmp_path, "is a folder"), (tmp_path / "no" / "w.pt", "there is no folder")):
        with pytest.raises(ArgumentError, match=word):
            checkpoint.check_output(path)
