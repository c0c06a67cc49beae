from __future__ import annotations

import contextlib
import faulthandler
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from joma.instruments.monitor.folder import read_table
from joma.instruments.monitor.measuring import processes
from joma.instruments.monitor.measuring.look import RESIDUAL
from joma.instruments.monitor.measuring.processes import over_ranks
from joma.instruments.monitor.monitor import Monitor, StopTraining
from joma.models.decoder import Decoder

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


def process(kind: str, rank: int, port: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    net: torch.nn.Module = decoder()
    if kind == "sharded":
        init_device_mesh("cpu", (2,))
        for layer in net.layers:
            fully_shard(layer)
        model = fully_shard(net)
    else:
        model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    stops = kind == "stop"
    if kind in ("absent", "cadence", "more"):
        processes._PATIENCE = processes._LATEST = 3.0
    if kind == "more" and rank == 0:
        Monitor(torch.nn.TransformerEncoderLayer(16, 2, 32), every=2)
    monitor = Monitor(
        model,
        every=2 + rank * (kind == "cadence"),
        folder=folder,
        ranks_every=1 if kind == "sharded" else None,
        on_alarm="stop" if stops else "log",
    )
    with contextlib.suppress(StopTraining), monitor:
        for step, ids in enumerate(batches()):
            if kind == "blind" and rank == 1 and step == 2:
                monitor._shut_look()  # this process will have seen nothing at this step
            loss = one(model, optimizer, ids[2 * rank : 2 * rank + 2])
            if not (kind == "absent" and rank == 1 and step > 0):
                monitor.step(step, loss=loss * torch.nan if stops and rank == 1 and step == 1 else loss)
        assert not stops, "the loss of one process is no number, and nobody stopped"
    if kind == "blind":
        continued = Monitor(model, every=2, folder=folder, ranks_every=None)
        assert continued.last == STEPS - 1  # where one process alone has a folder
        continued.close()
    nothing = over_ranks([pd.DataFrame()] * 2)
    assert nothing.empty
    dist.barrier()
    sys.stderr.flush()
    os._exit(0)  # gloo, taken down with what is sharded over it, waits for ever now and then


def in_two(kind: str, folder: Path) -> tuple[pd.DataFrame, str]:
    """What two processes that share each batch measured, and what they said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    call = [sys.executable, __file__, kind]
    running = [
        subprocess.Popen([*call, str(rank), str(port), str(folder)], stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    said = []
    for one in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.wait(timeout=240)
    for one in running:
        one.kill()
        said.append(one.communicate()[1])
    assert [one.returncode for one in running] == [0, 0], said
    return read_table(folder), said[0]


def in_one(folder: Path) -> pd.DataFrame:
    net = decoder()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Monitor(net, every=2, folder=folder, ranks_every=None) as monitor:
        for step, ids in enumerate(batches()):
            monitor.step(step, loss=one(net, optimizer, ids))
    return read_table(folder)


def agree(one: pd.DataFrame, two: pd.DataFrame, looks: int) -> None:
    keys = ["step", "layer", "call", "head", "metric"]
    both = one.merge(two[~two["metric"].isin(("loss", "gradient_norm"))], on=keys)
    assert len(both) == looks * 2 * (4 * 2 + len(RESIDUAL))
    update = both["metric"] == "residual_update"  # of processes the mean of their shares
    assert np.allclose(both[~update]["value_x"], both[~update]["value_y"], atol=1e-5)
    assert np.allclose(both[update]["value_x"], both[update]["value_y"], rtol=1e-2)
    assert (both["count_x"] == both["count_y"]).all()


def test_two_processes_measure_what_one_does(tmp_path: Path) -> None:
    two, _ = in_two("blind", tmp_path / "two")
    agree(in_one(tmp_path / "one").query("step == 0"), two.query("step == 0"), looks=1)
    half = two.query("step == 2 and metric == 'attention_entropy'")
    assert set(half["count"]) == {2 * 12}


@pytest.mark.parametrize("kind", ["absent", "cadence", "more"])
def test_nobody_waits_for_a_process_that_looks_at_something_else_or_not_at_all(
    kind: str, tmp_path: Path
) -> None:
    two, said = in_two(kind, tmp_path / "two")
    alone = two.query("step == 2 and metric == 'attention_entropy'")
    assert set(alone["count"]) == {2 * 12}
    assert "not every one of the 2 processes" in said
    assert ("call step() in every process" in said) == (kind == "absent")


def test_sharded_weights_are_measured_where_all_of_them_are_there(tmp_path: Path) -> None:
    two, said = in_two("sharded", tmp_path / "two")
    agree(in_one(tmp_path / "one"), two, looks=2)
    assert not set(two["metric"]) & {"stable_rank", "gradient_norm"}
    told = [line for line in said.splitlines() if line.startswith("joma:")]
    assert len(told) == 2  # ranks, and what is followed between looks
    assert all("DTensor" in line for line in told)


def test_all_processes_stop_where_the_loss_of_one_is_no_number(tmp_path: Path) -> None:
    two, _ = in_two("stop", tmp_path / "two")
    losses = two[two["metric"] == "loss"].set_index("step")["value"]
    assert losses.isna().to_dict() == {0: False, 1: True, 2: False}


def test_the_loss_is_the_mean_over_the_processes(tmp_path: Path) -> None:
    two, _ = in_two("mean", tmp_path / "two")
    one_by_one = in_one(tmp_path / "one")
    known = two.query("metric == 'loss' and step <= 2")["value"]  # up to the last look
    expected = one_by_one.query("metric == 'loss' and step <= 2")["value"]
    assert np.allclose(known, expected, rtol=1e-4)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(200, exit=True)  # a process that waits for the other says where
    process(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
