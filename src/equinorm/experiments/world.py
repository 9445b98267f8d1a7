"""The processes of a run: alone, or several that torchrun started."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from equinorm.errors import ArgumentError

LETTING_GO = 0.2
"""Seconds before a process group ends. Gloo's threads need the interpreter's lock to let go of the last tensors, and
the end of the group holds that lock while it waits for the threads: without a pause they may wait for each other."""


@dataclass(frozen=True)
class World:
    """This process among ``size``."""

    rank: int
    size: int
    device: torch.device

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the processes, in a new tensor."""
        total = tensor.clone()
        if self.size > 1:
            dist.all_reduce(total)
        return total

    def agrees(self, number: int) -> bool:
        """Whether it is the same in all processes."""
        found = torch.tensor([number, -number], dtype=torch.int64, device=self.device)
        if self.size > 1:
            dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found[0]) == -int(found[1])

    def share_buffers(self, model: nn.Module) -> None:
        """Give every process the first one's buffers: a batch norm's statistics are those of its own examples."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model whose gradients are averaged over the processes."""
        if self.size == 1:
            return model
        ids = [self.device.index] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=ids)

    def barrier(self) -> None:
        """Wait for the others."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def joined(device: str | None) -> Iterator[World]:
    """Join the processes that torchrun started, on gloo or NCCL; alone without it.

    Args:
        device: "cpu", "cuda" …; by default a GPU if there is one, each process its own.
    """
    size, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    place = _device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    starts = size > 1 and not dist.is_initialized()
    if starts:
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield World(rank, size, place)
    finally:
        if starts:
            time.sleep(LETTING_GO)
            dist.destroy_process_group()


def _device(name: str | None) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # a torch without CUDA asserts
        reason = str(error).splitlines()[0]
        raise ArgumentError(f"device={name!r}: cannot be used ({reason})") from error
    return device
