"""What a report says when there is something to explain, and what balance says of what it was given."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equinorm
from equinorm.errors import EquinormError


def test_a_norm_that_rises_beside_dead_channels_is_explained() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        net[0].weight.mul_(10)
        net[4].weight[:, 0] = 0
        net[2].weight[0] = 5.0
    report = equinorm.balance(net, torch.randn(3, 4))
    assert report.norm_after > report.norm_before and report.still == 1
    assert "why it rose" in str(report) and "as solved" in str(report)
    again = equinorm.balance(net, torch.randn(3, 4))
    assert "why it rose" not in str(again)


def test_powers_of_two_are_not_called_solved() -> None:
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    report = equinorm.balance(net, torch.randn(3, 6), scales="pow2")
    assert report.powers_of_two and "in powers of two" in str(report) and "as solved" not in str(report)


def test_symmetries_of_another_model_are_suspected_first() -> None:
    torch.manual_seed(0)
    one, other = (nn.Sequential(nn.Linear(4, 8), act, nn.Linear(8, 2)) for act in (nn.ReLU(), nn.GELU()))
    x = torch.randn(3, 4)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(EquinormError, match="Are the symmetries those of this model"):
        equinorm.balance(other, x, symmetries=equinorm.symmetries(one, x))
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())


@pytest.mark.parametrize("options", [{"p": np.float32(2), "cycles": np.int64(3)}, {"c": np.float32(1.5)}])
def test_numbers_of_numpy_are_numbers(options: dict[str, Any]) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    assert equinorm.balance(net, torch.randn(3, 4), **options).function_change is not None
