"""Bad input: one exception type, a message that names the culprit, and the model bit-for-bit as it was."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equinorm
from equinorm import ArgumentError, EquinormError

X = torch.linspace(-1, 1, 8).view(2, 4)


def mlp(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).to(dtype)


def bits(model: nn.Module) -> list[bytes]:
    return [bytes(t.detach().contiguous().view(torch.uint8).flatten().tolist()) for t in _tensors(model)]


def _tensors(model: nn.Module) -> list[Tensor]:
    tensors = [*model.parameters(), *model.buffers()]
    return [t.detach().reshape(-1) for t in tensors if t.device.type != "meta"]


def refused(model: nn.Module, *words: str, inputs: Any = X, **options: Any) -> None:
    """An argument error with these words in its message; nothing has moved."""
    before, flags = bits(model), [m.training for m in model.modules()]
    with pytest.raises(ArgumentError) as caught:
        equinorm.balance(model, inputs, **options)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, EquinormError)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)
    assert bits(model) == before
    assert [m.training for m in model.modules()] == flags


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"p": 0}, "p: "),
    ({"p": -1.0}, "p: "),
    ({"p": math.nan}, "p: "),
    ({"p": "2"}, "p: "),
    ({"p": True}, "p: "),
    ({"c": 0}, "c: "),
    ({"c": -1.2}, "c: "),
    ({"c": math.nan}, "c: "),
    ({"c": math.inf}, "c: "),
    ({"c": "uniform"}, "c: "),
    ({"c": None}, "c: "),
    ({"c": "adaptive", "p": math.inf}, '"adaptive" has no meaning'),
    ({"c": {"0.weight": 0.0}}, "0.weight"),
    ({"c": {"0.weight": "much"}}, "0.weight"),
    ({"c": {"0.weight": True}}, "0.weight"),
    ({"c": {"0.weigth": 1.0}}, "0.weigth"),
    ({"c": {"0.bias": 1.0}}, "0.bias"),
    ({"solver": "newton"}, "'multilevel', 'cycle', 'cycle-parallel'"),
    ({"solver": ["cycle"]}, "solver: "),
    ({"scales": "pow3"}, "'real', 'pow2'"),
    ({"batch_norm": "drop"}, "'preserve', 'ignore'"),
    ({"cycles": -1}, "cycles: "),
    ({"cycles": 1.5}, "cycles: "),
    ({"tol": 0.0}, "tol: "),
    ({"tol": math.inf}, "tol: "),
    ({"symmetries": "all"}, "symmetries: "),
    ({"biases": "x"}, "biases: "),
    ({"verify": 1}, "verify: "),
]


@pytest.mark.parametrize(("options", "words"), ARGUMENTS, ids=lambda value: str(value)[:40])
def test_arguments(options: dict[str, Any], words: str) -> None:
    refused(mlp(), words, **options)


@pytest.mark.parametrize("value", (math.nan, math.inf, -math.inf))
@pytest.mark.parametrize("name", ("0.weight", "2.weight", "2.bias", "4.weight", "4.bias"))
def test_weights_that_are_not_finite(name: str, value: float) -> None:
    model = mlp()
    with torch.no_grad():
        model.get_parameter(name).view(-1)[1] = value
    refused(model, name, "NaN or infinite")


INPUTS: list[tuple[Any, str]] = [
    (torch.zeros(2, 5), "example_inputs"),
    ((X, X), "example_inputs: they do not fit Sequential.forward"),
    ({"y": X}, "example_inputs: they do not fit Sequential.forward"),
    ((), "example_inputs: they do not fit Sequential.forward"),
    ("image.png", "example_inputs: expected a tensor"),
    (3, "example_inputs: expected a tensor"),
    (X.double(), "example_inputs"),
    (X.clone().fill_(math.nan), "example_inputs: they hold NaN or infinity"),
    (X / 0, "example_inputs: they hold NaN or infinity"),
    (None, "example_inputs: needed"),
]


@pytest.mark.parametrize(("inputs", "words"), INPUTS, ids=lambda value: str(value)[:20])
def test_example_inputs(inputs: Any, words: str) -> None:
    refused(mlp(), words, inputs=inputs)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        return h if h.sum() > 0 else -h


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("no such thing")


@pytest.mark.parametrize("build", (Branches, Fails))
def test_models_that_cannot_be_traced(
    build: Callable[[], nn.Module], capfd: pytest.CaptureFixture[str]
) -> None:
    """In one line: torch.export would print the whole graph besides."""
    refused(build(), build.__name__, "torch.export", "control flow")
    assert capfd.readouterr() == ("", "")


class Answer:
    """Not a type that torch.export knows."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class Answers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Answer:
        return Answer(self.layer(x))


def test_outputs_that_cannot_be_traced() -> None:
    refused(Answers(), "Answers returns an object of type", "Answer", "register_dataclass", "use_cache=False")


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_compiled_modules_are_refused() -> None:
    refused(torch.jit.trace(mlp(), X), "cannot trace", "ScriptModule")


def test_not_a_model() -> None:
    for function in (equinorm.symmetries, equinorm.balance):
        with pytest.raises(ArgumentError, match=r"model: expected a torch\.nn\.Module, got function"):
            function(torch.relu if function is None else (lambda x: x), X)  # type: ignore[operator]


def test_symmetries_of_another_model() -> None:
    sym = equinorm.symmetries(mlp(), X)
    wider = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3))
    refused(wider, "symmetries: found on another model", "0.weight", "(6, 4)", "(7, 4)", symmetries=sym)
    refused(mlp()[:3], "symmetries: found on another model", "4.bias", symmetries=sym)
    refused(mlp(), "symmetries", "batch_norm='preserve'", "'ignore'", symmetries=sym, batch_norm="ignore")


def test_verify_needs_inputs() -> None:
    model = mlp()
    sym = equinorm.symmetries(model, X)
    refused(model, "example_inputs", "verify=False", inputs=None, symmetries=sym)
    assert equinorm.balance(model, symmetries=sym, verify=False).converged


def test_parameters_without_values() -> None:
    model = mlp()
    sym = equinorm.symmetries(model, X)
    model[2].to("meta")
    refused(model, "2.", "meta device", "load the weights", symmetries=sym)
    refused(model, inputs=X)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wave = nn.Parameter(torch.randn(5, 4, dtype=torch.complex64))
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.relu((x.to(torch.complex64) @ self.wave.T).real))


def test_complex_parameters_are_pinned() -> None:
    """What they make stays; all else moves."""
    torch.manual_seed(0)
    model = nn.Sequential(Complex(), nn.ReLU(), nn.Linear(3, 2))
    wave = model[0].wave.detach().clone()
    report = equinorm.balance(model, X)
    assert report.symmetries.num_free == 3 and report.norm_after < report.norm_before
    assert torch.equal(model[0].wave, wave) and "0.wave" not in report.scales
    reasons = {pin.what: pin.reason for pin in report.symmetries.pinned if "complex" in pin.reason}
    assert reasons, report.symmetries.pinned
    assert all("0.wave is complex64: only real weights" in reason for reason in reasons.values())


def test_integer_parameters_are_pinned() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    model[0].weight = nn.Parameter(torch.ones(3, 4, dtype=torch.int64), requires_grad=False)
    model[0].bias = nn.Parameter(torch.ones(3, dtype=torch.int64), requires_grad=False)
    report = equinorm.balance(model, X.long())
    assert "nothing to rescale" in report.status and not report.scales


def test_weights_that_became_complex_since_the_analysis() -> None:
    model = mlp()
    sym = equinorm.symmetries(model, X)
    model[2].weight = nn.Parameter(model[2].weight.detach().to(torch.complex64))
    refused(model, "parameter 2.weight has type torch.complex64", "only real weights", symmetries=sym)


def test_memory_that_is_shared_without_being_tied() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = nn.Parameter(model[0].weight.detach())
    refused(model, "2.weight", "shares memory", "tie them")
    model[2].weight = nn.Parameter(torch.ones(4).expand(4, 4))
    refused(model, "2.weight", "repeats entries", "clone")


def test_one_error_family() -> None:
    assert issubclass(ArgumentError, EquinormError) and issubclass(ArgumentError, ValueError)
    assert not issubclass(EquinormError, ValueError)


# -- nothing half-applied ------------------------------------------------------------------------------------


class Interrupting(nn.Module):
    """Raises on one of its calls, counted from 1."""

    def __init__(self, call: int, error: BaseException) -> None:
        super().__init__()
        self.body = mlp()
        self.calls, self.call, self.error = itertools.count(1), call, error

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_exporting() and next(self.calls) == self.call:
            raise self.error
        return self.body(x)


@pytest.mark.parametrize("call", range(1, 9))
@pytest.mark.parametrize("error", (KeyboardInterrupt(), MemoryError()), ids=("interrupt", "memory"))
def test_an_error_while_verifying_restores_every_bit(call: int, error: BaseException) -> None:
    model = Interrupting(call, error)
    before = bits(model)
    with pytest.raises(type(error)):
        equinorm.balance(model, X)
    assert bits(model) == before


def unbalanced() -> nn.Sequential:
    """Every tensor of it moves, with powers of two as well."""
    model = mlp()
    with torch.no_grad():
        for k, size in ((0, 2.0**6), (2, 0.7), (4, 2.0**-6)):
            model[k].weight.mul_(size)
    return model


@pytest.mark.parametrize("verify", (True, False))
@pytest.mark.parametrize("scales", ("real", "pow2"))
@pytest.mark.parametrize("failing", (1, 2, 3, 5))
def test_an_error_while_applying_undoes_what_was_done(
    failing: int, verify: bool, scales: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a copy to the last bit, as powers of two do without one; else to within rounding."""
    from equinorm import apply

    real, calls = apply._multiplier, []

    def breaks(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == failing:
            raise MemoryError
        return real(*arguments)

    monkeypatch.setattr(apply, "_multiplier", breaks)
    model = unbalanced()
    original = copy.deepcopy(model)
    with pytest.raises(MemoryError):
        equinorm.balance(model, X, verify=verify, scales=scales)
    assert len(calls) == failing
    if verify or failing == 1 or scales == "pow2":
        assert bits(model) == bits(original)
    for a, b in zip(model.parameters(), original.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=3e-7, atol=0)


@pytest.mark.parametrize("verify", (True, False))
def test_ctrl_c_while_applying_waits(verify: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All or nothing: with a copy at hand nothing, else all."""
    import os
    import signal

    from equinorm import apply

    real, sent = apply._multiplier, []

    def interrupted(*arguments: Any) -> Any:
        if len(sent) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        sent.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(apply, "_multiplier", interrupted)
    model = mlp()
    original, balanced = copy.deepcopy(model), copy.deepcopy(model)
    with pytest.raises(KeyboardInterrupt):
        equinorm.balance(model, X, verify=verify)
    monkeypatch.undo()
    equinorm.balance(balanced, X)
    assert bits(model) == bits(original if verify else balanced)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
