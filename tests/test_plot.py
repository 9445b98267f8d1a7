"""Laws of the pictures: the right numbers, for any number of layers, written whole or not at all."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from equinorm import plot
from equinorm.errors import ArgumentError, EquinormError


def layers(count: int, width: int = 7) -> dict[str, Tensor]:
    return {f"layer{k}.weight": torch.linspace(0.5, 1.5, width) * (1 + k % 3) for k in range(count)}


def test_channel_norms_are_those_of_the_output_channels() -> None:
    model = nn.Sequential(
        nn.Linear(3, 5),
        nn.Conv2d(4, 6, 3, groups=2),
        nn.ConvTranspose2d(4, 2, 3),
        nn.Embedding(9, 3),
        nn.BatchNorm2d(4),
    )
    norms = plot.channel_norms(model)
    assert {name: norm.numel() for name, norm in norms.items()} == {
        "0.weight": 5,
        "1.weight": 6,
        "2.weight": 2,
        "3.weight": 3,
    }
    assert torch.allclose(norms["0.weight"][1], model[0].weight[1].norm().double())
    assert torch.allclose(norms["2.weight"][1], model[2].weight[:, 1].norm().double())
    assert torch.allclose(norms["3.weight"][1], model[3].weight[:, 1].norm().double())
    largest = plot.channel_norms(model, float("inf"))
    assert torch.allclose(largest["0.weight"][1], model[0].weight[1].abs().max().double())


@pytest.mark.parametrize("count", [1, 5, 41, 200])
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_energy(tmp_path: Path, count: int, suffix: str) -> None:
    before = layers(count)
    plot.energy(tmp_path / f"e{suffix}", before, {name: norms * 0.9 for name, norms in before.items()})
    content = (tmp_path / f"e{suffix}").read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml") and len(content) > 5000


def test_energy_draws_one_dot_per_live_channel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(plot, "save", lambda figure, path: drawn.append(figure))
    before, after = layers(3), layers(3)
    before["layer0.weight"][0] = 0  # a dead channel has no place on a log axis
    plot.energy(tmp_path / "e.png", before, after)
    top, bottom = drawn[0].axes
    dots = [
        sum(len(c.get_offsets()) for c in axes.collections if len(c.get_offsets()) > 1)
        for axes in (top, bottom)
    ]
    assert dots == [20, 21]
    assert top.get_yscale() == "log" and top.get_ylim() == bottom.get_ylim()
    assert any("norm zero (1)" in text.get_text() for text in drawn[0].texts)


def test_cycles_that_differ_by_rounding_or_not_at_all(tmp_path: Path) -> None:
    curves = {
        "cycle": [(k, 1 + 0.5**k) for k in range(80)],
        "flat": [(0, 1.0)],
        "multilevel": [(0, 2.0), (1, 1.0)],
    }
    plot.cycles(tmp_path / "c.png", {"chain": curves, "other": curves})
    assert (tmp_path / "c.png").stat().st_size > 5000


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="unknown kind of picture"):
        plot.energy(tmp_path / "e.xyz", layers(2), layers(2))
    with pytest.raises(ArgumentError, match="no weight"):
        plot.energy(tmp_path / "e.png", {}, {})


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(EquinormError, match=r"equinorm\[plot\]"):
        plot.energy(tmp_path / "e.png", layers(2), layers(2))
