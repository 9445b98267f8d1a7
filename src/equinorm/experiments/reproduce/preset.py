"""What a preset makes of a protocol, and in words what it does less of than the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from equinorm.experiments.methods import METHODS
from equinorm.experiments.reproduce.case import Case
from equinorm.experiments.reproduce.experiment import Preset
from equinorm.experiments.reproduce.protocol import Protocol

NAMES = {
    "limit": "training images",
    "validation": "images held out",
    "batch_size": "batch size",
    "weight_decay": "weight decay",
}
"""Settings as a reader calls them, where their own names do not do."""


@dataclass(frozen=True)
class Plan:
    """The runs that a preset asks for."""

    cases: tuple[Case, ...]
    seeds: int
    overrides: Mapping[str, Any] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)

    def fixed(self, protocol: Protocol, case: Case) -> dict[str, Any]:
        """What is not searched: with a learning rate for its method, a case keeps the recipe's groups, too."""
        fixed = dict(self.overrides)
        if case.method in self.rates:
            fixed["lr"] = self.rates[case.method]
            if METHODS[case.method].norm == "gn":
                fixed["groups"] = protocol.row.values["groups"]
        return fixed


def planned(protocol: Protocol, preset: Preset) -> Plan:
    """The paper's protocol, or the quick one."""
    if preset == "paper":
        return Plan(protocol.cases, protocol.seeds)
    quick = protocol.quick
    return Plan(quick.cases or protocol.cases, quick.seeds, quick.overrides, quick.rates)


def shortened(protocol: Protocol, plan: Plan) -> tuple[str, ...]:
    """What a plan does less of than the paper, computed from what it does."""
    usual = protocol.settings(protocol.cases[0])
    lines = [
        f"{NAMES.get(name, name)}: {value:g} instead of {_usual(getattr(usual, name))}"
        for name, value in plan.overrides.items()
    ]
    if len(plan.cases) < len(protocol.cases):
        lines.append(f"rows: {len(plan.cases)} instead of {len(protocol.cases)}")
    if plan.seeds < protocol.seeds:
        lines.append(f"seeds: {plan.seeds} instead of {protocol.seeds}")
    if plan.rates:
        lines.append(f"learning rates are fixed, not cross-validated: {protocol.quick.rates_from}")
    if plan.rates and any(METHODS[case.method].norm == "gn" for case in plan.cases):
        lines.append(f"groups of GN: {protocol.row.values['groups']}, not cross-validated")
    return tuple(lines)


def _usual(value: object) -> str:
    return "all" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)
