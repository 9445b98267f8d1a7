"""One rank of a distributed run, started by torchrun: ``distributed_enorm.py CASE FILE`` writes what rank 0 ends with.

Cases: ``ddp``, ``fsdp`` (every layer and the root sharded), ``partly`` (only some layers sharded, the others whole on
every rank), ``adam`` (fsdp with AdamW), ``compiled`` (fsdp with ``compile=True``), ``hsdp`` (on four ranks: two
replicas of two shards).
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from enorm_nets import CASES, TypeC, descend
from torch import Tensor, nn

import equinorm

warnings.simplefilter("ignore")
torch.set_num_threads(1)
STEPS = 200
CASE = CASES["type C"]  # 5, 4, 6, 3 channels: uneven in two


def optimizer_of(case: str, net: nn.Module) -> torch.optim.Optimizer:
    if case == "adam":
        return torch.optim.AdamW(net.parameters(), lr=1e-3, eps=1e-6)
    return torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-3)


class Traffic:
    """Refuses to gather, and notes the sizes of what is reduced."""

    def __init__(self) -> None:
        self.reduced: set[tuple[int, ...]] = set()

    def __enter__(self) -> Traffic:
        def all_reduce(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.reduced.add(tuple(tensor.shape))
            return reduce(tensor, *args, **kwargs)

        def refused(*args: Any, **kwargs: Any) -> Any:
            raise AssertionError("ENorm gathered something")

        reduce = dist.all_reduce
        gathers = [name for name in dir(dist) if "gather" in name or name in ("broadcast", "all_to_all")]
        self._patches = [patch.object(dist, name, refused) for name in gathers]
        self._patches += [patch.object(dist, "all_reduce", all_reduce)]
        self._patches += [patch.object(torch.distributed.tensor.DTensor, "full_tensor", refused)]
        self._patches += [patch.object(torch.distributed.tensor.DTensor, "redistribute", refused)]
        for each in self._patches:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._patches:
            each.stop()


def wrapped(case: str, net: nn.Module) -> nn.Module:
    if case == "ddp":
        return nn.parallel.DistributedDataParallel(net)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    shape, names = (
        ((2, 2), ("replicas", "shards")) if case == "hsdp" else ((dist.get_world_size(),), ("shards",))
    )
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for name in ("stem", "conv2", "conv3") if case == "partly" else [n for n, _ in net.named_children()]:
        fully_shard(net.get_submodule(name), mesh=mesh)
    if case != "partly":
        fully_shard(net, mesh=mesh)
    return net


def main(case: str, path: str) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    net = CASE.net()
    assert isinstance(net, TypeC)
    symmetries = equinorm.symmetries(net, CASE.data()[0])
    model = wrapped(case, net)
    optimizer = optimizer_of(case, model)
    options: dict[str, Any] = (
        {"example_inputs": CASE.data()[0]}
        if case == "ddp"
        else {"symmetries": symmetries, "compile": case == "compiled"}
    )
    enorm = equinorm.ENorm(model, optimizer, **options)
    traffic = Traffic()
    for k in range(STEPS):
        x, y = CASE.data(k)
        part = slice(rank * len(x) // world, (rank + 1) * len(x) // world)
        descend_on(model, optimizer, (x[part], y[part]), case)
        with traffic:
            enorm.step()
    weights = sum(p.numel() for p in net.parameters())
    assert all(len(shape) == 1 for shape in traffic.reduced), traffic.reduced
    assert bool(traffic.reduced) == (case != "ddp")
    assert sum(shape[0] for shape in traffic.reduced) < weights
    totals = [torch.zeros_like(enorm.state_dict()["total_log_scales"]) for _ in range(world)]
    dist.all_gather(totals, enorm.state_dict()["total_log_scales"])
    assert all(torch.equal(total, totals[0]) for total in totals), "the ranks' scales differ"
    norm, residual = enorm.norm(), enorm.residual()
    full = {
        name: p.full_tensor() if hasattr(p, "full_tensor") else p.detach()
        for name, p in net.named_parameters()
    }
    if rank == 0:
        sizes = {name: getattr(p, "_local_tensor", p).shape[0] for name, p in net.named_parameters()}
        torch.save(
            {"weights": full, "total": totals[0], "norm": norm, "residual": residual, "sizes": sizes}, path
        )
    dist.barrier()
    dist.destroy_process_group()


def descend_on(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: tuple[Tensor, Tensor], case: str
) -> None:
    """DDP and FSDP average gradients over ranks; parameters outside of them are averaged by hand."""
    if case != "partly":
        descend(model, optimizer, data)
        return
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(data[0]), data[1]).backward()
    for p in model.parameters():
        if p.grad is not None and not hasattr(p, "full_tensor"):
            dist.all_reduce(p.grad, dist.ReduceOp.SUM)
            p.grad /= dist.get_world_size()
    optimizer.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
    # A thread of gloo that wants the interpreter while it shuts down aborts the process (seen on a busy machine).
    sys.stderr.flush()
    os._exit(0)
