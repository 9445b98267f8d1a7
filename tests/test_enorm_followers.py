"""Copies and averages that follow ENorm's scales."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from enorm_nets import CASES, assert_close, assert_same, weights_of
from torch import nn
from torch.optim.swa_utils import AveragedModel

import equinorm

CASE = CASES["mlp"]
X = CASE.data()[0]


def made(**options: Any) -> tuple[nn.Module, torch.optim.Optimizer, equinorm.ENorm]:
    net = CASE.net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return net, optimizer, equinorm.ENorm(net, optimizer, X, **options)


def cast_and_back(ema: nn.Module) -> None:
    ema.float().double()


def load_by_assignment(ema: nn.Module) -> None:
    ema.load_state_dict({name: t.clone() for name, t in ema.state_dict().items()}, assign=True)


def replace_a_layer(ema: nn.Module) -> None:
    layer = nn.Linear(10, 8).double()
    layer.load_state_dict(ema[2].state_dict())
    ema[2] = layer


@pytest.mark.parametrize("change", [cast_and_back, load_by_assignment, replace_a_layer])
def test_a_copy_follows_whatever_happens_to_its_tensors(change: Callable[[nn.Module], None]) -> None:
    net, _, enorm = made()
    ema = copy.deepcopy(net)
    enorm.follow(ema)
    for _ in range(2):
        enorm.step()
    change(ema)
    with torch.no_grad():
        y, before = ema(X), ema[2].weight.clone()
        net[0].weight.mul_(3)
        enorm.step()
        assert_close(ema(X), y, 1e-6)
    assert not torch.equal(ema[2].weight, before)


@pytest.mark.parametrize("again", ["same", "inside", "tensors"])
def test_following_twice_is_following_once(again: str) -> None:
    net, _, enorm = made()
    ema = AveragedModel(net)
    enorm.follow(ema)
    second: Any = {"same": ema, "inside": ema.module, "tensors": dict(ema.module.named_parameters())}[again]
    enorm.follow(second)
    with torch.no_grad():
        y = ema(X)
        enorm.step()
        assert_close(ema(X), y, 1e-12)


def test_a_mapping_of_tensors_follows() -> None:
    net, _, enorm = made()
    kept = {name: p.detach().float() for name, p in net.named_parameters()}
    old = {name: t.clone() for name, t in kept.items()}
    enorm.follow(kept)
    kept["0.weight"] = kept["0.weight"].clone()  # looked up at every step
    enorm.step()
    for name, (up, down) in enorm.total_scales().items():
        assert_close(kept[name], old[name] * (up / down).float(), 1e-6, name)
    del kept["0.weight"]
    before = weights_of(net)
    with pytest.raises(equinorm.ArgumentError, match=r"averaged: it has no parameter 0\.weight"):
        enorm.step()
    assert_same(weights_of(net), before)


def shared_with_the_model(net: nn.Module, other: nn.Module) -> Any:
    other[2].weight = net[2].weight
    return other


def shared_in_part(net: nn.Module, other: nn.Module) -> Any:
    buffer = torch.zeros(108 + 5, dtype=torch.float64)
    return {
        **dict(other.named_parameters()),
        "2.weight": buffer[5:85].view(8, 10),
        "0.weight": buffer[:60].view(10, 6),
    }


def on_another_device(net: nn.Module, other: nn.Module) -> Any:
    return other.to("meta")


def of_whole_numbers(net: nn.Module, other: nn.Module) -> Any:
    return {name: p.detach().round().long() for name, p in other.named_parameters()}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda net, other: net, "shares memory with the model"),
        (lambda net, other: net.state_dict(), "shares memory with the model"),
        (shared_with_the_model, r"its 2\.weight shares memory with the model"),
        (shared_in_part, r"its [02]\.weight shares memory .* another copy"),
        (on_another_device, "is on meta, the parameter on cpu"), (of_whole_numbers, r"has type torch\.int64"),
        (lambda net, other: nn.Sequential(nn.Linear(6, 9), *other[1:]), "has shape"),
        (lambda net, other: 3, "expected a module"),
    ],
    ids=["the model", "its tensors", "one of its", "partly", "device", "type", "shape", "no copy"],
)  # fmt: skip
def test_what_would_be_scaled_twice_or_not_at_all_does_not_follow(build: Any, message: str) -> None:
    net, _, enorm = made()
    with pytest.raises(equinorm.ArgumentError, match=f"averaged: .*{message}"):
        enorm.follow(build(net, copy.deepcopy(net)))
    with torch.no_grad():
        y = net(X)
        enorm.step()
        assert_close(net(X), y, 1e-12)


def test_views_of_one_flat_buffer_follow() -> None:
    net, _, enorm = made()
    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
    sizes = [p.numel() for p in net.parameters()]
    parts = dict(zip(dict(net.named_parameters()), flat.split(sizes), strict=True))
    enorm.follow({name: part.view(net.get_parameter(name).shape) for name, part in parts.items()})
    enorm.step()
    for name, p in net.named_parameters():
        assert_close(parts[name].view(p.shape), p.detach(), 1e-12, name)
