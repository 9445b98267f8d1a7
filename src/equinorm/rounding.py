"""How far rounding may move a model's outputs: what a one-ulp perturbation of its weights does to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from equinorm.interrupts import interrupts_deferred

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Precision(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the coarsest precision of what is computed meanwhile: autocast and casts may hide inside a model."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.eps = 0.0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.eps = max(self.eps, coarsest(t for t in pytree.tree_leaves(result) if isinstance(t, Tensor)))
        return result


def coarsest(tensors: Iterable[Tensor]) -> float:
    """The largest spacing of floating-point numbers at one among these tensors' types."""
    return max((torch.finfo(t.dtype).eps for t in tensors if t.is_floating_point()), default=0.0)


@contextmanager
def swapped(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> Iterator[None]:
    """Exchange the contents of tensors with those of the same name in the second set, one at a time."""

    def swap() -> None:
        with torch.no_grad(), interrupts_deferred():
            for name, tensor in first.items():
                kept = tensor.clone()
                tensor.copy_(second[name])
                second[name].copy_(kept)

    swap()
    try:
        yield
    finally:
        swap()


@contextmanager
def one_ulp_off(tensors: Iterable[Tensor], eps: float) -> Iterator[None]:
    """Flip the last bit that numbers of spacing ``eps`` at one have; flipping it again undoes it without a copy."""
    views = []
    for tensor in tensors:
        bit = max(round(math.log2(eps / torch.finfo(tensor.dtype).eps)), 0)
        views.append((tensor.view(INTEGERS[tensor.element_size()]), 1 << bit))

    def flip() -> None:
        with torch.no_grad(), interrupts_deferred():
            for view, bit in views:
                view.bitwise_xor_(bit)

    flip()
    try:
        yield
    finally:
        flip()
