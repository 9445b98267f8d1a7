"""Law 5 of the design: SGD with ENorm is SGD on the never-rescaled network with cumulative scales d."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from enorm_nets import CASES, DTYPE, Case, assert_close, descend, loss_of
from torch import Tensor

import equinorm

STEPS = 200
SGD = {
    "plain": {},
    "weight decay": {"weight_decay": 5e-3},
    "momentum": {"momentum": 0.9, "weight_decay": 1e-3},
    "dampening": {"momentum": 0.8, "dampening": 0.3, "weight_decay": 1e-3},
    "decay of weights only": {"momentum": 0.9, "weight_decay": 1e-2, "of_biases": 0.0},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
}


class NeverRescaled:
    """The formula of law 5, with weights W, momenta m and one scale per channel of each group."""

    def __init__(self, case: Case, net: torch.nn.Module, lr: float, p: float, cap: float, **sgd: Any) -> None:
        self.case, self.net, self.lr, self.p, self.cap, self.sgd = case, net, lr, p, cap, sgd
        self.momenta: dict[str, Tensor] = {}
        self.d = {"": torch.ones(1, dtype=DTYPE)}
        self.capped = 0
        for layer, out, _ in case.layers:
            if out:
                self.d[out] = torch.ones(self.parameter(layer + ".weight").shape[0], dtype=DTYPE)

    def parameter(self, name: str) -> Tensor:
        return self.net.get_parameter(name)

    def scale(self, name: str) -> Tensor:
        """d_out / d_in, shaped like the parameter; d_out for a bias."""
        layer, kind = name.rsplit(".", 1)
        out, inp = next((o, i) for who, o, i in self.case.layers if who == layer)
        if kind == "bias":
            return self.d[out]
        shape = self.parameter(name).shape
        consumed = self.d[inp].repeat_interleave(shape[1] // self.d[inp].numel())
        ones = [1] * (len(shape) - 2)
        return self.d[out].view(-1, 1, *ones) / consumed.view(1, -1, *ones)

    def step(self, data: tuple[Tensor, Tensor]) -> None:
        mu, damp, decay, nesterov = (
            self.sgd.get(k, 0) for k in ("momentum", "dampening", "weight_decay", "nesterov")
        )
        self.net.zero_grad()
        loss_of(self.net, data).backward()
        with torch.no_grad():
            for name, w in self.net.named_parameters():
                s = self.scale(name)
                rate = self.sgd.get("of_biases", decay) if name.endswith("bias") else decay
                g = w.grad + rate * s**2 * w
                m = mu * self.momenta[name] + (1 - damp) * g if name in self.momenta else g
                if mu:
                    self.momenta[name] = m
                w -= self.lr * s**-2 * (g + mu * m if nesterov else m)
        self.cycle()

    @torch.no_grad()
    def cycle(self) -> None:
        """Algorithm 1 once, channel by channel, on the rescaled weights."""
        now = {
            layer: self.parameter(f"{layer}.weight") * self.scale(f"{layer}.weight")
            for layer, _, _ in self.case.layers
        }
        for group in [g for g in self.d if g]:
            for i in range(self.d[group].numel()):
                left = right = 0.0
                for layer, out, inp in self.case.layers:
                    if out == group:
                        left += now[layer][i].abs().pow(self.p).sum().item()
                    if inp == group:
                        right += self.fan(now[layer], group)[:, i].abs().pow(self.p).sum().item()
                d = (right / left) ** (1 / (2 * self.p))
                self.capped += not 1 / self.cap <= d <= self.cap
                d = min(max(d, 1 / self.cap), self.cap)
                self.d[group][i] *= d
                for layer, out, inp in self.case.layers:
                    if out == group:
                        now[layer][i] *= d
                    if inp == group:
                        self.fan(now[layer], group)[:, i] /= d

    def fan(self, weight: Tensor, group: str) -> Tensor:
        """The entries by consumed channel on dimension 1 (a flattened channel owns consecutive columns)."""
        return weight.view(weight.shape[0], self.d[group].numel(), -1)


def together(
    name: str,
    sgd: dict[str, Any],
    *,
    p: float = 2.0,
    cap: float = 8.0,
    spread: float = 1.0,
    steps: int = STEPS,
) -> int:
    case, lr = CASES[name], 0.02
    nets = case.net(), case.net()
    with torch.no_grad():
        for net in nets:
            net.get_parameter(case.layers[0][0] + ".weight").mul_(spread)
            net.get_parameter(case.layers[0][0] + ".bias").mul_(spread)
            net.get_parameter(case.layers[-1][0] + ".weight").div_(spread)
    options = {k: v for k, v in sgd.items() if k != "of_biases"}
    weights, biases = (
        [p for n, p in nets[0].named_parameters() if n.endswith(kind)] for kind in ("weight", "bias")
    )
    of_biases = {"weight_decay": sgd["of_biases"]} if "of_biases" in sgd else {}
    optimizer = torch.optim.SGD([{"params": weights}, {"params": biases, **of_biases}], lr=lr, **options)
    enorm = equinorm.ENorm(nets[0], optimizer, case.data()[0], p=p, max_scale=cap)
    oracle = NeverRescaled(case, nets[1], lr, p, cap, **sgd)
    for k in range(steps):
        data = case.data(k % 7)
        descend(nets[0], optimizer, data)
        enorm.step()
        oracle.step(data)
        total = enorm.total_scales()
        for who, w in nets[0].named_parameters():
            s = oracle.scale(who)
            assert_close(w.detach(), oracle.parameter(who) * s, 1e-9, f"step {k}, {who}")
            up, down = total[who]
            assert_close(
                (up / down).broadcast_to(w.shape), s.broadcast_to(w.shape), 1e-9, f"step {k}, scale of {who}"
            )
            if who in oracle.momenta:
                assert_close(
                    optimizer.state[w]["momentum_buffer"],
                    oracle.momenta[who] / s,
                    1e-9,
                    f"step {k}, momentum of {who}",
                )
    return oracle.capped


@pytest.mark.parametrize("sgd", SGD)
@pytest.mark.parametrize("name", CASES)
def test_sgd_with_enorm_is_sgd_on_the_never_rescaled_network(name: str, sgd: str) -> None:
    assert together(name, SGD[sgd], steps=STEPS if sgd == "nesterov" else STEPS // 4) == 0


@pytest.mark.parametrize("p", [1.0, 3.0])
def test_for_other_powers(p: float) -> None:
    assert together("mlp", SGD["nesterov"], p=p, steps=60) == 0


@pytest.mark.parametrize("name", CASES)
def test_with_scales_held_back(name: str) -> None:
    assert together(name, SGD["momentum"], cap=2.0, spread=20.0, steps=40) > 10
