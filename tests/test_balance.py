"""``balance`` on awkward weights: dead channels, extremes, every layout and every way to call a model."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equinorm


def mlp(*widths: int, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).to(dtype)


def finite(net: nn.Module) -> bool:
    return all(bool(p.isfinite().all()) for p in net.parameters())


# -- no minimum ----------------------------------------------------------------------------------------------


def dead_neurons(net: nn.Sequential) -> int:
    net[0].weight[:2] = 0  # made of nothing
    net[2].weight[:, 5] = 0  # used by nothing
    return 3


def all_zero(net: nn.Sequential) -> int:
    net[2].weight.zero_()
    return 12


def all_zero_output(net: nn.Sequential) -> int:
    net[4].weight.zero_()
    return 12


CASES: list[Callable[[nn.Sequential], int]] = [dead_neurons, all_zero, all_zero_output]


@pytest.mark.parametrize("spoil", CASES)
@pytest.mark.parametrize("p", (1.0, 2.0, math.inf))
@pytest.mark.parametrize("scales", ("real", "pow2"))
def test_channels_without_a_minimum_stay(
    spoil: Callable[[nn.Sequential], int], p: float, scales: str
) -> None:
    net, x = mlp(4, 6, 6, 3), torch.randn(2, 4)
    with torch.no_grad():
        still = spoil(net)
    before = net(x)
    report = equinorm.balance(net, x, p=p, scales=scales)
    assert report.still == still
    assert math.isfinite(report.norm_after) and finite(net)
    assert math.isfinite(report.residual) and math.isfinite(report.residual_stored)
    assert f"{still} scales (no minimum exists for them" in str(report)
    torch.testing.assert_close(net(x), before)
    if still == 12:
        assert "nothing to rescale" in report.status and report.converged
        assert not report.log_scales.any() and report.norm_after == report.norm_before


def test_zero_initialised_affine_weights_stay() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3))
    nn.init.zeros_(net[1].weight[:4])
    report = equinorm.balance(net, torch.randn(2, 4))
    assert report.still == 4
    assert (net[1].weight[:4] == 0).all()
    assert report.norm_after < report.norm_before


class Unused(nn.Module):
    """A layer that the forward pass does not reach, and one whose output goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.unreached, self.ignored = nn.Linear(5, 5), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        self.ignored(h)
        return self.last(h)


def test_unused_layers_are_left_alone() -> None:
    torch.manual_seed(0)
    net = Unused()
    kept = copy.deepcopy(net.unreached.state_dict())
    report = equinorm.balance(net, torch.randn(2, 4))
    assert all(torch.equal(v, kept[k]) for k, v in net.unreached.state_dict().items())
    assert report.norm_after < report.norm_before
    reasons = {pin.what: pin.reason for pin in report.symmetries.pinned}
    assert reasons["unreached.weight"] == "the example inputs do not reach it"


NOTHING: list[nn.Module] = [
    nn.Linear(4, 3),
    nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 3)),
    nn.ReLU(),
    nn.Sequential(),
]


@pytest.mark.parametrize("net", NOTHING, ids=str)
def test_nothing_to_rescale(net: nn.Module) -> None:
    before = copy.deepcopy(net.state_dict())
    report = equinorm.balance(net, torch.randn(2, 4))
    assert report.symmetries.num_free == 0
    assert report.converged and "nothing to rescale" in report.status
    assert report.function_change == 0 and report.norm_after == report.norm_before
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert "0 free scales" in str(report) and "0 free scales" in str(report.symmetries)


# -- extremes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", (0.5, 2.0, 20.0, math.inf))
@pytest.mark.parametrize("size", (1e-30, 1e30))
def test_extreme_magnitudes(p: float, size: float) -> None:
    """The layers' product stays where float32 can compute the function."""
    net, x = mlp(4, 6, 6, 3), torch.randn(2, 4)
    with torch.no_grad():
        net[0].bias.zero_()
        net[0].weight.mul_(size)
        net[2].weight.div_(size)
    before = net(x)
    report = equinorm.balance(net, x, p=p)
    assert report.converged and finite(net) and not report.capped
    torch.testing.assert_close(net(x), before, rtol=1e-5, atol=1e-6)
    assert report.log_norm_after < report.log_norm_before - min(p, 1) * 50
    assert report.residual_stored < 1e-4
    largest = [float(p.detach().abs().max()) for p in net.parameters() if p.dim() == 2]
    assert max(largest) < 1e3 and min(largest) > 1e-3


def test_a_norm_beyond_float64_is_printed_by_its_logarithm() -> None:
    net = mlp(4, 6, 3)
    with torch.no_grad():
        net[0].weight.mul_(1e30)
    report = equinorm.balance(net, torch.randn(2, 4), p=20, verify=False)
    assert report.norm_before == math.inf and 580 < report.log_norm_before / math.log(10) < 600
    assert "10^5" in str(report)


def test_a_bias_that_would_overflow_caps_its_scale() -> None:
    net = mlp(4, 6, 3).half()
    with torch.no_grad():
        net[0].weight.mul_(0.01)
        net[2].weight.mul_(50)
        net[0].bias[:2] = 60000.0
        net[0].bias[2:] = 0.0
    report = equinorm.balance(net, torch.randn(2, 4).half(), verify=False)
    assert report.capped == 2 and finite(net)
    assert (net[0].bias[:2] <= torch.finfo(torch.float16).max).all()
    assert (report.scales.group(0)[2:] > 5).all()
    assert "2 scales (held back where a weight or bias would overflow)" in str(report)


@pytest.mark.parametrize(
    ("p", "inputs", "dtype"),
    (
        (0.02, 5, torch.float32),
        (0.05, 784, torch.float32),
        (0.25, 784, torch.float16),
        (0.5, 5, torch.float16),
    ),
)
def test_small_p_caps_nothing_that_would_not_overflow(p: float, inputs: int, dtype: torch.dtype) -> None:
    """The p-norm of n equal entries is n^(1/p) times as large as they are: beyond any precision for small p."""
    net, x = mlp(inputs, 20, 30, 3, dtype=dtype), torch.randn(2, inputs).to(dtype)
    report = equinorm.balance(net, x, p=p)
    assert report.converged and not report.capped and finite(net)
    assert report.norm_after < 0.8 * report.norm_before and report.residual_stored < 1e-2


def test_scales_that_are_all_held_back_are_not_converged() -> None:
    net = mlp(5, 20, 30, 3)
    report = equinorm.balance(net, torch.randn(2, 5), p=1e-3, verify=False)
    assert finite(net) and report.capped == report.symmetries.num_free == 50
    assert not report.converged and "held back" in report.status


@pytest.mark.parametrize("scales", ("real", "pow2"))
def test_an_entry_at_the_end_of_its_precision_holds_back_its_channel_only(scales: str) -> None:
    net, largest = mlp(4, 8, 3, dtype=torch.float16), torch.finfo(torch.float16).max
    with torch.no_grad():
        net[0].weight.mul_(2.0**-5)
        net[0].bias[3] = net[2].weight[0, 5] = largest
    report = equinorm.balance(net, torch.randn(2, 4).half(), scales=scales, verify=False)
    moved = report.scales.group(0)
    assert finite(net) and net[0].bias[3] == largest and moved[3] == 1
    assert (moved[torch.arange(8) != 3] > 1).all()
    assert net[2].weight[0, 5] < largest
    assert report.capped == 1 if scales == "real" else report.blocked >= 1


def overflowing_bias(net: nn.Sequential) -> None:
    net[0].bias[3] = 40000.0


def subnormal_consumer(net: nn.Sequential) -> None:
    net[2].weight[2, 3] = 3 * 2.0**-24  # the last bit of float16 is 2^-24: no half of this


def subnormal_bias_of_a_large_producer(net: nn.Sequential) -> None:
    for first, size in ((net[0], 2.0**10), (net[2], 2.0**-5)):
        first.weight.mul_(size)
    net[0].bias[3] = 3 * 2.0**-24


BLOCKS: list[Callable[[nn.Sequential], None]] = [
    overflowing_bias, subnormal_consumer, subnormal_bias_of_a_large_producer,
]  # fmt: skip


@pytest.mark.parametrize("block", BLOCKS)
def test_powers_of_two_in_float16_leave_blocked_channels_alone(
    block: Callable[[nn.Sequential], None],
) -> None:
    """Channel 3 has an entry that would not survive any power of two that lowers the norm; all others move."""
    net, x = mlp(4, 8, 3, dtype=torch.float16), torch.randn(16, 4).half()
    with torch.no_grad():
        net[0].weight.mul_(2.0**-5)
        block(net)
    original, before = copy.deepcopy(net), net(x)
    assert before.isfinite().all()
    report = equinorm.balance(net, x, scales="pow2")
    assert report.blocked == 1
    assert "1 scales (some entry would not survive a power of two exactly)" in str(report)
    moved = report.scales.group(0) != 1
    assert moved.tolist() == [k != 3 for k in range(8)]
    assert report.norm_after < report.norm_before and report.function_change == 0
    assert torch.equal(net(x), before)
    for now, then in zip(net.parameters(), original.parameters(), strict=True):
        ratio = (now.detach().double() / then.detach().double())[then != 0]
        assert (ratio.log2() % 1 == 0).all()
    assert equinorm.balance(original, x).scales.group(0)[3] != 1


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16, torch.float16))
def test_every_precision_is_solved_in_float64(dtype: torch.dtype) -> None:
    net, x = mlp(4, 16, 16, 3, dtype=dtype), torch.randn(2, 4).to(dtype)
    report = equinorm.balance(net, x)
    assert report.residual <= 1e-8
    assert report.residual_stored <= 2 * torch.finfo(dtype).eps + 1e-8
    assert all(p.dtype == dtype for p in net.parameters())


def test_the_largest_entries_are_equalised() -> None:
    net, x = mlp(4, 8, 8, 3), torch.randn(2, 4)
    report = equinorm.balance(net, x, p=math.inf)
    for made, used in ((net[0], net[2]), (net[2], net[4])):
        torch.testing.assert_close(made.weight.abs().amax(1), used.weight.abs().amax(0))
    assert report.norm_after == pytest.approx(
        max(float(net[k].weight.detach().abs().max()) for k in (0, 2, 4))
    )
    again = equinorm.balance(net, x, p=math.inf, tol=1e-6)
    assert again.cycles == 0


# -- the penalties c -----------------------------------------------------------------------------------------


def test_a_mapping_weighs_the_layers_it_names() -> None:
    net, x = mlp(4, 6, 3), torch.randn(2, 4)
    report = equinorm.balance(net, x, c={"0.weight": 4.0})
    produced, consumed = net[0].weight.detach().square().sum(1), net[2].weight.detach().square().sum(0)
    torch.testing.assert_close(4 * produced, consumed)
    assert report.norm_after == pytest.approx(float(4 * produced.sum() + consumed.sum()), rel=1e-6)


# -- how parameters lie in memory ----------------------------------------------------------------------------


def balanced_like(net: nn.Module, plain: nn.Module, x: Any) -> None:
    equinorm.balance(plain, x)
    report = equinorm.balance(net, x)
    assert report.norm_after < report.norm_before
    for a, b in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)


def conv_net() -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)
    )
    return net, torch.randn(2, 3, 6, 6)


def test_channels_last() -> None:
    net, x = conv_net()
    plain = copy.deepcopy(net)
    net = net.to(memory_format=torch.channels_last)
    assert not net[0].weight.is_contiguous()
    balanced_like(net, plain, x)
    assert net[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_transposed_and_strided_parameters() -> None:
    net, x = mlp(4, 6, 6, 3), torch.randn(2, 4)
    plain = copy.deepcopy(net)
    net[0].weight = nn.Parameter(net[0].weight.detach().T.contiguous().T)
    wide = torch.zeros(6, 12)
    wide[:, ::2] = net[2].weight.detach()
    net[2].weight = nn.Parameter(wide[:, ::2])
    assert not net[0].weight.is_contiguous() and not net[2].weight.is_contiguous()
    balanced_like(net, plain, x)
    assert not wide[:, 1::2].any()


@pytest.mark.parametrize("interleaved", (False, True))
def test_views_of_one_flat_buffer(interleaved: bool) -> None:
    net, x = mlp(4, 6, 6, 3), torch.randn(2, 4)
    plain = copy.deepcopy(net)
    if interleaved:
        flat = torch.stack([net[2].weight.detach(), torch.zeros(6, 6)], 2).flatten()
        flat.view(6, 6, 2)[:, :4, 1] = net[0].weight.detach()
        net[0].weight, net[2].weight = (nn.Parameter(v) for v in flat.view(6, 6, 2).unbind(2)[::-1])
        net[0].weight = nn.Parameter(net[0].weight.detach()[:, :4])
    else:
        flat = nn.utils.parameters_to_vector(net.parameters()).detach()
        nn.utils.vector_to_parameters(flat, net.parameters())
    storage = flat.untyped_storage().data_ptr()
    assert net[2].weight.untyped_storage().data_ptr() == storage
    balanced_like(net, plain, x)
    assert net[2].weight.untyped_storage().data_ptr() == storage


def test_frozen_parameters_move_too() -> None:
    """The orbit does not know who trains; leave a model alone by not balancing it."""
    net, x = mlp(4, 6, 3), torch.randn(2, 4)
    plain = copy.deepcopy(net)
    net[0].requires_grad_(False)
    balanced_like(net, plain, x)
    assert not net[0].weight.requires_grad and net[2].weight.requires_grad


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        return self.out(h + self.down(torch.relu(self.up(h))))


def test_tied_weights_stay_tied() -> None:
    torch.manual_seed(0)
    net, x = Tied(), torch.tensor([[1, 2, 6]])
    report = equinorm.balance(net, x)
    assert net.out.weight is net.embed.weight
    assert report.symmetries.num_free == 6 and report.norm_after < report.norm_before


# -- ways to call --------------------------------------------------------------------------------------------


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 6), nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, a: Tensor, b: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        return {"logits": self.head(torch.relu(self.left(a) + self.right(b)) * scale)}


A, B = torch.linspace(-1, 1, 8).view(2, 4), torch.linspace(1, -1, 10).view(2, 5)


@pytest.mark.parametrize(
    "inputs", ((A, B), [A, B], (A, B, 2.0), {"a": A, "b": B}, {"b": B, "a": A, "scale": 2.0})
)
def test_positional_and_keyword_inputs(inputs: Any) -> None:
    torch.manual_seed(0)
    net = Pair()
    report = equinorm.balance(net, inputs)
    assert report.symmetries.num_free == 6 and report.norm_after < report.norm_before
    assert report.function_change is not None and report.function_change < 1e-5


def test_an_earlier_analysis_serves_other_weights() -> None:
    net, x = mlp(4, 6, 6, 3), torch.randn(2, 4)
    sym = equinorm.symmetries(net, x)
    other = mlp(4, 6, 6, 3)
    with torch.no_grad():
        other[2].weight.mul_(9)
    plain = copy.deepcopy(other)
    equinorm.balance(plain, x)
    report = equinorm.balance(other, symmetries=sym, verify=False)
    assert report.function_change is None and "not measured" in str(report)
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), plain.parameters(), strict=True))


def test_the_number_of_cycles_is_exact() -> None:
    for solver in ("cycle", "multilevel"):
        for cycles in (0, 1, 4):
            net = mlp(4, 6, 6, 6, 3)
            report = equinorm.balance(net, torch.randn(2, 4), solver=solver, cycles=cycles)
            assert report.cycles == cycles
            assert [cycle for cycle, _, _ in report.history][-1] == cycles


def test_in_inference_and_without_gradients() -> None:
    net, x = mlp(4, 6, 3), torch.randn(2, 4)
    plain = copy.deepcopy(net)
    equinorm.balance(plain, x)
    with torch.no_grad():
        equinorm.balance(net, x)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), plain.parameters(), strict=True))


# -- what comes back -----------------------------------------------------------------------------------------


def test_scales_say_what_was_done_to_every_parameter() -> None:
    net, x = conv_net()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    report = equinorm.balance(net, x)
    assert set(report.scales) == set(before) and len(report.scales) == len(before)
    for name, parameter in net.named_parameters():
        multiplied, divided = report.scales[name]
        torch.testing.assert_close(parameter.detach(), (before[name] * multiplied / divided).float())
    for k, group in enumerate(report.symmetries.groups):
        assert report.scales.group(k).shape == (group.size,)


def test_the_report_reads_well() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    text = str(equinorm.balance(net, A))
    lines = text.splitlines()
    assert [line.split("  ")[0] for line in lines[:6]] == [
        "balance", "-" * 15, "norm", "residual", "solver", "function change",
    ]  # fmt: skip
    assert "p = 2, 6 free scales" in text
    assert "converged" in text and "→" in text and "(-" in text
    assert "0.weight,bias[0]" in text and "2.weight[1]" in text
    assert max(map(len, lines)) <= 110


def test_nothing_moved_reads_well() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    equinorm.balance(net, A)
    text = str(equinorm.balance(net, A))
    assert "(+0.00%)" in text and "largest scales" not in text


@pytest.mark.parametrize("chunk", [1, 7, 50, 200, 1000])
def test_result_does_not_depend_on_how_weights_are_cut(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 24, 1), nn.ReLU(), nn.Conv2d(24, 24, 3, groups=2), nn.ReLU(), nn.Conv2d(24, 4, 1)
    model, x = nn.Sequential(*layers).double(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    expected = equinorm.balance(copy.deepcopy(model), x)
    monkeypatch.setattr("equinorm.cells.CHUNK", chunk)
    assert equinorm.balance(model, x).norm_after == pytest.approx(expected.norm_after, rel=1e-12)
