"""ENorm as a hook of the optimizer, and called in other modes of PyTorch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from enorm_nets import CASES, assert_same, descend, weights_of
from torch import nn

import equinorm

CASE = CASES["mlp"]
X = CASE.data()[0]


def made(**options: Any) -> tuple[nn.Module, torch.optim.Optimizer, equinorm.ENorm]:
    net = CASE.net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return net, optimizer, equinorm.ENorm(net, optimizer, X, **options)


def steps_of(enorm: equinorm.ENorm) -> int:
    return int(enorm.state_dict()["steps"])


def test_attached_twice_it_runs_once() -> None:
    net, optimizer, enorm = made()
    handle = enorm.attach()
    assert enorm.attach() is handle
    descend(net, optimizer, CASE.data())
    assert steps_of(enorm) == 1
    handle.remove()
    descend(net, optimizer, CASE.data())
    assert steps_of(enorm) == 1
    enorm.attach()
    descend(net, optimizer, CASE.data())
    assert steps_of(enorm) == 2


def test_the_last_attached_of_a_model_runs_and_those_of_other_models() -> None:
    net, other = CASE.net(), CASE.net(1)
    optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], lr=0.05)
    forgotten, mine, theirs = (equinorm.ENorm(which, optimizer, X) for which in (net, net, other))
    for enorm in (forgotten, theirs, mine):
        enorm.attach()
    descend(net, optimizer, CASE.data())
    assert [steps_of(enorm) for enorm in (forgotten, mine, theirs)] == [0, 1, 1]


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch.compile's own
def test_a_compiled_optimizer_step_runs_it() -> None:
    nets = []
    for compiled in (True, False):
        net, optimizer, enorm = made()
        enorm.attach()
        step = torch.compile(lambda o=optimizer: o.step(), backend="eager") if compiled else optimizer.step
        for k in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(CASE.data(k)[0]), CASE.data(k)[1]).backward()
            step()
        assert steps_of(enorm) == 3
        nets.append(net)
    assert_same(weights_of(nets[0]), weights_of(nets[1]))


@pytest.mark.parametrize("call", ["norm", "residual", "step"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("solver", ["cycle", "multilevel"])
def test_asked_first_in_inference_mode_it_steps_later(call: str, dtype: torch.dtype, solver: str) -> None:
    net = CASE.net().to(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    enorm = equinorm.ENorm(net, optimizer, X.to(dtype), solver=solver)
    with torch.inference_mode():
        getattr(enorm, call)()
    x, y = CASE.data()
    for _ in range(2):
        descend(net, optimizer, (x.to(dtype), y))
        enorm.step()
    assert math.isfinite(enorm.norm())
