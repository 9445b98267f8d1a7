"""What ENorm records is what it applied: totals, states, types and their range."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from enorm_nets import CASES, assert_close, assert_same, weights_of
from torch import nn

import equinorm

CASE = CASES["mlp"]
X = CASE.data()[0]


def made(**options: Any) -> tuple[nn.Module, torch.optim.Optimizer, equinorm.ENorm]:
    net = CASE.net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return net, optimizer, equinorm.ENorm(net, optimizer, X, **options)


@pytest.mark.parametrize(("dtype", "drift"), [(torch.float32, 1e-6), (torch.bfloat16, 0.03)])
def test_totals_and_weights_stay_together_over_many_idle_steps(dtype: torch.dtype, drift: float) -> None:
    net = CASE.net().to(dtype)
    with torch.no_grad():
        net[0].weight.mul_(3)
    enorm = equinorm.ENorm(net, torch.optim.SGD(net.parameters()), X.to(dtype))
    old = weights_of(net)
    for _ in range(100):
        enorm.step()
    settled, total = weights_of(net), enorm.state_dict()["total_log_scales"]
    for _ in range(300):
        enorm.step()
    assert_same(weights_of(net), settled)  # idle is idle
    assert torch.equal(enorm.state_dict()["total_log_scales"], total)
    for name, (up, down) in enorm.total_scales().items():
        assert_close(net.get_parameter(name).double(), old[name].double() * up / down, drift, name)


def test_total_scales_are_those_of_their_time() -> None:
    net, _, enorm = made()
    enorm.step()
    then, old = enorm.total_scales(), weights_of(net)
    kept = {name: (up.clone(), down.clone()) for name, (up, down) in then.items()}
    net[0].weight.data.mul_(3)
    net[0].bias.data.mul_(3)
    old = weights_of(net)
    for _ in range(3):
        enorm.step()
    now = enorm.total_scales()
    for name, (up, down) in then.items():
        assert torch.equal(up, kept[name][0]) and torch.equal(down, kept[name][1])
        assert_close(
            net.get_parameter(name).detach(), old[name] * (now[name][0] / up) / (now[name][1] / down), 1e-12
        )


@pytest.mark.parametrize("scales", ["real", "pow2"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_without_a_bound_scales_stay_in_range(scales: str, dtype: torch.dtype) -> None:
    net = CASE.net().to(dtype)
    enorm = equinorm.ENorm(
        net, torch.optim.SGD(net.parameters()), X.to(dtype), scales=scales, max_scale=math.inf
    )
    with torch.no_grad():
        net[0].weight[2], net[0].bias[2] = 1e-15 * net[0].weight[2], 1e-15 * net[0].bias[2]
        net[2].weight[:, 2] *= 1e15
    for _ in range(12):
        enorm.step()
    assert enorm.residual() < {"real": 0.02, "pow2": 1.0}[scales]
    assert all(p.isfinite().all() for p in net.parameters())


def test_a_state_that_is_no_state_is_refused() -> None:
    _, _, enorm = made()
    good = enorm.state_dict()
    enorm.load_state_dict({**good, "total_log_scales": good["total_log_scales"].tolist()})  # from JSON
    for bad in ({"total_log_scales": "none"}, {"total_log_scales": None}, {"steps": None}):
        with pytest.raises(equinorm.ArgumentError, match="not numbers"):
            enorm.load_state_dict({**good, **bad})


def test_states_tell_equally_many_frozen_scales_apart() -> None:
    def frozen(which: int) -> equinorm.ENorm:
        layers = [layer for _ in range(5) for layer in (nn.Linear(6, 6), nn.ReLU())][:-1]
        net = nn.Sequential(*layers).double()
        net[which].requires_grad_(False)
        return equinorm.ENorm(net, torch.optim.SGD(net.parameters()), X)

    one, other = frozen(2), frozen(4)
    assert one.symmetries.num_free == other.symmetries.num_free
    with pytest.raises(equinorm.ArgumentError, match="other frozen parameters"):
        other.load_state_dict(one.state_dict())
    frozen(2).load_state_dict(one.state_dict())
