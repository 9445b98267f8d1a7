"""Readable tables for the terminal, in plain text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equinorm.symmetry import Group, Symmetries

ROWS = 40
WIDTH = 44


def describe(symmetries: Symmetries) -> str:
    """The groups with where they act, then what is pinned, by reason."""
    count = len(symmetries.groups)
    lines = [
        f"{symmetries.num_free} free scales in {count} group{'' if count == 1 else 's'}; "
        f"{symmetries.coverage:.0%} of the linear and convolutional weights can be rescaled"
    ]
    if count:
        rows = [(str(group.size), places(group, 1), places(group, -1)) for group in symmetries.groups[:ROWS]]
        lines += ["", *columns([("scales", "multiply", "divide"), *rows])]
        lines += [f"… and {count - ROWS} more groups (see .groups)"] if count > ROWS else []
    if symmetries.pinned:
        lines += ["", f"pinned ({len(symmetries.pinned)}, see .pinned), by reason:"]
        reasons = Counter(pin.reason.partition(" (")[0] for pin in symmetries.pinned)
        lines += [f"  {n:5d}  {reason}" for reason, n in reasons.most_common(12)]
    return "\n".join(lines)


def places(group: Group, sign: int) -> str:
    """Where a group's scales multiply (+1) or divide (-1), as many as fit: ``layer.weight,bias[0] + 2 more``."""
    layers: dict[tuple[str, int], list[str]] = {}
    for member in group.members:
        if member.sign == sign:
            layer, dot, name = member.parameter.rpartition(".")
            layers.setdefault((layer + dot, member.dim), []).append(name)
    found = [f"{layer}{','.join(names)}[{dim}]" for (layer, dim), names in layers.items()]
    shown = 1
    while shown < len(found) and len(", ".join(found[: shown + 1])) <= WIDTH:
        shown += 1
    text = ", ".join(found[:shown])
    text = text if len(text) <= WIDTH else "…" + text[-WIDTH + 1 :]
    return text + (f" + {len(found) - shown} more" if len(found) > shown else "")


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns, the first row underlined."""
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]
