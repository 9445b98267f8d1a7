"""A BatchNorm whose batch is that of all processes together, on CPUs as well as on GPUs.

torch's ``SyncBatchNorm`` refuses CPUs. The paper shares its final BatchNorm between GPUs, and only that one: it sees
B × 1000 numbers ("a negligible overhead"), so two sums of 1000 numbers per step are all that has to travel.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function


class _SumOverProcesses(Function):
    """all_reduce; the gradient of a sum is the sum of the gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class SharedBatchNorm(nn.BatchNorm1d):
    """BatchNorm1d over (N, C) batches; in training, over those of all processes."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise; as BatchNorm1d in evaluation."""
        if not self.training:
            return super().forward(x)
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None and self.momentum is not None
        wide = x.float() if x.dtype != torch.float64 else x
        count = dist.get_world_size() * len(x)  # the data deals out batches of one size
        mean = _sum(wide.sum(0)) / count
        centred = wide - mean
        variance = _sum(centred.square().sum(0)) / count
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * (count / (count - 1)), self.momentum)
        out = centred * torch.rsqrt(variance + self.eps) * self.weight + self.bias
        return out.to(x.dtype)


def _sum(tensor: Tensor) -> Tensor:
    total: Tensor = _SumOverProcesses.apply(tensor)  # type: ignore[no-untyped-call]
    return total


def share_(norm: nn.BatchNorm1d) -> SharedBatchNorm:
    """The same norm, its parameters and buffers, over all processes."""
    shared = SharedBatchNorm(norm.num_features, norm.eps, norm.momentum)
    shared.weight, shared.bias = norm.weight, norm.bias
    shared._buffers.update(norm._buffers)
    return shared.train(norm.training)
