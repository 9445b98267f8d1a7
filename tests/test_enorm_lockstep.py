"""The plan in lockstep with the plain engine, which is the core's objective, solver and scalings."""

from __future__ import annotations

import copy
import gc
import math
import types
from typing import Any

import pytest
import torch
from enorm_nets import CASES, assert_close, descend, weights_of
from small_conv_nets import CONVS
from small_derived_nets import DERIVED
from small_memory_nets import MEMORY
from small_nets import MLPS, Row
from small_token_nets import TOKENS
from torch import Tensor, nn

import equinorm
from equinorm.symmetry import Symmetries
from equinorm.training.cycle import LOG2, Stepping
from equinorm.training.kernels import Chunked, Fused
from equinorm.training.matrix import Entries, Held, Matrix, Shape, Side
from equinorm.training.plain import Plain
from equinorm.training.plan import Plan, shapes_of
from equinorm.training.scaling import Scaling
from equinorm.weighting import log_weights

ROWS = [row for row in [*MLPS, *CONVS, *TOKENS, *MEMORY, *DERIVED] if row.free]
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
    sym: Symmetries, weights: dict[str, Tensor], p: float, c: Any, cycles: int, cap: float, pow2: bool
) -> tuple[Plan, Plain] | None:
    shapes = shapes_of(sym, weights)
    if shapes is None:
        return None
    stepping = Stepping(p, cycles, math.log(cap), pow2)
    logs = log_weights(c, p, sym)
    held = {name: Held(0, shape.numel()) for name, shape in sym.shapes.items()}
    plan = Plan(sym, shapes, held, logs, stepping, torch.float64, torch.device("cpu"))
    return plan, Plain(sym, logs, stepping, "cycle")


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
        pair = engines(sym, weights_of(net), *setting)
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
PLAIN_ONLY = {
    "x + relu(Wx)",
    "unrolled recurrence",
    "a layer used twice",
    "a layer without bias used twice",
    "einsum of a diagonal",
    "states written row by row",
}


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


class GroupedIntoNorm(nn.Module):
    """A grouped convolution whose output is pinned, as in ResNeXt and RegNet."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 12, 3, groups=4, padding=1)
        self.bn, self.c = nn.BatchNorm2d(12), nn.Conv2d(12, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.b(torch.relu(self.a(x)))))
        return self.c(x).mean((2, 3))


def channels_last(net: nn.Module) -> nn.Module:
    return net.to(memory_format=torch.channels_last)


LAYOUTS = {
    "grouped convolution, pinned output": lambda: GroupedIntoNorm().double(),
    "channels last": lambda: channels_last(CASES["type C"].net()),
    "channels last, grouped": lambda: channels_last(GroupedIntoNorm().double()),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_have_a_plan_too(name: str) -> None:
    torch.manual_seed(0)
    net = LAYOUTS[name]()
    sym = equinorm.symmetries(net, torch.randn(2, 3, 5, 5, dtype=torch.float64))
    for number, setting in enumerate(SETTINGS):
        pair = engines(sym, weights_of(net), *setting)
        assert pair is not None
        agree(*pair, weights_of(net), setting[0], pow2=setting[4], seed=number)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("lines", [(0, 12), (0, 5), (4, 12)])
@pytest.mark.parametrize("batch", [1, 4])
def test_fused_passes_are_the_chunked_ones(batch: int, lines: tuple[int, int], p: float) -> None:
    """Also on a shard: some lines of 12."""
    sides = [
        Side(torch.arange(1, n + 1).view(batch, -1), torch.ones(batch, n // batch)) for n in (12, batch * 6)
    ]
    shape = Shape("w", True, batch, 12 // batch, 6, 0, None, *sides)
    held = Held(lines[0] * 6, lines[1] * 6)
    matrix = Matrix(shape, held, 1.0, 48, torch.float64, torch.device("cpu"))
    torch.manual_seed(0)
    entries = matrix.entries(torch.randn(held.last - held.first, dtype=torch.float64))
    own, columns = torch.rand(lines[1] - lines[0]).double(), torch.rand(batch * 6).double()
    chunked, fused = Chunked(p, torch.float64, torch.device("cpu")), Fused(p, torch.float64)
    for factors in (None, own):
        assert_close(
            fused.column_sums(matrix, entries, factors), chunked.column_sums(matrix, entries, factors), 1e-14
        )
    for factors in (None, columns):
        assert_close(
            fused.line_sums(matrix, entries, factors), chunked.line_sums(matrix, entries, factors), 1e-14
        )
    together = torch.cat([own, columns])
    for dtype, tolerance in ((torch.float64, 1e-15), (torch.bfloat16, 0.0)):
        scaled = Entries(entries.whole.to(dtype))
        wanted = scaled.whole * (own.unsqueeze(1) * matrix.by_line(columns))
        Scaling(
            [matrix],
            [(0, 1, scaled)],
            torch.arange(len(together)),
            lambda v: [(v[: len(own)], v[len(own) :])],
            lambda x, exponent: together,
            torch.float64,
        )(torch.zeros(49))
        assert_close(scaled.whole.double(), wanted.to(dtype).double(), tolerance)


def bytes_held(root: object, besides: set[int]) -> int:
    """The memory of all tensors that an object leads to, but for some storages and whatever hangs on modules."""
    seen: set[int] = set()
    storages: dict[int, int] = {}
    stack = [root]
    while stack:
        each = stack.pop()
        opaque = (type, types.ModuleType, types.FunctionType, nn.Module, torch.optim.Optimizer)
        if id(each) in seen or isinstance(each, opaque):
            continue
        seen.add(id(each))
        if isinstance(each, Tensor):
            storages[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
        else:
            stack.extend(gc.get_referents(each))
    return sum(size for place, size in storages.items() if place not in besides)


@pytest.mark.parametrize("frozen", [False, True], ids=["all move", "most frozen"])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_extra_memory_stays_small(activation: type[nn.Module], frozen: bool) -> None:
    """Below 5 % of the parameters between two steps, whether weights move or not."""
    net = nn.Sequential(
        *(part for _ in range(4) for part in (nn.Linear(400, 400), activation())), nn.Linear(400, 9)
    )
    net.append(nn.Linear(9, 30)).append(nn.ReLU()).append(nn.Linear(30, 4))  # something to move
    if frozen:
        net[2].requires_grad_(False)
        net[4].requires_grad_(False)
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter) if parameter.requires_grad else None
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    enorm = equinorm.ENorm(net, optimizer, torch.randn(2, 400))
    for _ in range(3):
        optimizer.step()
        enorm.step()
    theirs = [*net.parameters(), *(s["momentum_buffer"] for s in optimizer.state.values())]
    besides = {tensor.untyped_storage().data_ptr() for tensor in theirs}
    held = bytes_held(enorm, besides)
    assert 0 < held < 0.05 * sum(p.numel() * p.element_size() for p in net.parameters())


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
