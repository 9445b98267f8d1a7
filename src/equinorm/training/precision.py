"""How far and how finely scales can move weights of given types."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from equinorm.training.cycle import LOG2


class Precision:
    """What the narrowest of the types allows."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        dtypes = {tensor.dtype for tensor in tensors} or {torch.float64}
        self._dtype = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
        self._range = math.log2(torch.finfo(self._dtype).max)

    def bound(self, max_scale: float, powers_of_two: bool) -> float:
        """The bound on |log d| in one step: that of ``max_scale``, or where d to the fourth would leave the range."""
        bits = min(math.log2(max_scale), self._range / 4)
        return LOG2 * (math.floor(bits) if powers_of_two else bits)

    def rounded(self, x: Tensor) -> Tensor:
        """The nearest log-scales of which the type has the factor or its inverse: what is recorded is what is applied.

        A factor closer to one than that would be recorded at every step and hardly ever move a weight.
        """
        return x.sign() * x.abs().exp().to(self._dtype).double().log()
