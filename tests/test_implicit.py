"""ImplicitENorm: value and gradients equal autograd on the plain expression; training and materialising."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import equinorm

LAMBDA = 0.01


class Mixed(nn.Module):
    """Every layout of a weight: plain, grouped, depthwise and transposed convolutions, shared and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.grouped = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.skip, self.depthwise = nn.Conv2d(8, 8, 1, bias=False), nn.Conv2d(8, 8, 3, groups=8)
        self.up, self.norm = nn.ConvTranspose2d(8, 6, 2, 2), nn.GroupNorm(2, 6)
        self.head = nn.Linear(6 * 144, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.stem(x))
        h = F.relu(self.grouped(h) + self.skip(h))
        h = F.relu(self.norm(self.up(F.relu(self.depthwise(h)))))
        return self.head(h.flatten(1))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 300), nn.ReLU(), nn.Linear(300, 700), nn.ReLU(), nn.Linear(700, 3))


CASES = {"mlp": (mlp, (2, 4)), "mixed": (Mixed, (2, 3, 8, 8))}


def made(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, shape = CASES[name]
    return build().double(), torch.randn(shape, dtype=torch.float64)


def plain(implicit: equinorm.ImplicitENorm, model: nn.Module, weights: dict[str, float]) -> Tensor:
    """lambda * sum c ||D^-1 W D||^2, written entry by entry for autograd."""
    x = torch.cat([torch.zeros(1, dtype=torch.float64), implicit.log_scales])
    parameters, total = dict(model.named_parameters()), torch.zeros((), dtype=torch.float64)
    for s in implicit.symmetries.scalings:
        if s.counted:
            logs = x[s.plus.abs()] * s.plus.sign() - x[s.minus.abs()] * s.minus.sign()
            view = parameters[s.parameter].as_strided(s.size, s.stride, s.offset)
            total = total + weights.get(s.parameter, 1.0) * (view * logs.exp()).square().sum()
    return LAMBDA * total


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_value_and_gradients_equal_autograd(name: str, factor: float) -> None:
    model, x = made(name)
    first = next(n for n, p in model.named_parameters() if p.dim() > 1)
    implicit = equinorm.ImplicitENorm(model, x, weight_decay=LAMBDA, c={first: 2.5})
    nn.init.normal_(implicit.log_scales)
    value = implicit()
    (factor * value).backward()
    found = [implicit.log_scales.grad, *(p.grad for p in model.parameters())]
    model.zero_grad()
    implicit.zero_grad()
    expected = plain(implicit, model, {first: 2.5})
    (factor * expected).backward()
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    for own, theirs in zip(
        found, [implicit.log_scales.grad, *(p.grad for p in model.parameters())], strict=True
    ):
        assert (own is None) == (theirs is None) or not own.any()
        if theirs is not None:
            torch.testing.assert_close(own, theirs, rtol=1e-11, atol=1e-14)


def test_scales_start_at_one_and_the_penalty_is_then_weight_decay() -> None:
    model, x = made("mlp")
    implicit = equinorm.ImplicitENorm(model, x, weight_decay=LAMBDA)
    decay = LAMBDA * sum(p.square().sum() for p in model.parameters() if p.dim() > 1)
    torch.testing.assert_close(implicit(), decay, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", CASES)
def test_materialize_keeps_function_and_penalty(name: str) -> None:
    model, x = made(name)
    implicit = equinorm.ImplicitENorm(model, x, weight_decay=LAMBDA)
    nn.init.normal_(implicit.log_scales, std=0.5)
    before, value = model(x), implicit()
    implicit.materialize()
    assert not implicit.log_scales.any()
    torch.testing.assert_close(model(x), before, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(implicit(), value, rtol=1e-12, atol=0)


def test_learning_the_scales_alone_finds_the_balanced_point() -> None:
    model, x = made("mlp")
    implicit = equinorm.ImplicitENorm(model, x, weight_decay=1.0)
    optimizer = torch.optim.LBFGS(implicit.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = implicit()
        loss.backward()
        return loss

    optimizer.step(closure)
    report = equinorm.balance(copy.deepcopy(model), x)
    assert float(implicit().detach()) == pytest.approx(report.norm_after, rel=1e-6)


def test_trains_beside_the_model_with_any_optimizer() -> None:
    model, x = made("mlp")
    implicit = equinorm.ImplicitENorm(model, x, weight_decay=LAMBDA)
    optimizer = torch.optim.Adam([*model.parameters(), *implicit.parameters()], lr=1e-2)
    values = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(x).square().mean() + implicit()
        loss.backward()
        optimizer.step()
        values.append(float(loss.detach()))
    assert values[-1] < values[0] and implicit.log_scales.any()


def test_state_dict_holds_the_scales() -> None:
    model, x = made("mlp")
    implicit = equinorm.ImplicitENorm(model, x, weight_decay=LAMBDA)
    nn.init.normal_(implicit.log_scales)
    other = equinorm.ImplicitENorm(model, x, weight_decay=LAMBDA)
    other.load_state_dict(implicit.state_dict())
    assert torch.equal(other.log_scales, implicit.log_scales)


def test_a_second_backward_is_refused() -> None:
    model, x = made("mlp")
    value = equinorm.ImplicitENorm(model, x, weight_decay=LAMBDA)()
    value.backward(retain_graph=True)
    with pytest.raises(equinorm.EquinormError, match="again"):
        value.backward()


@pytest.mark.parametrize("bad", [-1.0, float("inf"), float("nan"), True])
def test_weight_decay_must_be_a_number_from_zero(bad: float) -> None:
    model, x = made("mlp")
    with pytest.raises(equinorm.ArgumentError, match="weight_decay"):
        equinorm.ImplicitENorm(model, x, weight_decay=bad)


def test_symmetries_of_another_model_are_refused() -> None:
    model, _ = made("mlp")
    other, y = made("mixed")
    with pytest.raises(equinorm.ArgumentError, match="another model"):
        equinorm.ImplicitENorm(model, weight_decay=LAMBDA, symmetries=equinorm.symmetries(other, y))
    with pytest.raises(equinorm.ArgumentError, match="example_inputs"):
        equinorm.ImplicitENorm(model, weight_decay=LAMBDA)
