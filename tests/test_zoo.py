"""Whole architectures: every one is analysed, with the expected free scales, and keeps its function."""

from __future__ import annotations

import pytest
import torch
import zoo
from function_law import assert_laws
from hf_models import MODELS
from zoo_named import HUGGING_FACE, NAMED, Named
from zoo_table import TIMM, Timm

import equinorm


def test_the_table_covers_a_hundred_families() -> None:
    assert sum(row.run != "slow" for row in TIMM) >= 100


def _assert_found(found: equinorm.Symmetries, row: Timm) -> None:
    assert found.num_free == row.free
    assert found.coverage == pytest.approx(row.coverage, abs=6e-4)
    assert found.pinned
    assert not [pin for pin in found.pinned if "no rule" in pin.reason]


@pytest.mark.parametrize("row", [row for row in TIMM if row.run == "analysis"], ids=lambda row: row.name)
def test_free_scales_of_timm(row: Timm) -> None:
    _assert_found(equinorm.symmetries(*zoo.timm_model(row.name, row.size)), row)


def _slow_unless_quick(row: Timm) -> object:
    return pytest.param(row, id=row.name, marks=() if row.run == "laws" else pytest.mark.slow)


@pytest.mark.parametrize("row", [_slow_unless_quick(row) for row in TIMM])
def test_laws_on_timm(row: Timm) -> None:
    model, inputs = zoo.timm_model(row.name, row.size, batch=2)
    model, inputs = model.double(), inputs.double()
    found = equinorm.symmetries(model, inputs)
    _assert_found(found, row)
    assert_laws(model, inputs, found)


@pytest.mark.parametrize("row", NAMED, ids=lambda row: row.name)
def test_free_scales_derived_by_hand(row: Named) -> None:
    found = equinorm.symmetries(*zoo.torchvision_model(row.name))
    assert found.num_free == row.free
    assert found.coverage == pytest.approx(row.covered / row.weights)
    linear = {pin.what.split(" dim ")[0] for pin in found.pinned if " dim " in pin.what}
    reasons = {pin.reason for pin in found.pinned}
    assert linear
    for reason in row.pinned:
        assert any(reason in given for given in reasons), reasons


@pytest.mark.parametrize("name", MODELS)
def test_hugging_face(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = zoo.hf_model(name)
    found = equinorm.symmetries(model, inputs)
    assert found.num_free == HUGGING_FACE[name]
    assert_laws(model, inputs, found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry", [e for e in zoo.entries() if e.source == "torchvision"], ids=lambda e: e.name
)
def test_torchvision_is_analysed(entry: zoo.Entry) -> None:
    found = equinorm.symmetries(*entry.build())
    assert found.num_free > 0
    assert 0 < found.coverage <= 1
