"""Which examples a process sees, in which order: a function of (seed, epoch, rank) and of nothing else."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from equinorm.errors import ArgumentError


def seed_of(*key: int | str) -> int:
    """A 32-bit seed, the same on every machine; different keys give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=4).digest(), "little")


def generator(*key: int | str) -> torch.Generator:
    """A random generator of its own for every key."""
    return torch.Generator().manual_seed(seed_of(*key))


def _remainder(size: int, batch_size: int, world: int) -> int:
    """The size of the last, incomplete batch of every process."""
    full, rest = divmod(size, batch_size * world)
    share = rest // world
    return share if share > 1 or not full else 0


def training_steps(size: int, batch_size: int, world: int = 1) -> int:
    """The number of batches of an epoch, the same for every process."""
    check(batch_size, 0, world)
    return size // (batch_size * world) + (_remainder(size, batch_size, world) > 0)


def training_order(size: int, batch_size: int, seed: int, epoch: int, rank: int, world: int) -> Tensor:
    """The examples of a process in an epoch; consecutive slices of ``batch_size`` are its batches.

    Every step's examples, over all processes, are consecutive in one shuffled order. So a step sees the same
    examples however many processes share it, as long as ``batch_size * world`` is the same.
    """
    check(batch_size, rank, world)
    if not training_steps(size, batch_size, world):
        raise ArgumentError(f"{size} training examples are too few for {world} processes")
    shuffled = torch.randperm(size, generator=generator("order", seed, epoch))
    full = size // (batch_size * world)
    whole, rest = shuffled.tensor_split([full * batch_size * world])
    share = _remainder(size, batch_size, world)
    dealt = whole.view(full, world, batch_size)[:, rank].flatten()
    return torch.cat([dealt, rest[rank * share : (rank + 1) * share]])


def evaluation_steps(size: int, batch_size: int, world: int = 1) -> int:
    """The number of batches of the first process; the others have as many or one less."""
    check(batch_size, 0, world)
    return -(-size // (batch_size * world)) if size else 0


def check(batch_size: int, rank: int, world: int) -> None:
    """Refuse numbers that no stream of batches can have."""
    if batch_size < 1:
        raise ArgumentError(f"batch_size={batch_size}: must be at least 1")
    if not 0 <= rank < world:
        raise ArgumentError(f"rank={rank}: must be between 0 and world - 1 = {world - 1}")
