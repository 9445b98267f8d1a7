"""Claim: "multilevel" needs at most 12 cycles on random ReLU chains of any depth, 40 on hard ones.

Metric: cycles (a double sweep is two) and seconds to a residual of 1e-8, p = 2; n = one seed per row.
Command: python benchmarks/convergence.py [--width 500] [--cycle]; --cycle also times the paper's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from graphs import Graph, chain, generator, random_chain

from equinorm.objective import Objective
from equinorm.solve import solve


def heavy(depth: int, width: int, freedom: float) -> Graph:
    """Student-t weights (1: Cauchy)."""
    g = generator()
    tail = torch.randn(depth, int(freedom), width, width, generator=g).square().mean(1).sqrt()
    return chain(list(torch.randn(depth, width, width, generator=g) / tail))


def sparse(depth: int, width: int) -> Graph:
    g = generator()
    return chain(
        [
            torch.randn(width, width, generator=g) * (torch.rand(width, width, generator=g) < 0.1)
            for _ in range(depth)
        ]
    )


def low_rank(depth: int, width: int) -> Graph:
    g = generator()
    return chain(
        [torch.randn(width, 2, generator=g) @ torch.randn(2, width, generator=g) for _ in range(depth)]
    )


def bottleneck(depth: int, width: int) -> Graph:
    g = generator()
    sizes = [width if k % 4 else max(2, width // 25) for k in range(1, depth + 2)]
    return chain([torch.randn(b, a, generator=g) for a, b in pairwise(sizes)])


def grouped(depth: int, width: int, parts: int) -> Graph:
    g = generator()
    mask = torch.block_diag(*[torch.ones(width // parts, width // parts)] * parts)
    ends = [torch.randn(width, width, generator=g) for _ in range(2)]
    inner = [torch.randn(width, width, generator=g) * mask for _ in range(depth - 2)]
    return chain([ends[0], *inner, ends[1]])


def weakly_joined(depth: int, width: int, parts: int) -> Graph:
    """Blocks joined by weights a thousand times smaller."""
    found = grouped(depth, width, parts)
    g = generator(1)
    return chain([w + 1e-3 * torch.randn(w.shape, generator=g) for w in found.tensors.values()])


def unbalanced(depth: int, width: int) -> Graph:
    g = generator()
    found = random_chain(depth, width)
    return chain([w * torch.randn(w.shape[0], 1, generator=g).mul(4).exp() for w in found.tensors.values()])


def residual(depth: int, width: int, learnt: bool) -> Graph:
    """Blocks of two layers, with a learnt or an identity shortcut."""
    g, graph = generator(), Graph()

    def weight() -> Tensor:
        return torch.randn(width, width, generator=g) * (2 / width) ** 0.5

    junction = graph.group(width)
    graph.linear(weight(), junction, None)
    for _ in range(depth):
        inner = graph.group(width)
        after = graph.group(width) if learnt else junction
        graph.linear(weight(), inner, junction)
        graph.linear(weight(), after, inner)
        if learnt:
            graph.linear(weight(), after, junction)
        junction = after
    graph.linear(weight(), None, junction)
    return graph


def dense(depth: int, width: int) -> Graph:
    """Every layer reads all earlier ones."""
    g, graph, ids = generator(), Graph(), []
    for _ in range(depth):
        out = graph.group(width)
        graph.linear(torch.randn(width, width, generator=g), out, None)
        if ids:
            inputs = torch.cat(ids)
            graph.linear(torch.randn(width, inputs.numel(), generator=g) / inputs.numel() ** 0.5, out, inputs)
        ids.append(out)
    graph.linear(torch.randn(width, depth * width, generator=g), None, torch.cat(ids))
    return graph


def recurrent(depth: int, width: int) -> Graph:
    """h + relu(W h), many times over the same group."""
    g, graph = generator(), Graph()
    ids = graph.group(width)
    graph.linear(torch.randn(width, width, generator=g), ids, None)
    for _ in range(depth):
        graph.linear(torch.randn(width, width, generator=g), ids, ids)
    graph.linear(torch.randn(width, width, generator=g), None, ids)
    return graph


def cases(width: int) -> Iterator[tuple[str, Graph]]:
    for depth in (5, 21, 51, 101):
        yield f"random, {depth} layers", random_chain(depth, width)
    width //= 5
    yield "student-t 2", heavy(21, width, 2)
    yield "Cauchy", heavy(21, width, 1)
    yield "90% zeros", sparse(21, width)
    yield "rank 2", low_rank(21, width)
    yield "bottlenecks", bottleneck(21, width)
    yield "4 blocks", grouped(21, width, 4)
    yield "20 blocks", grouped(21, width, 20)
    yield "4 blocks, joined weakly", weakly_joined(21, width, 4)
    yield "channels scaled by e^±4", unbalanced(21, width)
    yield "width 8, 41 layers", random_chain(41, 8)
    yield "5 blocks of width 8, 41 layers", grouped(41, 40, 5)
    yield "residual, learnt", residual(20, width, True)
    yield "residual, identity", residual(20, width, False)
    yield "dense", dense(15, width // 2)
    yield "recurrent", recurrent(4, width)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=500)
    parser.add_argument("--cycle", action="store_true")
    arguments = parser.parse_args()
    print(
        f"{'network':32} {'cycles':>6} {'residual':>9} {'seconds':>8}",
        "  paper's cycle: cycles, seconds, ratio",
    )
    for name, graph in cases(arguments.width):
        objective = Objective(graph.done(), graph.tensors, 2.0)
        start = time.perf_counter()
        found = solve(objective)
        ours = time.perf_counter() - start
        print(f"{name:32} {found.cycles:6} {found.residual:9.1e} {ours:8.2f}", end="  ", flush=True)
        if arguments.cycle:
            start = time.perf_counter()
            plain = solve(objective, "cycle")
            seconds = time.perf_counter() - start
            print(f"{plain.cycles:6} {seconds:8.2f} {seconds / ours:6.1f}x", end="")
        print(flush=True)


if __name__ == "__main__":
    main()
