"""The plan in lockstep with the plain engine, which is the core's objective, solver and scalings."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from enorm_nets import CASES, assert_close, descend, weights_of
from small_conv_nets import CONVS
from small_nets import MLPS, Row
from small_token_nets import TOKENS
from torch import Tensor, nn

import equinorm
from equinorm.symmetry import Symmetries
from equinorm.training.cycle import LOG2, Stepping
from equinorm.training.matrix import Held
from equinorm.training.plain import Plain
from equinorm.training.plan import Plan, shapes_of
from equinorm.weighting import log_weights

ROWS = [row for row in [*MLPS, *CONVS, *TOKENS] if row.free]
SETTINGS = [  # p, c, cycles, largest scale per step, powers of two
    (2.0, 1.0, 1, 8.0, False),
    (2.0, 0.7, 2, 64.0, False),
    (1.0, "adaptive", 1, 8.0, False),
    (1.0, 1.0, 3, 2.0, False),
    (3.0, 1.3, 1, 8.0, False),
    (3.0, "adaptive", 3, 64.0, False),
    (2.0, "adaptive", 1, 8.0, True),
    (1.0, 0.7, 3, 64.0, True),
    (3.0, 1.0, 2, 2.0, True),
]


def engines(
    sym: Symmetries, p: float, c: Any, cycles: int, cap: float, pow2: bool
) -> tuple[Plan, Plain] | None:
    shapes = shapes_of(sym)
    if shapes is None:
        return None
    stepping = Stepping(p, cycles, math.log(cap), pow2)
    weights = log_weights(c, p, sym)
    held = {name: Held(0, shape.numel()) for name, shape in sym.shapes.items()}
    plan = Plan(sym, shapes, held, weights, stepping, torch.float64, torch.device("cpu"))
    return plan, Plain(sym, weights, stepping, "cycle")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_plan_and_plain_engine_agree(row: Row) -> None:
    torch.manual_seed(1)
    net = row.build().double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape).sign() * (0.1 + torch.rand(parameter.shape)))
    inputs = tuple(x[:2] for x in row.inputs(0))
    sym = equinorm.symmetries(net, inputs)
    keeps_the_function(net, sym, inputs)
    for number, setting in enumerate(SETTINGS):
        pair = engines(sym, *setting)
        if pair is None:
            assert row.name in PLAIN_ONLY
            return
        assert row.name not in PLAIN_ONLY
        agree(*pair, weights_of(net), setting[0], pow2=setting[4], seed=number)


def keeps_the_function(net: nn.Module, sym: Symmetries, inputs: tuple[Tensor, ...]) -> None:
    net = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-3)
    enorm = equinorm.ENorm(net, optimizer, symmetries=sym)
    for _ in range(2):
        optimizer.zero_grad()
        sum(y.square().mean() for y in outputs(net, inputs)).backward()
        optimizer.step()
        before = [y.detach() for y in outputs(net, inputs)]
        enorm.step()
        for y, expected in zip(outputs(net, inputs), before, strict=True):
            assert_close(y.detach(), expected, 1e-10)
    assert enorm.state_dict()["total_log_scales"].any() or enorm.residual() == 0


def outputs(net: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    y = net(*inputs)
    return y if isinstance(y, tuple) else (y,)


def agree(plan: Plan, plain: Plain, weights: dict[str, Tensor], p: float, pow2: bool, seed: int) -> None:
    torch.manual_seed(seed)
    state = {name: torch.randn_like(w) for name, w in weights.items()}
    squares = {name: torch.rand_like(w) for name, w in weights.items()}
    for _ in range(3):  # from the weights as they are, then from where each step leads
        assert math.isclose(plan.norm(weights), plain.norm(weights), rel_tol=1e-12)
        assert plan.residual(weights) == pytest.approx(plain.residual(weights), abs=1e-12)
        x, other = plan.scales(weights), plain.scales(weights)
        assert x is not None and other is not None
        torch.testing.assert_close(x, other, rtol=0, atol=1e-12 if pow2 else 1e-10)
        assert not pow2 or torch.equal((x / LOG2).round(), (other / LOG2).round())
        expected = [{name: t.clone() for name, t in tensors.items()} for tensors in (weights, state, squares)]
        plain.rescale(x, list(zip(expected, (1, -1, -2), strict=True)), True)
        plan.rescale(x, [(weights, 1), (state, -1), (squares, -2)], True)
        for tensors, wanted in zip((weights, state, squares), expected, strict=True):
            for name in tensors:
                assert_close(tensors[name], wanted[name], 0.0 if pow2 else 1e-13, name)
        for name in weights:
            weights[name].mul_(1 + 0.3 * torch.randn_like(weights[name]))


# Weights that map a group to itself, or slices across columns: the closed form or a plan of matrices does not apply.
PLAIN_ONLY = {"x + relu(Wx)", "unrolled recurrence", "a layer used twice", "a layer without bias used twice"}


@pytest.mark.parametrize("pow2", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_enorm_never_raises_the_norm(name: str, pow2: bool) -> None:
    case = CASES[name]
    net = case.net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    enorm = equinorm.ENorm(net, optimizer, case.data()[0], scales="pow2" if pow2 else "real", cycles=2)
    for k in range(20):
        descend(net, optimizer, case.data(k))
        by_hand = sum(p.square().sum().item() for name, p in net.named_parameters() if "weight" in name)
        before = enorm.norm()
        assert math.isclose(before, by_hand, rel_tol=1e-12)
        enorm.step()
        assert enorm.norm() <= before * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch.compile's own
def test_compiled_passes_agree_with_plain_operators() -> None:
    case = CASES["conv"]
    net, other = nets = case.net(), case.net()
    with torch.no_grad():
        for net_ in nets:
            net_[6] = nn.Linear(20, 300, dtype=torch.float64, bias=False)  # large enough for a compiled pass
            torch.manual_seed(3)
            nn.init.normal_(net_[6].weight)
    assert nets[0][6].weight.numel() > 4096
    steps = []
    for which, compiled in ((net, True), (other, False)):
        optimizer = torch.optim.SGD(which.parameters(), lr=0.01, momentum=0.9)
        enorm = equinorm.ENorm(which, optimizer, case.data()[0], compile=compiled)
        for k in range(4):
            descend(which, optimizer, case.data(k))
            enorm.step()
        steps.append(
            {
                **weights_of(which),
                **{f"m{i}": optimizer.state[p]["momentum_buffer"] for i, p in enumerate(which.parameters())},
            }
        )
    for name in steps[0]:
        assert_close(steps[0][name], steps[1][name], 1e-12, name)
