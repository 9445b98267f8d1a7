"""Whatever is replaced between two steps, ENorm moves what is there now."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from enorm_nets import CASES, assert_same, descend, weights_of
from torch import Tensor, nn

import equinorm
from equinorm.errors import EquinormError
from equinorm.training.ownership import Ownership
from equinorm.training.seen import Seen

CASE = CASES["mlp"]


class Run:
    """A training with everything that a step looks up."""

    def __init__(self) -> None:
        self.net = CASE.net()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.average = torch.optim.swa_utils.AveragedModel(self.net)
        self.copy = {name: tensor.clone() for name, tensor in weights_of(self.net).items()}
        self.enorm = equinorm.ENorm(self.net, self.optimizer, CASE.data()[0])
        self.enorm.follow(self.average)
        self.enorm.follow(self.copy)

    def step(self) -> None:
        descend(self.net, self.optimizer, CASE.data())
        self.average.update_parameters(self.net)
        self.enorm.step()

    def tensors(self) -> dict[str, Tensor]:
        """Everything that moves."""
        found = weights_of(self.net) | {f"copy {name}": tensor for name, tensor in self.copy.items()}
        found |= {f"average {name}": tensor for name, tensor in weights_of(self.average.module).items()}
        for name, parameter in self.net.named_parameters():
            state = self.optimizer.state[parameter]
            found |= {f"{key} {name}": value for key, value in state.items() if isinstance(value, Tensor)}
        return found


def other_memory(run: Run) -> None:
    run.net[0].weight.data = run.net[0].weight.data.clone()


def loaded_state(run: Run) -> None:
    run.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))


def other_moment(run: Run) -> None:
    state = run.optimizer.state[run.net[0].weight]
    state["exp_avg"] = state["exp_avg"].clone()


def state_in_other_memory(run: Run) -> None:
    moment = run.optimizer.state[run.net[0].weight]["exp_avg_sq"]
    moment.data = moment.data.clone()


def forgotten_state(run: Run) -> None:
    run.optimizer.state.pop(run.net[0].weight)


def other_copy(run: Run) -> None:
    run.copy["0.weight"] = run.copy["0.weight"].clone()


def other_average(run: Run) -> None:
    averaged = run.average.module[0]
    averaged.weight = nn.Parameter(averaged.weight.detach().clone())


def one_more_copy(run: Run) -> None:
    run.enorm.follow(copy.deepcopy(run.net))


def other_mapping(run: Run) -> None:
    averaged = run.average.module[0]
    averaged._parameters = {
        name: nn.Parameter(p.detach().clone()) for name, p in averaged._parameters.items()
    }


def other_average_module(run: Run) -> None:
    run.average.module = copy.deepcopy(run.average.module)


CHANGES = [
    other_mapping, other_average_module, other_memory, loaded_state, other_moment, state_in_other_memory,
    forgotten_state, other_copy, other_average, one_more_copy,
]  # fmt: skip


def counted_looks(patch: pytest.MonkeyPatch) -> list[None]:
    """A list that grows whenever an ENorm looks its tensors up."""
    looks: list[None] = []
    look_up = equinorm.ENorm._look_up

    def counted(self: equinorm.ENorm) -> None:
        looks.append(None)
        look_up(self)

    patch.setattr(equinorm.ENorm, "_look_up", counted)
    return looks


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_looking_again_or_not_is_the_same(
    change: Callable[[Run], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = []
    for trusted in (True, False):
        with monkeypatch.context() as patch:
            looks = counted_looks(patch)
            if not trusted:
                patch.setattr(Seen, "again", lambda self: False)
            run, looked = Run(), []
            for number in range(6):
                if number == 3:
                    change(run)
                looks.clear()
                run.step()
                looked.append(len(looks))
            assert looked == ([1, 0, 0, 1, 0, 0] if trusted else [1] * 6)
            ends.append({name: tensor.clone() for name, tensor in run.tensors().items()})
    assert_same(*ends)
    assert run.enorm.state_dict()["total_log_scales"].any()


class Counting(torch.optim.SGD):
    """Keeps what does not move: a number that changes at every step, and a sparse mask."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        super().step(closure)
        for parameter, state in self.state.items():
            state["count"] = state.get("count", 0) + 1
            state["mask"] = torch.ones(parameter.shape).to_sparse()


def test_what_does_not_move_needs_no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    equinorm.register_state(Counting, {"momentum_buffer": -1, "count": 0, "mask": 0})
    net, looks = CASE.net(), counted_looks(monkeypatch)
    optimizer = Counting(net.parameters(), lr=0.1, momentum=0.9)
    enorm = equinorm.ENorm(net, optimizer, CASE.data()[0])
    for _ in range(4):
        descend(net, optimizer, CASE.data())
        enorm.step()
    assert len(looks) == 1


def test_a_moment_that_was_transposed_is_refused() -> None:
    run = Run()
    run.step()
    run.step()
    run.optimizer.state[run.net[0].weight]["exp_avg"].t_()
    with pytest.raises(EquinormError, match=r"exp_avg.* has shape"):
        run.enorm.step()


def test_a_look_that_was_interrupted_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Ownership, "look", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        run.step()
    other_moment(run)
    moment = run.tensors()["exp_avg 0.weight"].clone()
    run.enorm.step()
    assert not torch.equal(run.optimizer.state[run.net[0].weight]["exp_avg"], moment)


def test_a_model_without_free_scales_is_announced() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    with pytest.warns(UserWarning, match="no scale of this model is free"):
        enorm = equinorm.ENorm(net, torch.optim.SGD(net.parameters()), torch.randn(2, 3))
    enorm.step()
