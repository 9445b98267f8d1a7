"""``verify`` leaves no trace, catches every change of the function, and only reports where one was asked for."""

from __future__ import annotations

import copy
import itertools
import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hf_models import DECODER, hf
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
        "numpy": [*np.random.get_state()[1], np.random.get_state()[2]],
        "training": [module.training for module in net.modules()],
        "requires_grad": [p.requires_grad for p in net.parameters()],
        "gradients": [None if p.grad is None else p.grad.clone() for p in net.parameters()],
        "buffers": [b.clone() for b in net.buffers()],
        "identities": [id(t) for t in _tensors(net)] + [t.data_ptr() for t in _tensors(net)],
        "grad mode": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
    }


def _tensors(net: nn.Module) -> list[Tensor]:
    return [*net.parameters(), *net.buffers()]


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
    """Its outputs change from call to call, by a state that nobody can put back."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        self.calls = itertools.count(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * next(self.calls)


def test_state_out_of_reach_is_reported() -> None:
    torch.manual_seed(0)
    net = Counts()
    weights = copy.deepcopy(net.state_dict())
    with pytest.raises(EquinormError, match="from call to call with the same weights"):
        equinorm.balance(net, torch.randn(4, 3))
    assert all(torch.equal(weights[k], v) for k, v in net.state_dict().items())


class Stores(nn.Module):
    """Keeps state in plain attributes: numbers, lists and dicts, activations, tensors that it makes once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)
        self.calls, self.log, self.cache, self.seen = 0, [0], {"first": {}}, {1}
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.log.append(self.calls)
        self.seen.add(self.calls)
        if self.table is None:
            self.table = torch.arange(2.0)
        h = torch.relu(self.first(x))
        self.cache["first"]["hidden"] = h
        self.late = [h.detach()]
        return self.last(h) * self.calls + self.table


def test_state_in_attributes_is_put_back() -> None:
    """Neither a trace, whose tensors are fakes, nor a comparison leaves anything on the model."""
    torch.manual_seed(0)
    net = Stores()
    holders = net.log, net.cache, net.seen
    report = equinorm.balance(net, torch.randn(4, 3))
    assert report.function_change is not None and report.function_change < 1e-6
    assert (net.calls, net.table) == (0, None) and not hasattr(net, "late") and "forward" not in vars(net)
    assert holders == ([0], {"first": {}}, {1})
    assert all(a is b for a, b in zip(holders, (net.log, net.cache, net.seen), strict=True))


def test_an_activation_that_is_stored_is_an_output() -> None:
    sym = equinorm.symmetries(Stores(), torch.randn(4, 3))
    assert sym.num_free == 0
    assert any("stored on the model" in pin.reason for pin in sym.pinned), sym.pinned


def test_what_is_stored_but_not_computed_from_inputs_pins_nothing() -> None:
    """A table, or a weight that was merged once, is read by this model only."""

    class Merges(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.gain = (
                nn.Linear(3, 8),
                nn.Linear(8, 2),
                nn.Parameter(torch.ones(8, 1)),
            )

        def forward(self, x: Tensor) -> Tensor:
            self.merged = self.first.weight * self.gain
            return self.last(torch.relu(x @ self.merged.T))

    assert equinorm.symmetries(Merges(), torch.randn(4, 3)).num_free == 16


class Remembers(nn.Module):
    """Keeps state in buffers, one written to, one replaced, one growing; draws from Python and NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        self.register_buffer("total", torch.zeros(2))
        self.register_buffer("count", torch.zeros(()), persistent=False)
        self.register_buffer("seen", torch.zeros(0, 3))
        self.register_buffer("nothing", None)
        self.register_buffer("repeated", torch.zeros(1).expand(4))
        self.fails = False

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        drawn = random.random() + np.random.rand()
        if torch.compiler.is_exporting():
            return y
        self.count = self.count + 1
        self.seen = torch.cat([self.seen, x.detach()])
        self.register_buffer("late", torch.ones(1))
        self.total += y.detach().sum(0)
        if self.fails and not self.training:
            raise RuntimeError("no luck")
        return y + self.count + self.total + self.seen.sum() + drawn


@pytest.mark.parametrize("fails", (False, True))
def test_state_in_buffers_and_randomness_outside_torch_are_put_back(fails: bool) -> None:
    torch.manual_seed(0)
    net, x = Remembers(), torch.randn(4, 3)
    net.fails = fails
    before = everything(net)
    if fails:
        with pytest.raises(ValueError, match="no luck"):
            equinorm.balance(net, x)
    else:
        assert equinorm.balance(net, x).function_change < 1e-6  # type: ignore[operator]
    after = everything(net)
    for name in before:
        assert same(before[name], after[name]), name
    assert set(dict(net.named_buffers())) == {"total", "count", "seen", "repeated"}


def test_the_cache_of_a_language_model_is_state() -> None:
    """Keys and values that it returns for its next call are no outputs; one can leave them on."""
    net, tokens = hf.LlamaForCausalLM(hf.LlamaConfig(**DECODER)), torch.arange(14).view(2, 7)
    without = {"input_ids": tokens, "use_cache": False}
    expected = equinorm.symmetries(net, without).num_free
    assert expected > 0 and net(tokens).past_key_values is not None
    for inputs in (tokens, {"input_ids": tokens}, without):
        assert equinorm.symmetries(net, inputs).num_free == expected
    assert equinorm.balance(net, tokens).function_change < 1e-5  # type: ignore[operator]
    assert net.config.use_cache is True and net(tokens).past_key_values is not None
    with pytest.raises(ValueError, match=r"DynamicCache .* use_cache=False"):
        equinorm.symmetries(net, {"input_ids": tokens, "use_cache": True})


def test_the_analysis_draws_no_random_numbers() -> None:
    net = Remembers()
    before = everything(net)
    equinorm.symmetries(net, torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    for name, value in everything(net).items():
        assert same(before[name], value), name


class Renormalised(nn.Module):
    """Its forward pass writes to a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.first, self.last = (
            nn.Embedding(11, 4, max_norm=0.1), nn.Linear(4, 8), nn.Linear(8, 3)
        )  # fmt: skip

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(self.table(tokens))))


def test_parameters_that_the_forward_pass_writes_are_put_back() -> None:
    torch.manual_seed(0)
    net = Renormalised()
    table = net.table.weight.detach().clone()
    report = equinorm.balance(net, torch.arange(10).view(2, 5))
    assert report.norm_after < report.norm_before and torch.equal(net.table.weight, table)


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


# -- precisions ----------------------------------------------------------------------------------------------


def autocast(net: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = torch.relu(net.first(x))
    return net.last(h.float())


def cast(net: Any, x: Tensor) -> Tensor:
    return net.last(torch.relu(net.first(x)).bfloat16().float())


def half(net: Any, x: Tensor) -> Tensor:
    return net.last(torch.relu(net.first(x)).half().float())


class Coarse(nn.Module):
    """Single precision outside, less within."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.run, self.first, self.last = run, nn.Linear(50, 40), nn.Linear(40, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("run", (autocast, cast, half))
def test_low_precision_inside_a_model(run: Callable[[Any, Tensor], Tensor], seed: int) -> None:
    torch.manual_seed(seed)
    net, x = Coarse(run), torch.randn(6, 50)
    exact = copy.deepcopy(net)
    report = equinorm.balance(net, x)
    assert report.norm_after < report.norm_before
    assert report.function_change is not None and 1e-6 < report.function_change < 0.05
    assert equinorm.balance(exact, x, scales="pow2").function_change == 0


@pytest.mark.parametrize("run", (autocast, cast, half))
def test_low_precision_inside_does_not_hide_a_change(
    run: Callable[[Any, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rules.RULES, "tanh", Rule(rules.RULES["relu"].function, "wrong"))
    monkeypatch.setattr(torch, "relu", torch.tanh)
    torch.manual_seed(0)
    net, x = Coarse(run), torch.randn(6, 50)
    with torch.no_grad():
        net.first.weight.mul_(30)
    weights = copy.deepcopy(net.state_dict())
    with pytest.raises(EquinormError, match=r"the outputs changed by .* the weights are restored"):
        equinorm.balance(net, x)
    assert all(torch.equal(weights[k], v) for k, v in net.state_dict().items())


# -- inputs and outputs that say nothing ---------------------------------------------------------------------


def test_inputs_that_require_gradients() -> None:
    net, x = network()
    x.requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert equinorm.balance(net, x).function_change < 1e-5  # type: ignore[operator]
    assert x.grad is None and x.requires_grad


class Masked(nn.Module):
    """A mask of minus infinity is an input like any other."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(mask, -1) @ self.down(torch.relu(self.up(x)))


def test_masks_of_minus_infinity() -> None:
    torch.manual_seed(0)
    net, mask = Masked(), torch.full((3, 3), -math.inf).triu(1)
    change = equinorm.balance(net, (torch.randn(3, 4), mask)).function_change
    assert change is not None and change < 1e-6


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def test_outputs_that_are_not_finite_verify_nothing() -> None:
    net = mlp()
    with torch.no_grad():
        net[0].weight.mul_(1e30)
        net[2].weight.mul_(1e30)
        net[2].bias.fill_(math.inf)  # moved by no scale
    with pytest.raises(ValueError, match=r"2\.bias"):
        equinorm.balance(net, torch.randn(4, 3))
    net[2].bias.detach().zero_()
    report = equinorm.balance(net, 1e9 * torch.ones(4, 3))
    assert report.function_change is not None and math.isnan(report.function_change)
    assert "nothing to compare: no output is finite" in str(report)
    with torch.no_grad():
        net[0].weight.mul_(1e-30)  # single precision holds the outputs now
    assert equinorm.balance(net, torch.randn(4, 3)).function_change < 1e-5  # type: ignore[operator]


def test_scales_of_another_network_are_caught_where_outputs_are_finite() -> None:
    sym = equinorm.symmetries(mlp(), torch.randn(4, 3))
    net = mlp()
    net[1] = nn.Tanh()
    with torch.no_grad():
        net[0].weight.mul_(30)
    with pytest.raises(EquinormError, match="the outputs changed by"):
        equinorm.balance(net, torch.randn(4, 3), symmetries=sym)


def test_outputs_that_overflow_are_refused() -> None:
    """p near zero asks for scales such as (30 / 5)^(1 / 2p)."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 3))
    weights = copy.deepcopy(net.state_dict())
    for p in (1e-3, 5e-3):
        with pytest.raises(EquinormError, match=r"the range of (its|their) precision; use .* a larger p"):
            equinorm.balance(net, torch.randn(4, 5), p=p)
        assert all(torch.equal(weights[k], v) for k, v in net.state_dict().items())
