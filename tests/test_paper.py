"""The worked cases of the paper, transcribed as plain loops."""

from __future__ import annotations

import copy
import math
from itertools import pairwise

import pytest
import torch
from oracle import entries
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

import equinorm
from equinorm.models import resnet18c

CYCLES = (1, 2, 7)


def mlp(*widths: int, bias: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


def matrices(net: nn.Sequential) -> list[Tensor]:
    """W_k in the paper's orientation, n_{k-1} × n_k."""
    return [layer.weight.detach().T.clone() for layer in net if isinstance(layer, nn.Linear)]


def algorithm_1(weights: list[Tensor], cycles: int, p: float, c: list[float]) -> list[Tensor]:
    """Algorithm 1, with the rescaling coefficient of the section "Asymmetric scaling"; returns the d_k."""
    found = [torch.ones(w.shape[1], dtype=w.dtype) for w in weights[:-1]]
    for _ in range(cycles):
        for k in range(1, len(weights)):
            for i in range(weights[k].shape[0]):
                left = float(weights[k - 1][:, i].abs().pow(p).sum()) ** (1 / p)
                right = float(weights[k][i, :].abs().pow(p).sum()) ** (1 / p)
                d = math.sqrt(right / left) * (c[k] / c[k - 1]) ** (1 / (2 * p))
                weights[k - 1][:, i] *= d
                weights[k][i, :] /= d
                found[k - 1][i] *= d
    return found


@pytest.mark.parametrize("cycles", CYCLES)
@pytest.mark.parametrize("p", (1.0, 2.0, 3.0))
@pytest.mark.parametrize("c", (1.0, 1.2, 0.8, "adaptive"))
def test_algorithm_1(p: float, c: float | str, cycles: int) -> None:
    net = mlp(5, 7, 4, 6, 3)
    expected = matrices(net)
    depth = len(expected)
    if c == "adaptive":
        penalties = [1 / w.numel() for w in expected]
    else:
        penalties = [float(c) ** (p * (depth - k)) for k in range(1, depth + 1)]
    algorithm_1(expected, cycles, p, penalties)
    equinorm.balance(net, torch.randn(2, 5).double(), p=p, c=c, solver="cycle", cycles=cycles)
    for ours, theirs in zip(matrices(net), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


@pytest.mark.parametrize("p", (0.5, 1.0, 2.0, 4.0))
def test_two_layers_have_a_closed_form(p: float) -> None:
    """Equation 4 is exact after one cycle, and the norm is 2 Σ ‖W_1[:, i]‖^{p/2} ‖W_2[i, :]‖^{p/2}."""
    net = mlp(4, 6, 3)
    first, second = matrices(net)
    left, right = first.abs().pow(p).sum(0), second.abs().pow(p).sum(1)
    report = equinorm.balance(net, torch.randn(2, 4).double(), p=p, solver="cycle", cycles=1)
    assert report.residual < 1e-14
    assert report.norm_after == pytest.approx(2 * float((left * right).sqrt().sum()), rel=1e-13)
    torch.testing.assert_close(report.scales.group(0), (right / left).pow(1 / (2 * p)))


def test_biases_are_multiplied_by_the_same_scales() -> None:
    """b_k ← b_k D_k; they do not count in the norm."""
    net = mlp(5, 7, 4, 3, bias=True)
    weights, biases = matrices(net), [layer.bias.detach().clone() for layer in net[::2]]
    scales = algorithm_1(weights, 3, 2.0, [1.0] * 3)
    report = equinorm.balance(net, torch.randn(2, 5).double(), solver="cycle", cycles=3)
    for layer, bias, d in zip(net[::2], biases, [*scales, torch.ones(3).double()], strict=True):
        torch.testing.assert_close(layer.bias.detach(), bias * d)
    assert report.norm_after == pytest.approx(sum(float((w**2).sum()) for w in weights), rel=1e-12)


def test_left_alone_biases_change_the_function() -> None:
    """The choice of the paper's code."""
    net = mlp(5, 7, 4, 3, bias=True)
    kept = copy.deepcopy(net)
    x = torch.randn(2, 5).double()
    report = equinorm.balance(net, x, biases=False)
    equinorm.balance(kept, x)
    assert report.function_change is not None and report.function_change > 1e-3
    assert "0.bias" not in report.scales
    for ours, theirs in zip(matrices(net), matrices(kept), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_convolutions_are_reshaped_to_matrices() -> None:
    """M_k is (C_{k-1} S S) × C_k for the producer and C_k × (C_{k+1} S S) for the consumer."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 5, 3, stride=2, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 4, 2, bias=False)
    ).double()
    producer = net[0].weight.detach().flatten(1).T.clone()
    consumer = net[3].weight.detach().transpose(0, 1).flatten(1).clone()
    (d,) = algorithm_1([producer, consumer], 1, 2.0, [1.0, 1.0])
    report = equinorm.balance(net, torch.randn(1, 3, 12, 12).double(), solver="cycle", cycles=1)
    torch.testing.assert_close(report.scales.group(0), d)
    torch.testing.assert_close(net[0].weight.detach(), producer.T.view(5, 3, 3, 3))


class Basic(nn.Module):
    """A type-C block: relu(conv2(relu(conv1(x))) + skip(x))."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.skip = nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv2(torch.relu(self.conv1(x))) + self.skip(x))


def blocks() -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    stem, head = nn.Conv2d(2, 3, 1, bias=False), nn.Conv2d(3, 2, 1, bias=False)
    net = nn.Sequential(stem, nn.ReLU(), Basic(3, 4), Basic(4, 3), head).double()
    return net, torch.randn(1, 2, 5, 5).double()


def test_residual_blocks_follow_coordinate_descent() -> None:
    """Every coefficient minimises the true objective in its own scale, one group after the other."""
    net, x = blocks()
    sym = equinorm.symmetries(net, x)
    found = entries(sym, net)
    logs = torch.zeros(sym.num_free + 1, dtype=torch.float64).numpy()
    for _ in range(2):
        for variable in (v for group in sym.groups for v in group.variables):

            def along(value: float, variable: int = variable) -> float:
                moved = logs.copy()
                moved[variable] = value
                return found.phi(moved, 2.0)

            logs[variable] = minimize_scalar(along, method="brent", options={"xtol": 1e-12}).x
    report = equinorm.balance(net, x, solver="cycle", cycles=2, symmetries=sym)
    torch.testing.assert_close(report.log_scales, torch.from_numpy(logs), rtol=0, atol=1e-6)


def test_the_papers_parallel_equivalent() -> None:
    """Between blocks L is the energy of Conv1 and ConvSkip together, all else is exact."""
    net, x = blocks()
    reference = copy.deepcopy(net)
    stem, _, first, second, head = reference

    def rows(weight: Tensor) -> Tensor:
        return weight.square().sum((1, 2, 3))

    def columns(weight: Tensor) -> Tensor:
        return weight.square().sum((0, 2, 3))

    def rescale(d: Tensor, makers: list[nn.Conv2d], users: list[nn.Conv2d]) -> None:
        for maker in makers:
            maker.weight.mul_(d.view(-1, 1, 1, 1))
        for user in users:
            user.weight.div_(d.view(1, -1, 1, 1))

    def inside(block: Basic) -> None:
        d = (columns(block.conv2.weight) / rows(block.conv1.weight)) ** 0.25
        rescale(d, [block.conv1], [block.conv2])

    def between(block: Basic, users: list[nn.Conv2d]) -> None:
        left = rows(block.conv1.weight) + rows(block.skip.weight)
        right = sum(columns(user.weight) for user in users)
        rescale((right / left) ** 0.25, [block.conv2, block.skip], users)

    with torch.no_grad():
        entry = [first.conv1, first.skip]
        rescale((sum(columns(u.weight) for u in entry) / rows(stem.weight)) ** 0.25, [stem], entry)
        for block, users in ((first, [second.conv1, second.skip]), (second, [head])):
            inside(block)
            between(block, users)
    equinorm.balance(net, x, solver="cycle-parallel", cycles=1)
    for ours, theirs in zip(net.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


def test_parallel_needs_learnt_shortcuts() -> None:
    net = mlp(3, 4, 2)
    with pytest.raises(equinorm.ArgumentError, match="cycle-parallel"):
        equinorm.balance(net, torch.randn(1, 3).double(), solver="cycle-parallel")


def test_sanity_checks_of_the_appendix() -> None:
    """A random ResNet-18: the same probabilities, and a norm that falls with every cycle, then rests."""
    torch.manual_seed(0)
    net = resnet18c(num_classes=10).eval()
    x = torch.randn(2, 3, 64, 64)
    before = net(x).softmax(1)
    report = equinorm.balance(net, x, solver="cycle", cycles=60)
    torch.testing.assert_close(net(x).softmax(1), before, rtol=1e-4, atol=1e-5)
    energies = [energy for _, _, energy in report.history]
    assert all(later <= earlier + 1e-13 for earlier, later in pairwise(energies))
    assert energies[1] < energies[0] - 0.1
    assert energies[-2] - energies[-1] < 1e-3
