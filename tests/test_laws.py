"""DESIGN.md's laws on random networks, against an independent oracle."""

from __future__ import annotations

import copy
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import entries, minimum, move
from random_nets import Net, change, inputs, networks, outputs

import equinorm
from equinorm import Symmetries

NORMS = st.sampled_from([1.0, 2.0, 2.0, 3.5])


def rounding(net: Net, x: torch.Tensor) -> float:
    """The change of the outputs that a one-ulp perturbation of the weights makes."""
    off = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in off.parameters():
            eps = torch.finfo(parameter.dtype).eps
            parameter.mul_(1 + eps * torch.randint(-1, 2, parameter.shape).to(parameter.dtype))
    return change(outputs(net, x), outputs(off, x))


def same_weights(a: Net, b: Net, tolerance: float) -> None:
    for (name, x), (_, y) in zip(a.named_parameters(), b.named_parameters(), strict=True):
        scale = float(x.detach().abs().max())
        assert torch.allclose(x, y, rtol=tolerance, atol=tolerance * scale), name


def random_scales(sym: Symmetries, size: float) -> torch.Tensor:
    x = size * torch.randn(sym.num_free + 1, dtype=torch.float64)
    x[0] = 0
    return x


@settings(max_examples=40)
@given(networks(), NORMS)
def test_function_kept_and_optimum_reached(net: Net, p: float) -> None:
    """Laws 1, 3 and 4: outputs, an independent minimum, and balancing again."""
    x = inputs(net)
    before, slack, flag = outputs(net, x), rounding(net, x), net.training
    original = copy.deepcopy(net)
    sym = equinorm.symmetries(net, x)
    report = equinorm.balance(net, x, p=p, symmetries=sym, tol=1e-10)
    assert net.training is flag
    assert report.converged
    assert change(before, outputs(net, x)) <= max(1e-12, 100 * slack)

    found = entries(sym, original)
    best = minimum(found, p)
    ours = report.log_scales.numpy()
    live = found.restricted(found.live())
    assert live.phi(ours, p) <= live.phi(best, p) * (1 + 1e-10)
    np.testing.assert_allclose(
        ours[live.plus] - ours[live.minus], best[live.plus] - best[live.minus], atol=2e-4
    )
    assert report.norm_before == pytest.approx(found.phi(np.zeros(found.free + 1), p), rel=1e-12)
    assert report.norm_after == pytest.approx(entries(sym, net).phi(np.zeros(found.free + 1), p), rel=1e-12)
    if not report.still:  # entries between live scales and still ones count in the norm, and may grow
        assert report.norm_after <= report.norm_before * (1 + 1e-12)

    again = copy.deepcopy(net)
    assert equinorm.balance(again, p=p, symmetries=sym, tol=1e-10, verify=False).cycles <= 2
    same_weights(net, again, 1e-8)


@settings(max_examples=25)
@given(networks(), NORMS, st.sampled_from(["cycle", "multilevel"]))
def test_any_start_on_the_orbit_ends_alike(net: Net, p: float, solver: str) -> None:
    """Laws 2 and 4: phi never rises along the cycles, and where they end does not depend on the start."""
    x = inputs(net)
    sym = equinorm.symmetries(net, x)
    still = equinorm.balance(copy.deepcopy(net), p=p, cycles=0, symmetries=sym, verify=False)
    assert still.cycles == 0 and not still.log_scales.any()
    start = random_scales(sym, 2.0)
    if still.still:
        reached = equinorm.balance(copy.deepcopy(net), p=p, cycles=1, symmetries=sym, verify=False)
        start[reached.log_scales == 0] = 0
    moved = copy.deepcopy(net)
    move(moved, sym, start)
    for model in (net, moved):
        report = equinorm.balance(model, p=p, solver=solver, tol=1e-10, symmetries=sym, verify=False)
        energies = [energy for _, _, energy in report.history]
        assert all(b <= a + 1e-12 * max(1, abs(a)) for a, b in pairwise(energies))
        assert report.converged
    same_weights(net, moved, 1e-7)


@settings(max_examples=25)
@given(networks(), st.sampled_from([torch.float32, torch.bfloat16]))
def test_powers_of_two_are_exact_and_worth_it(net: Net, dtype: torch.dtype) -> None:
    """Law 6, from a network unbalanced by 2^±6 per channel."""
    sym = equinorm.symmetries(net, inputs(net))
    equinorm.balance(net, symmetries=sym, verify=False)
    exponents = torch.randint(-6, 7, (sym.num_free + 1,)).double()
    exponents[0] = 0
    move(net, sym, exponents * math.log(2))
    net = net.to(dtype)
    x = inputs(net)
    before = outputs(net, x)
    real = equinorm.balance(copy.deepcopy(net), symmetries=sym, verify=False)
    report = equinorm.balance(net, x, symmetries=sym, scales="pow2")
    assert all(torch.equal(a, b) for a, b in zip(before, outputs(net, x), strict=True))
    assert report.function_change == 0
    gain = report.norm_before - report.norm_after
    assert gain >= 0.9 * (real.norm_before - real.norm_after)
    assert report.blocked == 0


def test_powers_of_two_in_float16_report_what_is_blocked() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).half()
    with torch.no_grad():
        net[0].weight.mul_(2**-9)
        net[2].weight.mul_(2**6)
        net[0].bias[:4] = 30000.0
        net[0].bias[4:] *= 2**-9
    x = torch.randn(4, 6).half()
    before = net(x)
    report = equinorm.balance(net, x, scales="pow2")
    assert torch.equal(before, net(x))
    assert report.blocked == 4
    assert report.norm_after < report.norm_before
    assert "4 scales (some entry would not survive a power of two exactly)" in str(report)
    assert (report.scales.group(0)[4:] > 1).all()
    assert set(report.scales.group(0)[:4].tolist()) <= {1.0, 2.0}
