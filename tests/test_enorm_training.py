"""ENorm among the other things of a training loop."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from enorm_nets import CASES, DTYPE, assert_close, assert_same, descend, loss_of, weights_of
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import equinorm
from equinorm.training.state import EXPONENTS

CASE = CASES["type C"]
X = CASE.data()[0]


def sgd(net: nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(net.parameters(), **{"lr": 0.02, "momentum": 0.9, **options})


def trained(
    net: nn.Module, steps: int = 10, **options: Any
) -> tuple[nn.Module, torch.optim.SGD, equinorm.ENorm]:
    optimizer = sgd(net)
    enorm = equinorm.ENorm(net, optimizer, X, **options)
    for k in range(steps):
        descend(net, optimizer, CASE.data(k))
        enorm.step()
    return net, optimizer, enorm


def assert_preserved(net: nn.Module, enorm: equinorm.ENorm, x: Tensor = X, tolerance: float = 1e-12) -> None:
    """One more step of ENorm moves weights, not outputs, in training and in evaluation."""
    mode, before = net.training, weights_of(net)
    for training in (True, False):
        net.train(training)
        plain = copy.deepcopy(net)
        with torch.no_grad():
            y = plain(x)
            enorm.step()
            assert_close(net(x), y, tolerance)
    net.train(mode)
    assert any(not torch.equal(before[name], p) for name, p in net.named_parameters())


# What must not move -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["frozen", "not owned"])
def test_parameters_that_must_not_move_pin_their_scales(how: str) -> None:
    net = CASE.net()
    if how == "frozen":
        net.conv1.requires_grad_(False)
    optimizer = torch.optim.SGD(
        [p for n, p in net.named_parameters() if "conv1" not in n], lr=0.05, momentum=0.9
    )
    if how == "frozen":
        optimizer = sgd(net, lr=0.05)
    enorm = equinorm.ENorm(net, optimizer, X)
    free = equinorm.symmetries(net, X).num_free
    assert enorm.symmetries.num_free == free - 5 - 4  # what conv1 consumes and produces
    assert enorm.symmetries.coverage == 6 / 8  # neither conv1 nor the stem before it has anything free
    reason = {"frozen": "it is frozen (requires_grad=False)", "not owned": "the optimizer does not own it"}[
        how
    ]
    assert ("conv1.weight", reason) in {(pin.what, pin.reason) for pin in enorm.symmetries.pinned}
    conv1 = weights_of(net.conv1)
    for k in range(10):
        descend(net, optimizer, CASE.data(k))
        assert_preserved(net, enorm) if k == 0 else enorm.step()
    assert_same(weights_of(net.conv1), conv1)
    everything = enorm.total_scales()
    assert all(torch.equal(side, torch.ones_like(side)) for side in everything["conv1.weight"])
    assert not torch.equal(everything["conv4.weight"][0], torch.ones_like(everything["conv4.weight"][0]))


def test_several_optimizers_share_the_parameters() -> None:
    net = CASE.net()
    early = torch.optim.SGD([p for n, p in net.named_parameters() if "conv" in n], lr=0.02, momentum=0.9)
    late = torch.optim.Adam([p for n, p in net.named_parameters() if "conv" not in n])
    enorm = equinorm.ENorm(net, [early, late], X)
    for optimizer in (early, late):
        descend(net, optimizer, CASE.data())
    old, states = (
        weights_of(net),
        {n: copy.deepcopy({**early.state[p], **late.state[p]}) for n, p in net.named_parameters()},
    )
    enorm.step()
    for name, p in net.named_parameters():
        s = p.detach() / old[name]
        now = {**early.state[p], **late.state[p]}
        assert set(now) == ({"momentum_buffer"} if "conv" in name else {"step", "exp_avg", "exp_avg_sq"})
        for key, exponent in {"momentum_buffer": -1, "exp_avg": -1, "exp_avg_sq": -2}.items():
            if key in now:
                assert_close(now[key], states[name][key] * s**exponent, 1e-12, f"{key} of {name}")


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    net = CASE.net()
    with pytest.raises(equinorm.ArgumentError, match=r"owns none of the model's parameters.*masters"):
        equinorm.ENorm(net, sgd(copy.deepcopy(net)), X)


# Batch norm, biases -----------------------------------------------------------------------------------------


class Normed(nn.Module):
    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 5, 3), nn.Linear(5, 3)
        self.na, self.nb = (nn.BatchNorm2d(6), nn.BatchNorm2d(5)) if norm else (nn.Identity(), nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.na(self.a(x)))
        return self.fc(torch.relu(self.nb(self.b(x))).mean((2, 3)))


def test_batch_norm_preserve_moves_its_affine_weights_and_keeps_the_function() -> None:
    torch.manual_seed(0)
    net, _, enorm = trained(Normed(True).to(DTYPE))
    assert enorm.symmetries.num_free == 11
    assert set(enorm.total_scales()) >= {"na.weight", "na.bias", "nb.weight", "b.weight", "fc.weight"}
    descend(net, sgd(net), CASE.data())
    assert_preserved(net, enorm)


def test_batch_norm_ignore_is_enorm_of_the_network_without_it() -> None:
    torch.manual_seed(0)
    net, bare = Normed(True).to(DTYPE), Normed(False).to(DTYPE)
    bare.load_state_dict({k: v for k, v in net.state_dict().items() if k[0] != "n"})
    affine = {name: p for name, p in weights_of(net).items() if name[0] == "n"}
    x = CASE.data()[0]
    with torch.no_grad():
        y = net(x)
    enorm = equinorm.ENorm(net, sgd(net), x, batch_norm="ignore")
    other = equinorm.ENorm(bare, sgd(bare), x)
    for _ in range(3):
        enorm.step()
        other.step()
    for name, p in bare.named_parameters():
        assert_close(net.get_parameter(name).detach(), p.detach(), 1e-12, name)
    assert_same({name: p for name, p in weights_of(net).items() if name[0] == "n"}, affine)
    with torch.no_grad():
        assert (net(x) - y).abs().max() > 1e-3  # the function is not preserved
    with pytest.raises(equinorm.ArgumentError, match="symmetries: found with batch_norm='ignore'"):
        equinorm.ENorm(net, sgd(net), symmetries=enorm.symmetries)


def test_without_biases_weights_move_as_with_them() -> None:
    nets = CASE.net(), CASE.net()
    for net, biases in zip(nets, (True, False), strict=True):
        optimizer = sgd(net)
        descend(net, optimizer, CASE.data())
        old = weights_of(net)
        momenta = {n: optimizer.state[p]["momentum_buffer"].clone() for n, p in net.named_parameters()}
        equinorm.ENorm(net, optimizer, X, biases=biases).step()
    for name, p in nets[1].named_parameters():
        if name.endswith("bias"):
            assert torch.equal(p, old[name]) and torch.equal(
                optimizer.state[p]["momentum_buffer"], momenta[name]
            )
        else:
            assert torch.equal(p, nets[0].get_parameter(name))


# When -------------------------------------------------------------------------------------------------------


def test_every_third_step() -> None:
    net = CASE.net()
    optimizer = sgd(net)
    enorm = equinorm.ENorm(net, optimizer, X, every=3)
    moved = []
    for k in range(9):
        descend(net, optimizer, CASE.data(k))
        before = weights_of(net)
        enorm.step()
        moved.append(any(not torch.equal(before[n], p) for n, p in net.named_parameters()))
    assert moved == [False, False, True] * 3


def test_attached_it_runs_after_each_optimizer_step_until_removed() -> None:
    by_hand, _, reference = trained(CASE.net(), 5)
    net = CASE.net()
    optimizer = sgd(net)
    enorm = equinorm.ENorm(net, optimizer, X)
    handle = enorm.attach()
    for k in range(5):
        descend(net, optimizer, CASE.data(k))
    assert_same(weights_of(net), weights_of(by_hand))
    assert enorm.state_dict()["steps"] == reference.state_dict()["steps"] == 5
    handle.remove()
    descend(net, optimizer, CASE.data())
    assert enorm.state_dict()["steps"] == 5


def test_with_a_closure_it_runs_after_the_update() -> None:
    net, other = CASE.net(), CASE.net()
    for which, closure in ((net, True), (other, False)):
        optimizer = sgd(which)
        equinorm.ENorm(which, optimizer, X).attach()
        for k in range(3):

            def evaluate(which: nn.Module = which, optimizer: Any = optimizer, k: int = k) -> Tensor:
                optimizer.zero_grad()
                loss = loss_of(which, CASE.data(k))
                loss.backward()
                return loss

            if closure:
                optimizer.step(evaluate)
            else:
                evaluate()
                optimizer.step()
    assert_same(weights_of(net), weights_of(other))


# Gradients --------------------------------------------------------------------------------------------------


def test_accumulated_gradients_are_those_of_the_whole_batch() -> None:
    whole, parts = CASE.net(), CASE.net()
    for net, pieces in ((whole, 1), (parts, 4)):
        optimizer = sgd(net)
        enorm = equinorm.ENorm(net, optimizer, X)
        for k in range(10):
            x, y = CASE.data(k)
            optimizer.zero_grad()
            for i in range(pieces):
                (loss_of(net, (x[i::pieces], y[i::pieces])) / pieces).backward()
            optimizer.step()
            enorm.step()
    for name, p in parts.named_parameters():
        assert_close(p.detach(), whole.get_parameter(name).detach(), 1e-11, name)


def test_gradients_stay_as_they_are_and_clipping_sees_todays_gauge() -> None:
    net = CASE.net()
    optimizer = sgd(net)
    enorm = equinorm.ENorm(net, optimizer, X)
    for k in range(5):
        optimizer.zero_grad()
        loss_of(net, CASE.data(k)).backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.01)
        assert norm > 0.01
        clipped = {name: p.grad.clone() for name, p in net.named_parameters()}
        optimizer.step()
        enorm.step()
        assert_same({name: p.grad for name, p in net.named_parameters()}, clipped)
    assert_preserved(net, enorm)


def test_a_step_that_the_grad_scaler_skips_is_no_step() -> None:
    net = CASE.net().float()
    optimizer = sgd(net)
    enorm = equinorm.ENorm(net, optimizer, X.float())
    enorm.attach()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for k in range(6):
        before = weights_of(net)
        optimizer.zero_grad()
        x, y = CASE.data(k)
        scaler.scale(loss_of(net, (x.float(), y))).backward()
        if k % 2:
            net.fc.weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        assert enorm.state_dict()["steps"] == k // 2 + 1
        if k % 2:
            assert_same(weights_of(net), before)
    enorm.step()  # called by hand after a skipped step, it is one cycle more


def test_autocast_computes_in_bfloat16_and_enorm_moves_float32() -> None:
    net = CASE.net().float()
    optimizer = sgd(net)
    enorm = equinorm.ENorm(net, optimizer, X.float())
    for k in range(10):
        x, y = CASE.data(k)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(net, (x.float(), y))
        loss.backward()
        optimizer.step()
        enorm.step()
    inside: list[bool] = []
    watched = patch.object(enorm, "_normalise", lambda: inside.append(torch.is_autocast_enabled("cpu")))
    with watched, torch.autocast("cpu", dtype=torch.bfloat16):
        enorm.step()
    assert inside == [False]
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in net.parameters())
    descend(net, optimizer, (x.float(), y))
    assert_preserved(net, enorm, X.float(), 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("solver", ["cycle", "multilevel"])  # the plan, the plain engine
def test_powers_of_two_change_no_bit_of_the_outputs(dtype: torch.dtype, solver: str) -> None:
    net, x = CASE.net().to(dtype), X.to(dtype)
    with torch.no_grad():
        net.stem.weight.mul_(40)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    enorm = equinorm.ENorm(net, optimizer, x, scales="pow2", solver=solver)
    moved = 0
    for k in range(20):
        data = CASE.data(k)
        descend(net, optimizer, (data[0].to(dtype), data[1]))
        with torch.no_grad():
            before, w = net(x), weights_of(net)
            enorm.step()
            assert torch.equal(net(x), before)
        moved += any(not torch.equal(w[n], p) for n, p in net.named_parameters())
    assert moved > 1
    for up, down in enorm.total_scales().values():
        for side in (up, down):
            assert_close(side.log2(), side.log2().round(), 1e-12)


def test_float16_weights_in_powers_of_two_are_refused() -> None:
    net = CASES["mlp"].net().half()
    with pytest.raises(equinorm.ArgumentError, match=r"float16, whose range is too small.*autocast"):
        equinorm.ENorm(net, sgd(net), torch.randn(2, 6).half(), scales="pow2")


# Copies -----------------------------------------------------------------------------------------------------


def test_an_average_of_moved_weights_is_the_moved_average() -> None:
    net = CASE.net()
    optimizer = sgd(net)
    enorm = equinorm.ENorm(net, optimizer, X)
    swa, ema = AveragedModel(net), AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    start = copy.deepcopy(net)  # a plain copy
    for copied in (swa, ema, start):
        enorm.follow(copied)
    history = []  # of weights and the scales until then
    for k in range(12):
        descend(net, optimizer, CASE.data(k))
        enorm.step()
        swa.update_parameters(net)
        ema.update_parameters(net)
        history.append((weights_of(net), {n: u / d for n, (u, d) in enorm.total_scales().items()}))
    today = history[-1][1]
    for name, w0 in weights_of(CASE.net()).items():
        moved = [w[name] * (today[name] / s[name]) if name in s else w[name] for w, s in history]
        factor = today.get(name, torch.ones(1, dtype=DTYPE))
        assert_close(
            swa.module.get_parameter(name).detach(), torch.stack(moved).mean(0), 1e-12, f"mean of {name}"
        )
        average = moved[0]
        for w in moved[1:]:
            average = 0.8 * average + 0.2 * w
        assert_close(ema.module.get_parameter(name).detach(), average, 1e-12, f"average of {name}")
        assert_close(start.get_parameter(name).detach(), w0 * factor, 1e-12, f"copy of {name}")


def test_following_another_model_is_refused() -> None:
    enorm = trained(CASE.net(), 1)[2]
    with pytest.raises(equinorm.ArgumentError, match=r"averaged: it has no parameter .*, as the model has"):
        enorm.follow(CASES["mlp"].net())


def test_total_scales_map_an_older_checkpoint_onto_todays_gauge() -> None:
    net = CASE.net()
    old, optimizer = copy.deepcopy(net), sgd(net)
    enorm = equinorm.ENorm(net, optimizer, X)
    for _ in range(30):
        enorm.step()
    assert enorm.residual() < 1e-2
    for name, (up, down) in enorm.total_scales().items():
        assert_close(
            old.get_parameter(name).detach() * up / down, net.get_parameter(name).detach(), 1e-12, name
        )


# Wrappers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["wrapper", "in place", "inside first"])
def test_compiled_models_train_the_same(how: str) -> None:
    net, reference = CASE.net(), trained(CASE.net(), 5)[0]
    run: Any = net
    if how == "in place":
        net.compile(backend="eager")
    else:
        run = torch.compile(net, backend="eager")
    optimizer = sgd(net)
    enorm = equinorm.ENorm(net if how == "inside first" else run, optimizer, X)
    for k in range(5):
        descend(run, optimizer, CASE.data(k))
        enorm.step()
    for name, p in net.named_parameters():
        assert_close(p.detach(), reference.get_parameter(name).detach(), 1e-12, name)


def test_the_examples_of_the_page_run() -> None:
    page = Path(__file__).parents[1] / "docs" / "training.md"
    scope: dict[str, Any] = {}
    with patch.dict(EXPONENTS):
        for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            exec(compile(code, str(page), "exec"), scope)
        assert scope["Lion"] in EXPONENTS
    assert scope["enorm"].residual() < 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"p": 0}, "p: expected a positive"), ({"p": True}, "p: expected"), ({"cycles": 0}, "cycles: expected a whole"),
        ({"every": 1.5}, "every: expected a whole"), ({"solver": "newton"}, "solver: expected one of"),
        ({"scales": "pow3"}, "scales: expected one of 'real', 'pow2'"), ({"nonfinite": "no"}, "nonfinite: expected"),
        ({"max_scale": 1.0}, "max_scale: expected a number from 2"), ({"batch_norm": "fold"}, "batch_norm"),
        ({"c": -1.0}, "c: expected a positive"), ({"example_inputs": None}, "example_inputs: needed"),
        ({"solver": "multilevel", "compile": True}, 'compile=True: only with solver="cycle"'),
        ({"p": 9.0, "compile": True}, "compile=True: only with"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_told(options: dict[str, Any], message: str) -> None:
    net = CASES["mlp"].net()
    with pytest.raises(equinorm.ArgumentError, match=message):
        equinorm.ENorm(net, sgd(net), **{"example_inputs": CASES["mlp"].data()[0], **options})


@pytest.mark.parametrize("options", [{"p": float("inf")}, {"p": 9.0}, {"solver": "multilevel"}, {"p": 0.1}])
def test_what_a_plan_does_not_serve_runs_on_the_core(options: dict[str, Any]) -> None:
    net, _, enorm = trained(CASE.net(), 10, **options)
    assert_preserved(net, enorm, tolerance=1e-11)
    before = enorm.residual()
    for _ in range(40):
        enorm.step()
    assert enorm.residual() < 1e-2 * before


def test_the_papers_approximation_needs_its_blocks() -> None:
    net = CASE.net()
    with pytest.raises(equinorm.ArgumentError, match="solver='cycle-parallel' is the paper's rule"):
        equinorm.ENorm(net, sgd(net), X, solver="cycle-parallel")
    net.conv1, net.conv2 = nn.Conv2d(5, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
    net.to(DTYPE)
    assert_preserved(net, equinorm.ENorm(net, sgd(net), X, solver="cycle-parallel"))


def test_channels_last_weights_run_on_the_core() -> None:
    net = CASE.net()
    reference = trained(copy.deepcopy(net), 5)[0]
    net.to(memory_format=torch.channels_last)
    trained(net, 5)
    for name, p in net.named_parameters():
        assert_close(p.detach(), reference.get_parameter(name).detach(), 1e-11, name)
