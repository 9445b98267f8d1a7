"""Several processes give the weights of one: DDP and FSDP2 on gloo, started by torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from distributed_enorm import CASE, STEPS, optimizer_of
from enorm_nets import assert_close, descend

import equinorm

HERE = Path(__file__).parent


def run(case: str, path: Path, ranks: int) -> dict[str, object]:
    source = str(Path(equinorm.__file__).parents[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([source, str(HERE)])}
    script = [str(HERE / "distributed_enorm.py"), case, str(path)]
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
        *script,
    ]
    done = subprocess.run(torchrun, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return torch.load(path)  # type: ignore[no-any-return]


SLOW = [pytest.param(case, ranks, marks=pytest.mark.slow)
        for case, ranks in (("partly", 2), ("adam", 2), ("compiled", 2), ("hsdp", 4))]  # fmt: skip


@pytest.mark.parametrize(("case", "ranks"), [("ddp", 2), ("fsdp", 2), *SLOW])
def test_many_ranks_give_the_weights_of_one(case: str, ranks: int, tmp_path: Path) -> None:
    found = run(case, tmp_path / "found.pt", ranks)
    net = CASE.net()
    optimizer = optimizer_of(case, net)
    enorm = equinorm.ENorm(net, optimizer, CASE.data()[0])
    for k in range(STEPS):
        descend(net, optimizer, CASE.data(k))
        enorm.step()
    for name, p in net.named_parameters():
        assert_close(found["weights"][name], p.detach(), 1e-9, name)
    assert_close(found["total"], enorm.state_dict()["total_log_scales"], 1e-9, "scales")
    assert found["norm"] == pytest.approx(enorm.norm(), rel=1e-9)
    assert found["residual"] == pytest.approx(enorm.residual(), rel=1e-6, abs=1e-9)
    sharded = {"ddp": set(), "partly": {"stem", "conv2", "conv3"}}.get(
        case, {n.rsplit(".", 1)[0] for n in found["weights"]}
    )
    for name, p in net.named_parameters():
        whole = name.rsplit(".", 1)[0] not in sharded
        assert found["sizes"][name] == (p.shape[0] if whole else -(-p.shape[0] // 2)), name
