"""What counts as a number in an argument: also those of numpy, but not True and False."""

from __future__ import annotations

import numbers
from typing import TypeGuard


def is_real(value: object) -> TypeGuard[float]:
    """Whether it is a real number."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number by its type."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
