"""Small networks on tokens with the number of free scales that one finds by hand."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from small_nets import Net, Row, lin, param
from torch import Tensor, nn

SHAPE = (4, 5)  # tokens, features


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _fused(m: Any, x: Tensor) -> Tensor:
    q, k, v = (_heads(part, 2) for part in m.qkv(x).chunk(3, -1))
    return m.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def _by_matmul(m: Any, x: Tensor) -> Tensor:
    qkv = m.qkv(x).reshape(*x.shape[:2], 3, 2, -1).permute(2, 0, 3, 1, 4)
    q, k, v = qkv.unbind(0)
    weights = (q * 0.5 @ k.transpose(-2, -1)).softmax(-1)
    return m.out((weights @ v).transpose(1, 2).flatten(2))


def _grouped(m: Any, x: Tensor) -> Tensor:
    q, k, v = _heads(m.q(x), 4), _heads(m.k(x), 2), _heads(m.v(x), 2)
    return m.out(F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2))


def _grouped_by_expansion(m: Any, x: Tensor) -> Tensor:
    q = _heads(m.q(x), 4)
    k, v = (_heads(part(x), 2)[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2) for part in (m.k, m.v))
    return m.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def _rotate(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * torch.tensor(
        [1.0, 0.3], dtype=x.dtype
    ).repeat(2)
    return x * angles.cos() + torch.cat([-x[..., half:], x[..., :half]], -1) * angles.sin()


def _rotary(m: Any, x: Tensor) -> Tensor:
    q, k, v = (_heads(part(x), 2) for part in (m.q, m.k, m.v))
    mixed = F.scaled_dot_product_attention(_rotate(q), _rotate(k), v)
    return m.out(mixed.transpose(1, 2).flatten(2))


def _normed_heads(m: Any, x: Tensor) -> Tensor:
    q, k, v = (_heads(part(x), 2) for part in (m.q, m.k, m.v))
    mixed = F.scaled_dot_product_attention(m.q_norm(q), m.k_norm(k), v)
    return m.out(mixed.transpose(1, 2).flatten(2))


def _positions(m: Any, x: Tensor) -> Tensor:
    h = torch.cat([m.cls.expand(x.shape[0], -1, -1), m.embed(x) + m.positions], 1)
    return m.out(torch.relu(m.up(h)))


def _layer_scale(m: Any, x: Tensor) -> Tensor:
    return m.out(x + m.gamma * m.down(torch.relu(m.up(x))))


def _relu_attention(m: Any, x: Tensor) -> Tensor:
    q, k, v = torch.relu(m.q(x)), torch.relu(m.k(x)), m.v(x)
    return m.out(q @ (k.transpose(-2, -1) @ v))


def _gated(activation: Any) -> Any:
    return lambda m, x: m.down(activation(m.gate(x)) * m.up(x))


def _mlp(norm: nn.Module) -> nn.Module:
    return nn.Sequential(lin(5, 4, False), norm, nn.ReLU(), lin(4, 7, False))


def _attention(q: int, kv: int, **parts: nn.Module) -> dict[str, nn.Module]:
    sizes = {"q": lin(5, q, False), "k": lin(5, kv, False), "v": lin(5, kv, False)}
    return {**sizes, "out": lin(q, 7), **parts}


TOKENS = [
    Row("layer norm", lambda: _mlp(nn.LayerNorm(4, eps=0.1)), SHAPE, 4),
    Row("rms norm", lambda: _mlp(nn.RMSNorm(4, eps=0.1)), SHAPE, 4),
    Row("fused attention", lambda: Net(_fused, qkv=lin(5, 18, False), out=lin(6, 7)), SHAPE, 12),
    Row("fused attention by matrix products", lambda: Net(_by_matmul, qkv=lin(5, 18, False), out=lin(6, 7)), SHAPE, 12),
    Row("attention with biases", lambda: Net(_fused, qkv=lin(5, 18), out=lin(6, 7)), SHAPE, 12, 12,
        "a key's bias does not reach the output; the value's bias reaches it as the output's bias does"),
    Row("grouped queries", lambda: Net(_grouped, **_attention(8, 4)), SHAPE, 8),
    Row("grouped queries by expansion", lambda: Net(_grouped_by_expansion, **_attention(8, 4)), SHAPE, 8),
    Row("rotary positions", lambda: Net(_rotary, **_attention(8, 8)), SHAPE, 12),
    Row("norms of queries and keys",
        lambda: Net(_normed_heads, **_attention(6, 6, q_norm=nn.RMSNorm(3, eps=0.1), k_norm=nn.RMSNorm(3, eps=0.1))),
        SHAPE, 9),
    Row("swiglu", lambda: Net(_gated(F.silu), gate=lin(5, 6), up=lin(5, 6, False), down=lin(6, 7)), SHAPE, 6),
    Row("glu", lambda: nn.Sequential(lin(5, 8), nn.GLU(), lin(4, 7, False)), SHAPE, 4),
    Row("reglu", lambda: Net(_gated(torch.relu), gate=lin(5, 6), up=lin(5, 6), down=lin(6, 7)), SHAPE, 6, 6,
        "an id has no way to say a product of two scales"),
    Row("layer scale", lambda: Net(_layer_scale, up=lin(5, 6), down=lin(6, 5), gamma=param(5), out=lin(5, 7, False)),
        SHAPE, 11),
    Row("linear attention of relu features", lambda: Net(_relu_attention, **_attention(4, 4)), SHAPE, 4, 5,
        "an id has no way to say a product of two scales"),
    Row("class token and positions",
        lambda: Net(_positions, cls=param(1, 1, 4), positions=param(1, 4, 4), embed=lin(5, 4, False), up=lin(4, 6),
                    out=lin(6, 7)), SHAPE, 10),
]  # fmt: skip
