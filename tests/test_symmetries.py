"""What ``symmetries`` returns, and the networks on which matching layer types goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import equinorm
from equinorm import Member


class Two(nn.Module):
    """Two linear layers, with a function of the hidden activation between them."""

    def __init__(self, between: Callable[[Tensor], Tensor], hidden: int = 6) -> None:
        super().__init__()
        self.between = between
        self.first, self.last = nn.Linear(4, hidden), nn.Linear(hidden, 3)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.between(self.first(x)))


class Shared(nn.Module):
    """One layer, used twice: its inputs and outputs are then the same scales."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        return self.last(self.twice(self.twice(h).relu()).relu())


class Exposed(nn.Module):
    """A hidden activation is also an output."""

    def __init__(self, how: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.how = how
        self.first, self.second, self.last = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Any:
        h = torch.relu(self.first(x))
        return self.how(self.last(torch.relu(self.second(h))), h)


def _clamped_in_place(h: Tensor) -> Tensor:
    return h.clamp_(min=0).mul_(2)


X, IMAGE = torch.randn(2, 4), torch.randn(2, 3, 6, 6)
CASES: dict[str, tuple[nn.Module, Tensor, int]] = {
    "relu": (Two(torch.relu), X, 6),
    "clamp(min=0)": (Two(lambda h: h.clamp(min=0)), X, 6),
    "in place": (Two(_clamped_in_place), X, 6),
    "maximum with zero": (Two(lambda h: torch.maximum(h, torch.zeros(()))), X, 6),
    "relu(h) + 1": (Two(lambda h: torch.relu(h) + 1.0), X, 0),
    "h * h": (Two(lambda h: h * h), X, 0),
    "h * |h|, both scaled": (Two(lambda h: h * h.abs()), X, 0),
    "relu6": (Two(F.relu6), X, 0),
    "gelu": (Two(F.gelu), X, 0),
    "softmax": (Two(lambda h: h.softmax(-1)), X, 0),
    "normalised by its norm": (Two(lambda h: F.normalize(h, dim=-1)), X, 0),
    "mean over channels": (Two(lambda h: h.relu() - h.mean(-1, keepdim=True)), X, 1),
    "halves swapped": (Two(lambda h: torch.cat(h.relu().chunk(2, -1)[::-1], -1)), X, 6),
    "halves added": (Two(lambda h: h + torch.cat(h.chunk(2, -1)[::-1], -1)), X, 3),
    "a layer used twice": (Shared(), X, 6),
    "output alone, beside layers without use": (Exposed(lambda y, h: h), X, 5 + 3),
    "output in a tuple": (Exposed(lambda y, h: (y, h)), X, 5),
    "output in a dict": (Exposed(lambda y, h: {"logits": y, "deep": [h]}), X, 5),
    "grouped convolution consumes": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3, groups=2)), IMAGE, 4
    ),
    "depthwise multiplier": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3, groups=4), nn.Conv2d(8, 2, 1)), IMAGE, 12
    ),
    "flatten before a linear layer": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)), IMAGE, 4
    ),
    "batch norm": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)), IMAGE, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("training", (True, False))
def test_free_scales(name: str, training: bool) -> None:
    net, x, expected = CASES[name]
    sym = equinorm.symmetries(net.train(training), x)
    assert sym.num_free == expected
    assert sum(group.size for group in sym.groups) == expected
    assert net.training is training


@pytest.mark.parametrize("name", ("relu6", "h * h", "relu(h) + 1", "gelu", "softmax"))
def test_pins_say_where_and_why(name: str) -> None:
    net, x, _ = CASES[name]
    pinned = equinorm.symmetries(net, x).pinned
    (parameter,) = (pin for pin in pinned if pin.what == "first.weight dim 0 (outputs)")
    assert parameter.op and parameter.reason
    assert any((pin.op, pin.reason.partition(" (")[0]) == (parameter.op, parameter.reason) for pin in pinned)


def test_groups_name_their_members() -> None:
    sym = equinorm.symmetries(CASES["relu"][0], X)
    (group,) = sym.groups
    assert (group.start, group.size, list(group.variables)) == (1, 6, [1, 2, 3, 4, 5, 6])
    assert set(group.members) == {
        Member("first.weight", 0, 1),
        Member("first.bias", 0, 1),
        Member("last.weight", 1, -1),
    }
    assert sym.coverage == 1.0
    assert dict(sym.depth) == {"first.weight": 1, "last.weight": 2}


def test_coverage_counts_weights_with_a_free_dimension() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 3))
    assert equinorm.symmetries(net, X).coverage == pytest.approx(2 / 3)


def test_batch_norm_ignored() -> None:
    net, x, _ = CASES["batch norm"]
    preserved = equinorm.symmetries(net, x)
    ignored = equinorm.symmetries(net, x, batch_norm="ignore")
    assert {m.parameter for m in preserved.groups[0].members} == {"1.weight", "1.bias", "3.weight"}
    assert {m.parameter for m in ignored.groups[0].members} == {"0.weight", "0.bias", "3.weight"}
    with pytest.raises(equinorm.ArgumentError, match="batch_norm: expected one of"):
        equinorm.symmetries(net, x, batch_norm="fold")


def test_the_model_and_the_random_state_stay_as_they_are() -> None:
    net, x, _ = CASES["batch norm"]
    state = {k: v.clone() for k, v in net.state_dict().items()}
    drawn = torch.get_rng_state()
    equinorm.symmetries(net, x)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())


def test_the_table_reads_well() -> None:
    text = str(equinorm.symmetries(CASES["relu"][0], X))
    assert text.splitlines() == [
        "6 free scales in 1 group; 100% of the linear and convolutional weights can be rescaled",
        "",
        "scales  multiply              divide",
        "------  --------------------  --------------",
        "6       first.weight,bias[0]  last.weight[1]",
        "",
        "pinned (3, see .pinned), by reason:",
        "      3  it is an output of the model",
    ]


def test_long_tables_are_cut() -> None:
    layers: list[nn.Module] = []
    for _ in range(45):
        layers += [nn.Linear(4, 4), nn.ReLU()]
    text = str(equinorm.symmetries(nn.Sequential(*layers, nn.Linear(4, 2)), X))
    assert "… and 5 more groups (see .groups)" in text
    assert max(map(len, text.splitlines())) <= 110


def test_an_empty_parameter_is_no_obstacle() -> None:
    class Extended(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.extra, self.second = (
                nn.Linear(3, 4),
                nn.Parameter(torch.empty(0, 4)),
                nn.Linear(4, 2),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.second(torch.relu(torch.cat([self.first(x), self.extra])))

    assert equinorm.balance(Extended(), torch.randn(2, 3)).symmetries.num_free == 4
