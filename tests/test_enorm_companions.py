"""Optimizers and models that ENorm can work with, and those that it refuses before anything moves."""

from __future__ import annotations

import copy
import math
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from enorm_nets import CASES, assert_close, assert_same, descend, weights_of
from torch import nn

import equinorm
from equinorm.training.state import EXPONENTS

CASE = CASES["mlp"]
X = CASE.data()[0]


def made(**options: Any) -> tuple[nn.Module, torch.optim.Optimizer, equinorm.ENorm]:
    net = CASE.net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return net, optimizer, equinorm.ENorm(net, optimizer, X, **options)


def test_the_state_of_every_optimizer_of_a_parameter_moves() -> None:
    net = CASE.net()
    both = [torch.optim.Adam(net.parameters()), torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)]
    enorm = equinorm.ENorm(net, both, X)
    for optimizer in both:
        descend(net, optimizer, CASE.data())
    w = net[2].weight
    old, before = w.detach().clone(), [copy.deepcopy(dict(optimizer.state[w])) for optimizer in both]
    enorm.step()
    s = w.detach() / old
    assert (s - 1).abs().max() > 0.05
    assert_close(both[0].state[w]["exp_avg"], before[0]["exp_avg"] / s, 1e-12)
    assert_close(both[1].state[w]["momentum_buffer"], before[1]["momentum_buffer"] / s, 1e-12)


def leave(optimizer: torch.optim.Optimizer, net: nn.Module) -> None:
    del optimizer.param_groups[0]["params"][-1]


def join(optimizer: torch.optim.Optimizer, net: nn.Module) -> None:
    optimizer.add_param_group({"params": [net[4].bias]})


@pytest.mark.parametrize("change", [leave, join])
def test_parameter_groups_that_changed_are_noticed(change: Callable[..., None]) -> None:
    net = CASE.net()
    optimizer = torch.optim.SGD(list(net.parameters())[:-1], lr=0.05)
    enorm = equinorm.ENorm(net, optimizer, X)
    change(optimizer, net)
    before = weights_of(net)
    with pytest.raises(equinorm.EquinormError, match=r"parameter groups have changed.*4\..*Make a new ENorm"):
        enorm.step()
    assert_same(weights_of(net), before)


class Odd(torch.optim.SGD):
    """SGD whose state on the last weight is of a kind of its own."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        w = self.param_groups[0]["params"][4]
        self.state[w]["state1"] = self.make(w)


@pytest.mark.parametrize("solver", ["cycle", "multilevel"])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda w: torch.zeros_like(w, dtype=torch.uint8), r"has type torch\.uint8"),
        (lambda w: torch.zeros_like(w, device="meta"), "is on meta, the parameter on cpu"),
        (lambda w: torch.zeros_like(w).to_sparse(), r"is stored as torch\.sparse_coo"),
    ],
    ids=["type", "device", "layout"],
)  # fmt: skip
def test_state_of_the_wrong_kind_moves_nothing(
    make: Any, message: str, solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPONENTS, Odd, {"momentum_buffer": -1, "state1": -1})
    monkeypatch.setattr(Odd, "make", staticmethod(make), raising=False)
    net = CASE.net()
    optimizer = Odd(net.parameters(), lr=0.1, momentum=0.9)
    enorm = equinorm.ENorm(net, optimizer, X, solver=solver)
    descend(net, optimizer, CASE.data())
    before = weights_of(net)
    momentum = optimizer.state[net[0].weight]["momentum_buffer"].clone()
    with pytest.raises(equinorm.EquinormError, match=rf"'state1' of parameter 4\.weight {message}"):
        enorm.step()
    assert_same(weights_of(net), before)
    assert torch.equal(optimizer.state[net[0].weight]["momentum_buffer"], momentum)
    assert not enorm.state_dict()["total_log_scales"].any()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Adafactor", "not elementwise"), ("Shampoo", "not elementwise"), ("SOAP", "not elementwise"),
        ("AcceleratedOptimizer", r"pass that one, its \.optimizer"), ("ZeroRedundancyOptimizer", "with fully_shard"),
    ],
)  # fmt: skip
def test_classes_of_other_packages_are_known_by_name(name: str, message: str) -> None:
    cls: Any = types.new_class(name, (torch.optim.Optimizer,))
    net = CASE.net()
    with pytest.raises(equinorm.ArgumentError, match=f"optimizer: {name} .*({message})"):
        equinorm.ENorm(net, cls(net.parameters(), {}), X)
    child: Any = types.new_class("Child", (cls,))
    with pytest.raises(equinorm.ArgumentError, match=message):
        equinorm.ENorm(net, child(net.parameters(), {}), X)


def test_a_class_that_was_registered_is_not_judged_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    cls: Any = types.new_class("Shampoo", (torch.optim.Optimizer,))
    monkeypatch.setitem(EXPONENTS, cls, {})
    net = CASE.net()
    assert equinorm.ENorm(net, cls(net.parameters(), {}), X).symmetries.num_free == 18


def test_a_frozen_bias_pins_nothing_where_biases_do_not_move() -> None:
    net = CASE.net()
    net[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    assert equinorm.ENorm(net, optimizer, X).symmetries.num_free == 8
    enorm = equinorm.ENorm(net, optimizer, X, biases=False)
    assert enorm.symmetries.num_free == 18
    bias = net[0].bias.clone()
    enorm.step()
    assert torch.equal(net[0].bias, bias)


def alias(net: nn.Module) -> None:
    net[2].weight = nn.Parameter(net[0].weight.data)


def repeat(net: nn.Module) -> None:
    net[2].weight = nn.Parameter(torch.randn(6, 1).double().expand(6, 6))


@pytest.mark.parametrize(
    "companion", [lambda n: equinorm.ENorm(n, torch.optim.SGD(n.parameters()), X),
                  lambda n: equinorm.ImplicitENorm(n, X, weight_decay=0.1)], ids=["ENorm", "implicit"],
)  # fmt: skip
@pytest.mark.parametrize(("change", "message"), [(alias, "shares memory"), (repeat, "repeats entries")])
def test_parameters_that_share_memory_without_being_tied_are_refused(
    change: Callable[[nn.Module], None], message: str, companion: Any
) -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    change(net)
    with pytest.raises(equinorm.ArgumentError, match=message):
        companion(net)


def test_fsdp_of_the_first_kind_is_named() -> None:
    wrapper: Any = types.new_class("FullyShardedDataParallel", (nn.Sequential,))
    net = wrapper(*CASE.net())
    with pytest.raises(equinorm.ArgumentError, match=r"FSDP1.*fully_shard instead"):
        equinorm.ENorm(net, torch.optim.SGD(net.parameters()), X)


@pytest.mark.parametrize("where", ["4.weight", "2.weight", "4.bias"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_trained_weights_that_no_scale_moves_are_watched_too(where: str, value: float) -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3)).double()
    enorm = equinorm.ENorm(net, torch.optim.SGD(net.parameters()), X)
    enorm.step()
    net.get_parameter(where).data.view(-1)[0] = value
    before = weights_of(net)
    with pytest.raises(equinorm.EquinormError, match="not finite"):
        enorm.step()
    for name, w in weights_of(net).items():
        assert torch.equal(w.view(torch.int64), before[name].view(torch.int64)), name
