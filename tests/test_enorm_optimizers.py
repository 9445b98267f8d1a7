"""How each optimizer's state moves with the weights, and what its next step is then.

With s the factor of a weight, a step from rescaled weights, gradients and state is the rescaled step with its update
(the change of the weight without its decay) multiplied by s to a power that follows from the update rule: -1 for
sums of gradients (SGD, ASGD), 0 where gradients are divided by their size (the Adam family), 1 for methods that do not
see the scale at all (Adadelta, Rprop).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from enorm_nets import CASES, assert_close, assert_same, descend, loss_of, weights_of
from torch import Tensor
from torch.optim import Optimizer

import equinorm
from equinorm.training.state import EXPONENTS, REFUSED

CASE = CASES["mlp"]
ADAM = {"exp_avg": -1, "exp_avg_sq": -2}
GRADS = {"eps": 1e-60}  # a constant beside a gradient has a scale of its own: out of the way


@dataclass(frozen=True)
class Row:
    """An optimizer, its state's exponents and its update's."""

    optimizer: str
    state: dict[str, int]
    update: int
    options: dict[str, Any] = field(default_factory=dict)
    warm: int = 3  # steps before
    decay: Callable[[dict[str, Any], dict[str, Any]], float] = lambda group, state: 1.0


def _decoupled(group: dict[str, Any], state: dict[str, Any]) -> float:
    return 1 - group["lr"] * group["weight_decay"]


def _asgd(group: dict[str, Any], state: dict[str, Any]) -> float:
    return 1 - group["lambd"] * float(state["eta"])


ROWS = {
    "SGD": Row("SGD", {}, -1),
    "SGD momentum": Row("SGD", {"momentum_buffer": -1}, -1, {"momentum": 0.9}),
    "SGD dampening": Row("SGD", {"momentum_buffer": -1}, -1, {"momentum": 0.9, "dampening": 0.4}),
    "SGD Nesterov": Row("SGD", {"momentum_buffer": -1}, -1, {"momentum": 0.9, "nesterov": True}),
    "Adam": Row("Adam", ADAM, 0),
    "AMSGrad": Row("Adam", {**ADAM, "max_exp_avg_sq": -2}, 0, {"amsgrad": True}),
    "AdamW": Row("AdamW", ADAM, 0, {"weight_decay": 0.1}, decay=_decoupled),
    "AdamW AMSGrad": Row(
        "AdamW", {**ADAM, "max_exp_avg_sq": -2}, 0, {"weight_decay": 0.1, "amsgrad": True}, decay=_decoupled
    ),
    "NAdam": Row("NAdam", {**ADAM, "mu_product": 0}, 0),
    "NAdam decoupled": Row(
        "NAdam", {**ADAM, "mu_product": 0}, 0, {"weight_decay": 0.1, "decoupled_weight_decay": True}, decay=_decoupled
    ),
    "RAdam, first steps": Row("RAdam", ADAM, -1),  # not yet divided by the gradients' size
    "RAdam": Row("RAdam", ADAM, 0, warm=8),
    "SparseAdam": Row("SparseAdam", ADAM, 0),
    "Adamax": Row("Adamax", {"exp_avg": -1, "exp_inf": -1}, 0),
    "RMSprop": Row("RMSprop", {"square_avg": -2}, 0),
    "RMSprop momentum": Row("RMSprop", {"square_avg": -2, "momentum_buffer": 0}, 0, {"momentum": 0.9}),
    "RMSprop centered": Row(
        "RMSprop", {"square_avg": -2, "grad_avg": -1, "momentum_buffer": 0}, 0, {"centered": True, "momentum": 0.5}
    ),
    "Adagrad": Row("Adagrad", {"sum": -2}, 0, {"initial_accumulator_value": 0.1}),
    "Adadelta": Row("Adadelta", {"square_avg": -2, "acc_delta": 2}, 1),
    "ASGD": Row("ASGD", {"ax": 1, "eta": 0, "mu": 0}, -1, {"t0": 1, "lambd": 0.01}, decay=_asgd),
    "Rprop": Row("Rprop", {"prev": -1, "step_size": 1}, 1, {"step_sizes": (1e-30, 1e30)}),
}  # fmt: skip


def _forms() -> Iterator[Any]:
    for name, row in ROWS.items():
        known = inspect.signature(getattr(torch.optim, row.optimizer).__init__).parameters
        for form in ("foreach", "for-loop", "fused"):
            option = {"foreach": {"foreach": True}, "for-loop": {"foreach": False}, "fused": {"fused": True}}[
                form
            ]
            if next(iter(option)) in known:
                yield pytest.param(row, option, id=f"{name}, {form}")
        if "foreach" not in known:
            yield pytest.param(row, {}, id=name)


def _sparse(optimizer: Optimizer) -> bool:
    return isinstance(optimizer, torch.optim.SparseAdam)


def _gradients(net: torch.nn.Module, optimizer: Optimizer, seed: int) -> None:
    optimizer.zero_grad()
    loss_of(net, CASE.data(seed)).backward()
    if _sparse(optimizer):
        for p in net.parameters():
            p.grad = p.grad.to_sparse()


def _dense(net: torch.nn.Module) -> dict[str, Tensor]:
    return {
        name: p.grad.to_dense() if p.grad.is_sparse else p.grad.clone() for name, p in net.named_parameters()
    }


@pytest.mark.parametrize(("row", "form"), list(_forms()))
def test_a_step_after_enorm_is_the_rescaled_step(row: Row, form: dict[str, bool]) -> None:
    cls = getattr(torch.optim, row.optimizer)
    net = CASE.net()
    optimizer = cls(net.parameters(), lr=0.01, **row.options, **form)
    for k in range(row.warm):
        _gradients(net, optimizer, k)
        optimizer.step()
    for group in optimizer.param_groups:
        if "eps" in group:
            group["eps"] = GRADS["eps"]

    other, twin = copy.deepcopy((net, optimizer))
    equinorm.ENorm(other, twin, CASE.data()[0]).step()
    before, after = weights_of(net), weights_of(other)
    s = {name: after[name] / before[name] for name in before}
    assert max((factor - 1).abs().max().item() for factor in s.values()) > 0.05

    states_of = lambda n, o: {name: dict(o.state[p]) for name, p in n.named_parameters()}  # noqa: E731
    old = copy.deepcopy(states_of(net, optimizer))
    _assert_rescaled(old, states_of(other, twin), s, row.state)
    _gradients(net, optimizer, 99)
    _gradients(other, twin, 99)
    plain, moved = _dense(net), _dense(other)
    for name in plain:  # Equation eq:update_grads
        assert_close(moved[name], plain[name] / s[name], 1e-11, f"gradient of {name}")
    optimizer.step()
    twin.step()
    new, twins = states_of(net, optimizer), states_of(other, twin)
    for name in s if row.optimizer == "ASGD" else ():  # ax goes on to average the weights as they now are
        mu = float(old[name]["mu"])
        expected = (1 - mu) * s[name] * old[name]["ax"] + mu * other.get_parameter(name).detach()
        assert_close(twins[name]["ax"], expected, 1e-11, f"ax of {name}")
        new[name]["ax"] = twins[name]["ax"] / s[name]
    _assert_rescaled(new, twins, s, row.state)
    for name, parameter in net.named_parameters():
        rest = row.decay(optimizer.param_groups[0], old[name])
        update = parameter.detach() - rest * before[name]
        expected = rest * after[name] + s[name] ** row.update * update
        assert update.abs().max() > 1e-9
        assert_close(other.get_parameter(name).detach(), expected, 1e-11, f"{name} after a step")
        assert_close(
            other.get_parameter(name).detach() - rest * after[name],
            s[name] ** row.update * update,
            1e-7,
            name,
        )


def _assert_rescaled(plain: Any, moved: Any, s: dict[str, Tensor], exponents: dict[str, int]) -> None:
    for name in s:
        tensors = {key for key, value in plain[name].items() if isinstance(value, Tensor)} - {"step"}
        assert tensors == set(exponents), f"{name}: the table must say how {tensors} move"
        for key, exponent in exponents.items():
            expected = plain[name][key] if exponent == 0 else plain[name][key] * s[name] ** exponent
            assert_close(moved[name][key], expected, 1e-11, f"{key} of {name}")


def test_every_optimizer_of_torch_is_in_the_table_or_refused() -> None:
    every = {c for c in vars(torch.optim).values() if isinstance(c, type) and issubclass(c, Optimizer)} - {
        Optimizer
    }
    assert every == set(EXPONENTS) | set(REFUSED)
    assert {cls.__name__ for cls in EXPONENTS} == {row.optimizer for row in ROWS.values()}


@pytest.mark.parametrize(
    ("name", "reason"), [("LBFGS", "inner products"), ("Adafactor", "factors"), ("Muon", "whole matrices")]
)
def test_what_is_not_elementwise_is_refused(name: str, reason: str) -> None:
    net = CASE.net()
    parameters = [p for p in net.parameters() if p.dim() == 2 or name != "Muon"]
    with pytest.raises(equinorm.ArgumentError, match=f"{name} is not elementwise .*{reason}"):
        equinorm.ENorm(net, getattr(torch.optim, name)(parameters), CASE.data()[0])


class Lion(Optimizer):
    """The sign of an average of gradients."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                average.lerp_(p.grad, 0.1)
                p.sub_(average.sign(), alpha=group["lr"])


class ScheduleFree(Optimizer):
    """SGD on z, weights averaged: state that moves as weights do."""

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.clone())
                z.sub_(p.grad, alpha=group["lr"])
                p.lerp_(z, 0.1)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in (Lion, ScheduleFree):
        monkeypatch.setitem(EXPONENTS, cls, {})
        monkeypatch.delitem(EXPONENTS, cls)


@pytest.mark.parametrize(("cls", "exponents"), [(Lion, {"exp_avg": -1}), (ScheduleFree, {"z": 1})])
def test_a_registered_optimizer_moves_as_it_says(
    cls: type[Optimizer], exponents: dict[str, int], table: None
) -> None:
    net = CASE.net()
    optimizer = cls(net.parameters())
    with pytest.raises(
        equinorm.ArgumentError, match=rf"{cls.__name__} is unknown.*register_state\({cls.__name__}"
    ):
        equinorm.ENorm(net, optimizer, CASE.data()[0])
    equinorm.register_state(cls, exponents)
    descend(net, optimizer, CASE.data())
    old, state = (
        weights_of(net),
        {n: dict(copy.deepcopy(optimizer.state[p])) for n, p in net.named_parameters()},
    )
    equinorm.ENorm(net, optimizer, CASE.data()[0]).step()
    for name, p in net.named_parameters():
        for key, exponent in exponents.items():
            assert_close(
                optimizer.state[p][key], state[name][key] * (p.detach() / old[name]) ** exponent, 1e-12
            )


class Unknown(torch.optim.SGD):
    """SGD with one state more."""

    extra: Any = staticmethod(torch.zeros_like)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        last = self.param_groups[0]["params"][-1]
        self.state[last]["novel"] = type(self).extra(last)


KNOWN = {"momentum_buffer": -1, "novel": -1}


@pytest.mark.parametrize(
    ("extra", "registered", "message"),
    [
        (torch.zeros_like, None, "keeps a state 'novel' that equinorm does not know"),
        (lambda p: [torch.zeros_like(p)], None, "keeps a state 'novel' that equinorm does not know"),
        (lambda p: torch.zeros(p.shape[0], 7), KNOWN, "has shape .* Only elementwise state"),
        (lambda p: p.new_zeros(*p.shape, 2)[..., 0], KNOWN, "does not lie in memory as"),
    ],
    ids=["unknown", "unknown list", "another shape", "another layout"],
)  # fmt: skip
def test_state_that_cannot_move_leaves_everything_as_it_was(
    extra: Any, registered: dict[str, int] | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unknown, "extra", staticmethod(extra))
    if registered:
        monkeypatch.setitem(EXPONENTS, Unknown, registered)
    net = CASE.net()
    optimizer = Unknown(list(net.parameters())[:-1], lr=0.1, momentum=0.9)
    enorm = equinorm.ENorm(net, optimizer, CASE.data()[0])
    descend(net, optimizer, CASE.data())
    before, momenta = (
        weights_of(net),
        {n: optimizer.state[p].get("momentum_buffer") for n, p in net.named_parameters()},
    )
    momenta = {n: m.clone() for n, m in momenta.items() if m is not None}
    with pytest.raises(equinorm.EquinormError, match=message):
        enorm.step()
    assert_same(weights_of(net), before)
    assert_same({n: optimizer.state[net.get_parameter(n)]["momentum_buffer"] for n in momenta}, momenta)


@pytest.mark.parametrize("arguments", [(object, {}), (Lion, {"exp_avg": "-1"}), (Lion, {"exp_avg": 0.5})])
def test_register_state_checks_its_arguments(arguments: Any, table: None) -> None:
    with pytest.raises(equinorm.ArgumentError):
        equinorm.register_state(*arguments)
    assert Lion not in EXPONENTS
