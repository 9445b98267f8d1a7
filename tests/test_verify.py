"""``verify`` leaves no trace, catches every change of the function, and only reports where one was asked for."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equinorm
from equinorm import EquinormError, rules
from equinorm.rules.registry import Rule


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.3)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.conv(x)))
        return self.head(torch.relu(self.second(self.drop(h))).mean((2, 3)))


def network() -> tuple[Net, Tensor]:
    torch.manual_seed(0)
    net, x = Net(), torch.randn(4, 3, 8, 8)
    for _ in range(3):
        net(x)
    return net, x


def everything(net: nn.Module) -> dict[str, Any]:
    """What verify must leave alone."""
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "training": [module.training for module in net.modules()],
        "requires_grad": [p.requires_grad for p in net.parameters()],
        "gradients": [None if p.grad is None else p.grad.clone() for p in net.parameters()],
        "buffers": [b.clone() for b in net.buffers()],
        "identities": [id(p) for p in net.parameters()] + [p.data_ptr() for p in net.parameters()],
        "grad mode": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


@pytest.mark.parametrize("training", (True, False))
def test_leaves_no_trace(training: bool) -> None:
    net, x = network()
    net.train(training)
    net.norm.eval()
    net.conv.weight.requires_grad_(False)
    net.drop.train()
    net(x).sum().backward()
    before, given = everything(net), x.clone()
    report = equinorm.balance(net, x)
    after = everything(net)
    for name in before:
        assert same(before[name], after[name]), name
    assert torch.equal(x, given)
    assert report.function_change is not None and report.function_change < 1e-5


def test_leaves_no_trace_when_it_fails() -> None:
    net, x = network()
    before, weights = everything(net), copy.deepcopy(net.state_dict())
    with pytest.raises(ValueError, match="NaN"):
        poisoned = copy.deepcopy(net)
        nn.init.constant_(poisoned.head.weight, float("nan"))
        equinorm.balance(poisoned, x)
    for name, value in everything(net).items():
        assert same(before[name], value), name
    assert all(torch.equal(weights[k], v) for k, v in net.state_dict().items())


def test_a_wrong_rule_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were tanh taken for positively homogeneous, the outputs would say so."""
    monkeypatch.setitem(rules.RULES, "tanh", Rule(rules.RULES["relu"].function, "wrong"))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    weights = copy.deepcopy(net.state_dict())
    with pytest.raises(EquinormError, match=r"the outputs changed by .* the weights are restored"):
        equinorm.balance(net, torch.randn(4, 3))
    assert all(torch.equal(weights[k], v) for k, v in net.state_dict().items())
    assert equinorm.balance(net, torch.randn(4, 3), verify=False).function_change is None


class Counts(nn.Module):
    """Keeps state that is no buffer: its outputs change from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.body(x) * self.calls


def test_state_outside_buffers_is_reported() -> None:
    torch.manual_seed(0)
    net = Counts()
    weights = copy.deepcopy(net.state_dict())
    with pytest.raises(EquinormError, match="from call to call with the same weights"):
        equinorm.balance(net, torch.randn(4, 3))
    assert all(torch.equal(weights[k], v) for k, v in net.state_dict().items())


class Remembers(nn.Module):
    """Keeps state in buffers, one of them replaced rather than written to, and draws from Python's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        self.register_buffer("total", torch.zeros(2))
        self.register_buffer("count", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        if torch.compiler.is_exporting():
            return y
        self.count = self.count + 1
        self.total += y.detach().sum(0)
        return y + self.count + self.total + random.random()


def test_state_in_buffers_and_python_randomness_are_put_back() -> None:
    torch.manual_seed(0)
    net, x = Remembers(), torch.randn(4, 3)
    net(x)
    before = everything(net)
    assert equinorm.balance(net, x).function_change < 1e-6  # type: ignore[operator]
    after = everything(net)
    for name in before:
        assert same(before[name], after[name]), name


@pytest.mark.parametrize("options", ({"biases": False}, {"batch_norm": "ignore"}), ids=str)
def test_changes_by_design_are_only_reported(options: dict[str, Any]) -> None:
    net, x = network()
    report = equinorm.balance(net, x, **options)
    assert report.function_change is not None and report.function_change > 1e-4
    assert report.norm_after < report.norm_before
    assert f"{report.function_change:.1e} (relative)" in str(report)


class Writes(nn.Module):
    """Writes into its input."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.add_(1.0))


def test_inputs_are_copied() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3)
    given = x.clone()
    assert equinorm.balance(Writes(), x).function_change < 1e-6  # type: ignore[operator]
    assert torch.equal(x, given)


class Picky(nn.Module):
    """Takes only inputs that are indices of its table, and only batches of a known sum."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, index: Tensor, weight: Tensor) -> Tensor:
        if not torch.compiler.is_exporting() and abs(float(weight.sum()) - 1) > 1e-6:
            raise ValueError("weights must sum to one")
        return self.head(torch.relu(self.table(index)) * weight.unsqueeze(1))


def test_noise_that_the_model_refuses_is_left_out() -> None:
    torch.manual_seed(0)
    inputs = (torch.tensor([0, 4, 2]), torch.tensor([0.5, 0.25, 0.25]))
    assert equinorm.balance(Picky(), inputs).function_change < 1e-6  # type: ignore[operator]


def test_batch_norm_that_cannot_train_on_one_sample() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    report = equinorm.balance(net, torch.randn(1, 3))
    assert report.converged and report.symmetries.num_free == 8


def test_deep_random_networks_amplify_rounding() -> None:
    """A change beyond a few roundings passes where a one-ulp perturbation does as much."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(60):
        layers += [nn.Linear(8, 8), nn.LayerNorm(8, elementwise_affine=True), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(8, 2))
    report = equinorm.balance(net, torch.randn(4, 8))
    assert report.norm_after < report.norm_before
