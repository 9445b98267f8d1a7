"""Small convolutional networks with the number of free scales that one finds by hand."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from small_nets import Net, Row, lin
from torch import Tensor, nn

RELU = nn.ReLU


def conv(i: int, o: int, k: int = 1, bias: bool = True, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(i, o, k, bias=bias, **options)


def _shuffle(x: Tensor, groups: int) -> Tensor:
    return x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)


def _squeeze_excite(m: Any, x: Tensor) -> Tensor:
    h = torch.relu(m.stem(x))
    gate = torch.sigmoid(m.up(torch.relu(m.down(F.adaptive_avg_pool2d(h, 1)))))
    return m.out(h * gate)


def _dense(m: Any, x: Tensor) -> Tensor:
    h = torch.cat([torch.relu(m.a(x)), torch.relu(m.b(x))], 1)
    return m.out(torch.cat([h, torch.relu(m.c(h))], 1))


def _unet(m: Any, x: Tensor) -> Tensor:
    skip = torch.relu(m.first(x))
    deep = torch.relu(m.second(F.max_pool2d(skip, 2)))
    wide = F.interpolate(deep, scale_factor=2, mode="nearest")
    return m.out(torch.cat([F.interpolate(wide, size=skip.shape[-2:], mode="bilinear"), skip], 1))


def _pools(m: Any, x: Tensor) -> Tensor:
    h = F.max_pool2d(torch.relu(m.a(x)), 3, 1, 1)
    h = F.avg_pool2d(torch.relu(m.b(h)), 2)
    return m.out(F.adaptive_max_pool2d(h, 2).flatten(1))


def _normed(norm: nn.Module, inner: int = 4) -> nn.Module:
    return nn.Sequential(conv(3, inner, 1, False), norm, RELU(), conv(inner, 7, bias=False))


CONVS = [
    Row("strides, dilation and flatten",
        lambda: nn.Sequential(conv(2, 4, 3, stride=2, padding=1), RELU(), conv(4, 3, 3, dilation=2, padding=2), RELU(),
                              nn.Flatten(), lin(27, 7)), (2, 6, 6), 7),
    Row("grouped and depthwise",
        lambda: nn.Sequential(conv(3, 6), RELU(), conv(6, 6, 3, groups=6), RELU(), conv(6, 4, groups=2), RELU(),
                              conv(4, 7)), (3, 4, 4), 16),
    Row("transposed",
        lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 2, stride=2), RELU(),
                              nn.ConvTranspose2d(4, 6, 1, bias=False, groups=2), nn.LeakyReLU(), conv(6, 7)),
        (3, 2, 2), 10),
    Row("one dimension", lambda: nn.Sequential(nn.Conv1d(3, 4, 3), RELU(), nn.MaxPool1d(2), nn.Conv1d(4, 7, 1)),
        (3, 8), 4),
    Row("pooling", lambda: Net(_pools, a=conv(3, 4), b=conv(4, 3), out=lin(12, 7)), (3, 6, 6), 7),
    Row("identity shortcut",
        lambda: Net(lambda m, x: m.out(torch.relu((h := torch.relu(m.stem(x))) + m.b(torch.relu(m.a(h))))),
                    stem=conv(3, 4), a=conv(4, 5), b=conv(5, 4), out=conv(4, 7)), (3, 2, 2), 9),
    Row("learnt shortcut",
        lambda: Net(lambda m, x: m.out(torch.relu(m.s(h := torch.relu(m.stem(x))) + m.b(torch.relu(m.a(h))))),
                    stem=conv(3, 4), a=conv(4, 5), b=conv(5, 6), s=conv(4, 6, bias=False), out=conv(6, 7)),
        (3, 2, 2), 15),
    Row("dense concatenation", lambda: Net(_dense, a=conv(3, 3), b=conv(3, 2), c=conv(5, 4), out=conv(9, 10)),
        (3, 3, 3), 9),
    Row("channel shuffle",
        lambda: Net(lambda m, x: m.out(torch.relu(m.b(_shuffle(F.leaky_relu(m.a(torch.relu(m.stem(x)))), 2)))),
                    stem=conv(3, 4), a=conv(4, 4, bias=False, groups=2), b=conv(4, 4, groups=2), out=conv(4, 7)),
        (3, 2, 2), 12),
    Row("squeeze and excitation", lambda: Net(_squeeze_excite, stem=conv(3, 4), down=conv(4, 2), up=conv(2, 4),
                                              out=conv(4, 7)), (3, 3, 3), 6),
    Row("u-net", lambda: Net(_unet, first=conv(3, 4), second=conv(4, 3), out=conv(7, 8)), (3, 4, 4), 7),
    Row("batch norm",
        lambda: nn.Sequential(conv(3, 4, bias=False), nn.BatchNorm2d(4, eps=0.1), RELU(), conv(4, 3, bias=False),
                              nn.BatchNorm2d(3, eps=0.1), RELU(), conv(3, 7)), (3, 2, 2), 7),
    Row("batch norm without affine weights",
        lambda: nn.Sequential(conv(3, 4, 1, False), nn.BatchNorm2d(4, eps=0.1, affine=False), RELU(), conv(4, 7)),
        (3, 2, 2), 0),
    Row("group norm", lambda: _normed(nn.GroupNorm(2, 4, eps=0.1)), (3, 2, 2), 4),
    Row("instance norm", lambda: _normed(nn.InstanceNorm2d(4, eps=0.1, affine=True)), (3, 3, 3), 4),
]  # fmt: skip
