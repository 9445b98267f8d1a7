"""How far and how finely scales can move weights of given types."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from equinorm.training.cycle import LOG2

# Binary digits after the point that a scale or its inverse has. A weight is rounded whenever it moves, and always to
# the same side while it hardly moves; in float32, scales of 64 units in the last place make that rare and small.
DIGITS = {torch.float64: 52, torch.float32: 17, torch.float16: 10, torch.bfloat16: 7}


class Precision:
    """What the narrowest of the types allows."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        dtypes = {tensor.dtype for tensor in tensors} or {torch.float64}
        self._range = min(math.log2(torch.finfo(dtype).max) for dtype in dtypes)
        self.unit = 2.0 ** -min(DIGITS[dtype] for dtype in dtypes)

    def bound(self, max_scale: float, powers_of_two: bool) -> float:
        """The bound on |log d| in one step: that of ``max_scale``, or where d to the fourth would leave the range."""
        bits = min(math.log2(max_scale), self._range / 4)
        return LOG2 * (math.floor(bits) if powers_of_two else bits)
