"""What can go wrong in the middle of a training run."""

from __future__ import annotations

import copy
import gc
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from enorm_nets import CASES, assert_close, assert_same, descend, weights_of
from torch import Tensor, nn

import equinorm

CASE = CASES["type C"]
X = CASE.data()[0]


def made(case: Any = CASE, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer, equinorm.ENorm]:
    net = case.net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    return net, optimizer, equinorm.ENorm(net, optimizer, case.data()[0], **options)


def momenta_of(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {name: optimizer.state[p]["momentum_buffer"].clone() for name, p in net.named_parameters()}


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    """Equal, NaN where NaN."""
    for name in a:
        assert torch.equal(a[name].view(torch.int64), b[name].view(torch.int64)), name


# Weights that are not finite --------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["cycle", "multilevel"])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize("where", ["stem.weight", "conv2.weight", "conv2.bias", "fc.weight"])
def test_weights_that_are_not_finite_stay_as_the_optimizer_left_them(
    where: str, value: float, solver: str
) -> None:
    net, optimizer, enorm = made(solver=solver)
    descend(net, optimizer, CASE.data())
    enorm.step()
    descend(net, optimizer, CASE.data(1))
    net.get_parameter(where).data.view(-1)[3] = value
    before, momenta, total = (
        weights_of(net),
        momenta_of(net, optimizer),
        enorm.state_dict()["total_log_scales"],
    )
    with pytest.raises(equinorm.EquinormError, match=r"not finite.*Lower the learning rate"):
        enorm.step()
    same_bits(weights_of(net), before)
    same_bits(momenta_of(net, optimizer), momenta)
    assert torch.equal(enorm.state_dict()["total_log_scales"], total)

    tolerant = equinorm.ENorm(net, optimizer, symmetries=enorm.symmetries, solver=solver, nonfinite="skip")
    tolerant.step()
    same_bits(weights_of(net), before)
    net.get_parameter(where).data.view(-1)[3] = 0.5
    tolerant.step()  # goes on when the weights have recovered
    assert not torch.equal(net.stem.weight, before["stem.weight"])


def test_sums_that_overflow_are_told_too() -> None:
    net = CASES["mlp"].net().float()
    enorm = equinorm.ENorm(net, torch.optim.SGD(net.parameters()), CASES["mlp"].data()[0].float())
    with torch.no_grad():
        net[0].weight[0, 0] = 1e30  # its square is not a float32
    before = weights_of(net)
    with pytest.raises(equinorm.EquinormError, match="too large for sums of their powers"):
        enorm.step()
    assert_same(weights_of(net), before)


# Channels that die and revive -------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["cycle", "multilevel"])
@pytest.mark.parametrize("side", ["producers", "consumers"])
def test_a_channel_dies_and_revives_without_a_jump(side: str, solver: str) -> None:
    net, optimizer, enorm = made(CASES["mlp"], solver=solver)
    data = CASES["mlp"].data()
    for _ in range(3):
        descend(net, optimizer, data)
        enorm.step()
    line = (net[0].weight[2], net[0].bias[2]) if side == "producers" else (net[2].weight[:, 2],)
    kept = [part.clone() for part in line]

    def channel() -> float:
        up, _ = enorm.total_scales()["0.bias"]
        return up[2].item()

    with torch.no_grad():
        for part in line:
            part.zero_()
        alive = channel()
        for _ in range(3):
            y = net(data[0])
            enorm.step()
            assert_close(net(data[0]), y, 1e-12)
        assert channel() == alive  # dead: left alone
        for part, old in zip(line, kept, strict=True):
            part.copy_(1e-12 * old)
        momentum = optimizer.state[net[2].weight]["momentum_buffer"][:, 2].norm().item()
        for _ in range(14):
            before, y = channel(), net(data[0])
            enorm.step()
            assert 1 / 8.0001 <= channel() / before <= 8.0001
            assert_close(net(data[0]), y, 1e-12)
        assert optimizer.state[net[2].weight]["momentum_buffer"][:, 2].norm().item() <= momentum * 8.0001**14
        for _ in range(60):
            enorm.step()
    assert enorm.residual() < 1e-2
    assert all(p.isfinite().all() for p in net.parameters())


def test_without_the_bound_a_reviving_channel_multiplies_its_momentum_beyond_use() -> None:
    """Why ``max_scale`` is on by default: the same step with a bound too large to act."""
    grown = []
    for cap in (8.0, 1e30):
        net, optimizer, enorm = made(CASES["mlp"], max_scale=cap)
        descend(net, optimizer, CASES["mlp"].data())
        with torch.no_grad():
            net[0].weight[2] = 1e-12 * net[0].weight[2]
        before = optimizer.state[net[2].weight]["momentum_buffer"][:, 2].norm()
        enorm.step()
        grown.append((optimizer.state[net[2].weight]["momentum_buffer"][:, 2].norm() / before).item())
    assert grown[0] <= 80
    assert grown[1] > 1e4


# A model that changes ---------------------------------------------------------------------------------------


def _replace_layer(net: nn.Module) -> None:
    net.conv1 = nn.Conv2d(5, 4, 3, padding=1).double()


def _wider_layer(net: nn.Module) -> None:
    net.conv1 = nn.Conv2d(5, 9, 3, padding=1).double()


def _replace_parameter(net: nn.Module) -> None:
    net.conv1.weight = nn.Parameter(net.conv1.weight.detach().clone())


def _reshape(net: nn.Module) -> None:
    net.conv1.weight.data = torch.randn(9, 5, 3, 3, dtype=torch.float64)


def _cast(net: nn.Module) -> None:
    net.float()


def _freeze(net: nn.Module) -> None:
    net.conv1.requires_grad_(False)


def _add_layer(net: nn.Module) -> None:
    net.extra = nn.Linear(3, 3)


def _add_parameter(net: nn.Module) -> None:
    net.conv1.gain = nn.Parameter(torch.ones(4))


def _remove_bias(net: nn.Module) -> None:
    net.conv1.bias = None


def _transpose(net: nn.Module) -> None:
    net.conv4.weight.data = net.conv4.weight.data.transpose(2, 3)  # the same memory, another order


def _restride(net: nn.Module) -> None:
    net.to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "change",
    [_replace_layer, _wider_layer, _replace_parameter, _reshape, _cast, _freeze, _add_layer, _add_parameter,
     _remove_bias, _transpose, _restride],
)  # fmt: skip
def test_a_model_that_changed_is_noticed_before_anything_moves(change: Callable[[nn.Module], None]) -> None:
    net, optimizer, enorm = made()
    descend(net, optimizer, CASE.data())
    enorm.step()
    change(net)
    before = weights_of(net)
    with pytest.raises(equinorm.EquinormError, match="Make a new ENorm"):
        enorm.step()
    assert_same(weights_of(net), before)


def test_symmetries_of_another_model_are_refused() -> None:
    net, optimizer, _ = made()
    with pytest.raises(equinorm.ArgumentError, match="found on another model"):
        equinorm.ENorm(
            net, optimizer, symmetries=equinorm.symmetries(CASES["mlp"].net(), CASES["mlp"].data()[0])
        )


# Stopping and going on --------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("solver", ["cycle", "multilevel"])
def test_stopping_and_going_on_is_never_having_stopped(every: int, solver: str, tmp_path: Path) -> None:
    net, optimizer, enorm = made(every=every, solver=solver)
    for k in range(14):
        if k == 7:
            parts = {"model": net, "optimizer": optimizer, "enorm": enorm}
            torch.save({name: part.state_dict() for name, part in parts.items()}, tmp_path / "last.pt")
        descend(net, optimizer, CASE.data(k))
        enorm.step()

    saved = torch.load(tmp_path / "last.pt")  # weights_only: nothing but tensors and plain values
    again, other, resumed = made(every=every, solver=solver)
    again.load_state_dict(saved["model"])
    other.load_state_dict(saved["optimizer"])
    resumed.load_state_dict(saved["enorm"])
    for k in range(7, 14):
        descend(again, other, CASE.data(k))
        resumed.step()
    assert_same(weights_of(again), weights_of(net))
    assert_same(momenta_of(again, other), momenta_of(net, optimizer))
    assert_same(
        {"x": resumed.state_dict()["total_log_scales"]}, {"x": enorm.state_dict()["total_log_scales"]}
    )


def test_wrong_states_are_refused() -> None:
    enorm = made()[2]
    enorm.step()
    good = enorm.state_dict()
    frozen = CASE.net()
    frozen.conv1.requires_grad_(False)
    others = {
        "another model": made(CASES["mlp"])[2].state_dict(),
        "other frozen parameters": equinorm.ENorm(
            frozen, torch.optim.SGD(frozen.parameters()), X
        ).state_dict(),
    }
    for state in others.values():
        with pytest.raises(equinorm.ArgumentError, match="another model, or from other frozen parameters"):
            enorm.load_state_dict(state)
    for key in good:
        with pytest.raises(equinorm.ArgumentError, match=f"'{key}' is missing"):
            enorm.load_state_dict({k: v for k, v in good.items() if k != key})
    assert_same({"x": enorm.state_dict()["total_log_scales"]}, {"x": good["total_log_scales"]})
    good["total_log_scales"].zero_()  # a copy: the state in use is not touched
    assert enorm.state_dict()["total_log_scales"].any()


def test_no_memory_grows_with_the_number_of_steps() -> None:
    net, optimizer, enorm = made()
    enorm.follow(copy.deepcopy(net))
    descend(net, optimizer, CASE.data())

    def measured(steps: int) -> tuple[int, int]:
        for _ in range(steps):
            enorm.step()
        gc.collect()
        tensors = sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())
        return tensors, tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        measured(20)
        tensors, memory = measured(5)
        later, peak = measured(200)
    finally:
        tracemalloc.stop()
    assert later <= tensors
    assert peak - memory < 20_000
