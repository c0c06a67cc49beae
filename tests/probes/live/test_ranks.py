from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist

from joma.models.decoder import Decoder
from joma.probes.live.folder import read_table
from joma.probes.live.monitor import Monitor
from joma.probes.live.ranks import over_ranks

pytestmark = pytest.mark.slow
STEPS = 4


def decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder(31, layers=2, width=16, hidden=16, heads=2, dropout=0.0, longest=12)


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 31, (4, 12), generator=generator) for _ in range(STEPS)]


def one(model: torch.nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> torch.Tensor:
    logits = model(ids)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def process(rank: int, port: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    net = decoder()
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Monitor(model, every=2, folder=folder, ranks_every=None) as monitor:
        for step, ids in enumerate(batches()):
            if rank == 1 and step == 2:
                monitor._shut()  # this process will have seen nothing at this step
            monitor.step(step, loss=one(model, optimizer, ids[2 * rank : 2 * rank + 2]))
    nothing = over_ranks(pd.DataFrame())
    assert nothing.empty
    dist.destroy_process_group()


def test_two_processes_measure_what_one_does(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    call = [sys.executable, __file__]
    running = [subprocess.Popen([*call, str(rank), str(port), str(tmp_path / "two")]) for rank in (0, 1)]
    assert [one.wait(timeout=120) for one in running] == [0, 0]
    net = decoder()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Monitor(net, every=2, folder=tmp_path / "one", ranks_every=None) as monitor:
        for step, ids in enumerate(batches()):
            monitor.step(step, loss=one(net, optimizer, ids))
    one_table, two = (read_table(tmp_path / name).query("step == 0") for name in ("one", "two"))
    keys = ["layer", "call", "head", "metric"]
    measured = two["metric"] != "loss"
    both = one_table.merge(two[measured], on=keys)
    both = both[both["metric"] != "gradient_norm"]
    assert len(both) == 2 * (4 * 2 + 1)
    assert np.allclose(both["value_x"], both["value_y"], atol=1e-5)
    attention = both["metric"] != "residual_rms"
    assert (both[attention]["count_x"] == both[attention]["count_y"]).all()
    half = read_table(tmp_path / "two").query("step == 2 and metric == 'attention_entropy'")
    assert set(half["count"]) == {2 * 12}


if __name__ == "__main__":
    process(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
