"""Scaled dot-product attention: queries and keys cancel, values pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from equinorm.rules.contract import contract
from equinorm.rules.registry import pin_all, pinned_output, rule
from equinorm.values import Scaled, Value

if TYPE_CHECKING:
    from equinorm.analysis import Analysis

FAMILY = "attention: query and key scales cancel, value scales pass"


@rule(FAMILY, "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu",
      "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention")  # fmt: skip
def attention(
    a: Analysis,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    a.pin(attn_mask, "it is added to attention scores")
    q, k, v = (a.ids_of(x) for x in (query, key, value))
    if not q.dim() == k.dim() == v.dim() <= 6:
        return pin_all(a, (query, key, value), "attention between tensors of different rank")
    if q.dim() > 2 and k.size(-3) != q.size(-3):  # grouped queries: each key head serves several query heads
        k, v = (x.repeat_interleave(q.size(-3) // x.size(-3), -3) for x in (k, v))
    batch = "abcd"[: q.dim() - 2]
    scores = contract(a, Scaled(q), batch + "qe", Scaled(k), batch + "ke", batch + "qk")
    a.pin(Scaled(scores), "softmax is not positively homogeneous")
    output = a.output if isinstance(a.output, torch.Tensor) else a.output[0]
    mixed = a.uniform(v, [-2], "attention mixes tokens").expand(output.shape)
    return Scaled(mixed) if isinstance(a.output, torch.Tensor) else (Scaled(mixed), *pinned_output(a)[1:])
