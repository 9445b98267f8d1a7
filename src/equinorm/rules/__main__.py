"""``python -m equinorm.rules [FILE]``: write the page of supported operators from the rules themselves."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from equinorm.rules.registry import RULES

PAGE = Path("docs/supported-ops.md")
INTRODUCTION = """# Supported operators

Written by `python -m equinorm.rules`; do not edit.

`torch.export` turns a model into a list of ATen operators. Every operator here has a rule that says what it does
to the scales of its inputs ([how it works](how-it-works.md)). Names are without `aten::`, overload and trailing
underscore, so in-place variants are included. {count} operators have a rule.

**An operator that is not listed pins**: whatever enters it keeps scale one, and `symmetries(...).pinned` says so.
The result is then smaller than it could be, never wrong. Operators on constants alone (masks, position tables)
need no rule: they are computed.
"""


def page() -> str:
    """The families in the order in which they are registered, each rule with its operators and its remark."""
    parts = [INTRODUCTION.format(count=len(RULES))]
    for family in dict.fromkeys(rule.family for rule in RULES.values()):
        title, _, meaning = family.partition(": ")
        parts.append(f"## {title[:1].upper()}{title[1:]}\n\n{meaning[:1].upper()}{meaning[1:]}.\n")
        parts.append("| operators | remark |\n|---|---|\n" + "".join(_rows(family)))
    return "\n".join(parts)


def _rows(family: str) -> list[str]:
    by_remark: dict[str, list[str]] = {}
    for operator, rule in RULES.items():
        if rule.family == family:
            by_remark.setdefault(_remark(rule.function), []).append(f"`{operator}`")
    return [f"| {', '.join(names)} | {remark} |\n" for remark, names in by_remark.items()]


def _remark(function: object) -> str:
    text = (inspect.getdoc(function) or "").partition("\n\n")[0]
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def main(arguments: list[str]) -> None:
    """Write the page."""
    path = Path(arguments[0]) if arguments else PAGE
    path.write_text(page(), encoding="utf-8")
    print(f"wrote {path}: {len(RULES)} operators")


if __name__ == "__main__":
    main(sys.argv[1:])
