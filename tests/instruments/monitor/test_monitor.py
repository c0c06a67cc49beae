from __future__ import annotations

import copy
import errno
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from joma.core.errors import InputError, RunDirectoryError
from joma.instruments.monitor.folder import read_table
from joma.instruments.monitor.measuring.look import RESIDUAL
from joma.instruments.monitor.measuring.rows import LOG_NORM
from joma.instruments.monitor.monitor import Monitor, StopTraining

HEADS, WIDTH, LENGTH = 2, 8, 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        x = x + self.attention(x, x, x, attn_mask=causal, need_weights=False)[0]
        return x + self.mlp(x).relu()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def start(seed: int = 0) -> tuple[Model, torch.optim.Optimizer, torch.Generator]:
    torch.manual_seed(seed)
    model = Model()
    return model, torch.optim.Adam(model.parameters(), lr=1e-3), torch.Generator().manual_seed(seed)


def one(model: nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator) -> Tensor:
    x = torch.randn(3, LENGTH, WIDTH, generator=generator)
    loss = (model(x) - x.roll(1, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def trained(steps: int, monitor: Monitor | None, model: nn.Module, *rest: object) -> list[float]:
    losses = []
    for step in range(steps):
        loss = one(model, *rest)  # type: ignore[arg-type]
        losses.append(loss.item())
        if monitor is not None:
            monitor.step(step, loss=loss)
    return losses


def hooks(model: nn.Module) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks)
        for module in model.modules()
    )


def test_training_is_the_same_bit_for_bit_and_nothing_is_left_behind() -> None:
    model, *rest = start()
    plain = trained(12, None, model, *rest)
    watched_model, *rest = start()
    with Monitor(watched_model, every=3) as monitor:
        watched = trained(12, monitor, watched_model, *rest)
        assert hooks(watched_model) > 0  # step 12 would be looked at
    assert watched == plain
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), watched_model.parameters(), strict=True))
    assert hooks(watched_model) == 0


def test_between_looks_nothing_is_attached() -> None:
    model, *rest = start()
    with Monitor(model, every=4) as monitor:
        for step in range(9):
            assert (hooks(model) > 0) == (step % 4 == 0)
            monitor.step(step, loss=one(model, *rest))


def test_values_are_those_of_the_attention() -> None:
    model, optimizer, generator = start()
    before = copy.deepcopy(model)
    state = generator.get_state()
    with Monitor(model, every=10) as monitor:
        loss = one(model, optimizer, generator)
        monitor.step(0, loss=loss)
    table = monitor.table()
    assert set(table["step"]) == {0}
    x = torch.randn(3, LENGTH, WIDTH, generator=torch.Generator().set_state(state))
    layer = before.layers[0]
    assert isinstance(layer, Block)
    q, k, _ = (x @ layer.attention.in_proj_weight.T + layer.attention.in_proj_bias).chunk(3, dim=-1)
    split = (3, LENGTH, HEADS, WIDTH // HEADS)
    q, k = (t.reshape(split).transpose(1, 2).double() for t in (q, k))
    scores = q @ k.mT / (WIDTH // HEADS) ** 0.5
    scores = scores.masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -torch.inf)
    p = scores.softmax(-1)
    entropy = -torch.special.xlogy(p, p).sum(-1)
    expected = {
        "attention_entropy": entropy.mean((0, 2)),
        "largest_logit": scores.amax((0, 2, 3)),
        "first_key_mass": p[..., 0].mean((0, 2)),
    }
    for metric, values in expected.items():
        own = table[(table["metric"] == metric) & (table["layer"] == 0)].sort_values("head")
        assert np.allclose(own["value"], values.detach(), atol=1e-5), metric
    rms = table[table["metric"] == "residual_rms"].sort_values("layer")["value"]
    hidden = before.layers[0](x)
    assert np.allclose(rms, [hidden.square().mean().sqrt().item(), before(x).square().mean().sqrt().item()])
    assert table[table["metric"] == "loss"]["value"].item() == pytest.approx(loss.item(), rel=1e-6)
    assert table[table["metric"] == "gradient_norm"]["value"].item() > 0


def test_evaluation_is_not_counted_and_accumulated_passes_are_one_step() -> None:
    model, *_ = start()
    x = torch.randn(2, LENGTH, WIDTH)
    with Monitor(model, every=1) as monitor:
        model(x)
        monitor.step(0)
    alone = monitor.table()
    with Monitor(model, every=1) as monitor:
        model.eval()
        with torch.no_grad():
            model(torch.randn(5, LENGTH, WIDTH) * 30)
        model.train()
        model(x[:1])
        model(x[1:])
        monitor.step(0)
    halves = monitor.table()
    columns = ["metric", "layer", "module", "head"]
    both = alone.merge(halves, on=columns)
    both = both[~both["metric"].isin((*RESIDUAL, "stable_rank"))]
    assert len(both) == 2 * HEADS * 4
    assert np.allclose(both["value_x"], both["value_y"], atol=1e-5)
    assert (both["count_x"] == both["count_y"]).all()


def test_generation_in_training_mode_is_not_counted() -> None:
    model, *_ = start()
    x = torch.randn(2, LENGTH, WIDTH)
    with Monitor(model, every=1, ranks_every=None) as monitor:
        with torch.no_grad():
            model(100 * x)
        model(x)
        monitor.step(0)
    with Monitor(model, every=1, ranks_every=None) as alone:
        model(x)
        alone.step(0)
    keys = ["metric", "layer", "module", "head"]
    both = monitor.table().merge(alone.table(), on=keys)
    assert len(both) == len(alone.table())
    assert np.array_equal(both["value_x"], both["value_y"])
    assert np.array_equal(both["count_x"], both["count_y"])


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_and_autocast(reentrant: bool) -> None:
    class Checkpointed(Model):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=reentrant)
            return x

    torch.manual_seed(0)
    plain, recomputed = Model(), Checkpointed()
    recomputed.load_state_dict(plain.state_dict())
    x = torch.randn(2, LENGTH, WIDTH, requires_grad=True)
    tables, gradients = [], []
    for model in (plain, recomputed):
        with Monitor(model, every=1, ranks_every=None) as monitor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(x).float().square().mean()
            loss.backward()
            monitor.step(0, loss=loss)
        tables.append(monitor.table())
        gradients.append([weight.grad for weight in model.parameters()])
    keys = ["metric", "layer", "module", "call", "head"]
    both = tables[0].merge(tables[1], on=keys, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    assert np.allclose(both["value_x"].astype(float), both["value_y"].astype(float), atol=1e-5)
    attention = ~both["metric"].isin((*RESIDUAL, "loss", "gradient_norm"))
    assert (both["count_x"] == both["count_y"])[attention].all()
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_a_loss_that_is_no_number_is_dated_to_its_own_step() -> None:
    model, *rest = start()
    with Monitor(model, every=10) as monitor:
        for step in range(10):
            loss = one(model, *rest)
            monitor.step(step, loss=loss * torch.nan if step == 3 else loss)
        monitor.step(10, loss=one(model, *rest))
    (message,) = [message for message in monitor.messages if message.metric == "loss"]
    assert (message.step, message.kind) == (3, "alarm")


def test_stop() -> None:
    model, *rest = start()
    monitor = Monitor(model, every=1, on_alarm="stop")
    with pytest.raises(StopTraining, match="step 0: loss"), monitor:
        monitor.step(0, loss=one(model, *rest) * torch.inf)
    assert hooks(model) == 0


def test_a_head_on_one_key_is_told_once() -> None:
    model, *rest = start()
    with torch.no_grad():
        for layer in model.layers:
            layer.attention.in_proj_weight[: 2 * WIDTH] *= 200  # type: ignore[union-attr, index]
    told = []
    with Monitor(model, every=1, on_alarm=told.append) as monitor:
        trained(4, monitor, model, *rest)
    states = [message for message in told if message.kind == "state"]
    assert [(message.step, message.where) for message in states] == [(0, "all 4 heads")] * 2
    assert len({(message.where, message.metric) for message in states}) == len(states)
    assert all("since step" in message.sentence() and "To do:" in message.sentence() for message in states)


def test_the_folder_is_merged_resumed_and_never_holds_a_step_twice(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    model, *rest = start()
    with Monitor(model, every=2, folder=folder) as whole:
        trained(9, whole, model, *rest)
    assert sorted(path.name for path in folder.iterdir()) == ["monitor.json", "monitor.parquet", "state.json"]

    broken = tmp_path / "broken"
    model, *rest = start()
    first = Monitor(model, every=2, folder=broken)
    first.__enter__()
    state = None
    for step in range(6):
        if step == 5:
            state = copy.deepcopy((model.state_dict(), rest[0].state_dict(), rest[1].get_state()))
        first.step(step, loss=one(model, *rest))
    first._shut_look()  # the process was killed: nothing was closed, step 5 was not written
    assert first._record.folder is not None
    first._record.folder.release()
    assert state is not None
    again, *others = start()
    again.load_state_dict(state[0])
    others[0].load_state_dict(state[1])
    others[1].set_state(state[2])
    with Monitor(again, every=2, folder=broken) as second:
        for step in range(5, 9):
            second.step(step, loss=one(again, *others))
    keys = ["step", "layer", "module", "call", "head", "metric"]
    one_table, other = (read_table(path).sort_values(keys, ignore_index=True) for path in (folder, broken))
    assert not other.duplicated(keys).any()
    # The power iteration of a run that goes on begins anew: its first value is not that of a warm start.
    read = one_table["metric"] == LOG_NORM
    assert np.allclose(one_table[read]["value"], other[read]["value"], atol=1e-3)
    pd.testing.assert_frame_equal(one_table[~read], other[~read])

    model, *rest = start()
    with Monitor(model, every=2, folder=broken) as third:
        third.step(4, loss=1.0)  # it went back to a checkpoint
    assert read_table(broken)["step"].max() == 4


@pytest.mark.parametrize("kept", [True, False])
def test_steps_that_come_again_count_once_for_the_alarm(tmp_path: Path, kept: bool) -> None:
    def watched(folder: str, back_at: int | None) -> Monitor:
        model, *rest = start()
        place = tmp_path / folder if kept else None
        monitor = Monitor(model, every=1, ranks_every=None, folder=place)
        saved = None
        monitor.begin(0)
        step = 0
        while step < 36:
            if step == 24:
                saved = copy.deepcopy((model.state_dict(), rest[0].state_dict(), rest[1].get_state()))
            if step == back_at and saved is not None:
                model.load_state_dict(saved[0])
                rest[0].load_state_dict(saved[1])
                rest[1].set_state(saved[2])
                step, back_at = 24, None
                monitor.begin(24)
            monitor.step(step, loss=one(model, *rest))
            step += 1
        monitor.close()
        return monitor

    straight, returned = watched("straight", None), watched("returned", 33)
    assert straight._judge.loss.as_state() == returned._judge.loss.as_state()
    first, second = straight._judge.change.as_state(), returned._judge.change.as_state()
    assert first["watched"]["looks"] == second["watched"]["looks"] == 36
    for name, values in first["watched"]["past"].items():
        assert np.allclose(values, second["watched"]["past"][name], rtol=1e-6)
    assert first["quiet"] == second["quiet"]


def test_a_folder_of_another_run(tmp_path: Path) -> None:
    model, *_ = start()
    Monitor(model, every=2, folder=tmp_path / "a").close()
    with pytest.raises(RunDirectoryError, match=r"another run \(every was 2, now it is 3\)"):
        Monitor(model, every=3, folder=tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").touch()
    with pytest.raises(RunDirectoryError, match="not a monitor folder"):
        Monitor(model, folder=tmp_path / "b")


def test_the_log_gets_stable_names_and_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    model, *rest = start()
    got: dict[int, dict[str, float]] = {}
    settings = {"every": 2, "ranks_every": 1}
    log = lambda step, numbers: got.__setitem__(step, dict(numbers))  # noqa: E731
    with Monitor(model, log=log, **settings) as monitor:
        trained(3, monitor, model, *rest)
    assert sorted(got) == [0, 2]
    assert {"joma/attention_entropy/layer1/min", "joma/largest_logit/layer0/max_head"} <= set(got[0])
    assert got[0].keys() == got[2].keys()

    def refuses(step: int, numbers: object) -> None:
        raise OSError("no network")

    with caplog.at_level(logging.WARNING, logger="joma"), Monitor(model, every=1, log=refuses) as monitor:
        trained(6, monitor, model, *rest)
    refused = [record for record in caplog.records if "no network" in record.getMessage()]
    assert len(refused) == 3
    assert "not tried again" in refused[-1].getMessage()


def test_a_model_without_attention_trains_on(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.WARNING, logger="joma"), Monitor(model, every=1) as monitor:
        trained(3, monitor, model, optimizer, torch.Generator().manual_seed(0))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "no attention was seen" in lines[0]
    assert "no rule matches a lower MLP" in lines[1]
    assert (monitor.table()["metric"] == "loss").sum() == 3


def test_a_loss_that_is_not_one_number_is_left_out_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    model, *rest = start()
    with (
        caplog.at_level(logging.WARNING, logger="joma"),
        Monitor(model, every=2, ranks_every=None) as monitor,
    ):
        for step, loss in enumerate((torch.ones(3), "much", [1.0], torch.ones(3), 2.5, torch.tensor([1.5]))):
            one(model, *rest)
            monitor.step(step, loss=loss)  # type: ignore[arg-type]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert "the loss failed: a tensor of shape (3,) and torch.float32 is not one number" in lines[0]
    losses = monitor.table().query("metric == 'loss'")
    assert losses[["step", "value"]].to_numpy().tolist() == [[4, 2.5], [5, 1.5]]
    assert (monitor.table()["metric"] == "gradient_norm").sum() == 6


def test_a_disk_that_fills_loses_nothing_that_comes_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, *rest = start()
    whole = pd.DataFrame.to_parquet
    full = [True]

    def to_parquet(self: pd.DataFrame, *arguments: object, **named: object) -> object:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(self, *arguments, **named)

    monkeypatch.setattr(pd.DataFrame, "to_parquet", to_parquet)
    caplog.set_level(logging.WARNING, logger="joma")
    with Monitor(model, every=2, folder=tmp_path / "live") as monitor:
        for step in range(9):
            full[0] = step < 5
            monitor.step(step, loss=one(model, *rest))
    told = [record.getMessage() for record in caplog.records if "disk" in record.getMessage()]
    assert told
    assert all("\n" not in line for line in told)
    assert "is full" in told[0]
    kept = read_table(tmp_path / "live").query("metric == 'loss'")["step"].tolist()
    assert kept == list(range(9))
    assert not list((tmp_path / "live").glob(".writing-*"))


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_whole_parts_and_is_continued(tmp_path: Path) -> None:
    program = (
        "import torch, joma\n"
        "model = torch.nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True)\n"
        f"with joma.Monitor(model, every=2, folder={str(tmp_path / 'live')!r}) as monitor:\n"
        "    for step in range(100_000):\n"
        "        monitor.step(step, loss=model(torch.randn(2, 5, 8)).square().mean())\n"
        "        print(step, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 25:
            break
    process.kill()
    process.wait()
    table = read_table(tmp_path / "live")
    last = int(table["step"].max())
    assert last >= 24
    assert table.query("metric == 'loss'")["step"].tolist() == list(range(last + 1))
    model = nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True)
    with Monitor(model, every=2, folder=tmp_path / "live") as monitor:
        assert monitor.last == last
        for step in range(last + 1, last + 4):
            monitor.step(step, loss=model(torch.randn(2, 5, 8)).square().mean())
    again = read_table(tmp_path / "live")
    assert not again.duplicated(["step", "layer", "module", "call", "head", "metric"]).any()
    assert int(again["step"].max()) == last + 3


def test_two_monitors_at_once_and_no_hook_after_many_steps() -> None:
    model, *rest = start()
    with Monitor(model, every=7) as first, Monitor(model, every=5, statistics=("entropy",)) as second:
        for step in range(60):
            loss = one(model, *rest)
            first.step(step, loss=loss)
            second.step(step, loss=loss)
    assert hooks(model) == 0
    a, b = (m.table().query("metric == 'attention_entropy'") for m in (first, second))
    both = a.merge(b, on=["step", "layer", "head"])
    assert set(both["step"]) == {0, 35}
    assert np.array_equal(both["value_x"], both["value_y"])


def test_monitors_of_every_step_do_not_disturb_each_other() -> None:
    model, *rest = start()
    with Monitor(model, every=1) as first, Monitor(model, every=1, statistics=("entropy",)) as second:
        for step in range(4):
            loss = one(model, *rest)
            first.step(step, loss=loss)
            second.step(step, loss=loss)
    a, b = (m.table().query("metric == 'attention_entropy'") for m in (first, second))
    assert sorted(set(a["step"])) == sorted(set(b["step"])) == [0, 1, 2, 3]
    assert np.array_equal(a["value"], b["value"])
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"every": 0}, "not a cadence"),
        ({"every": True}, "not a cadence"),
        ({"alpha": 1.5}, "not a probability"),
        ({"steps": 0}, "at least 1 step"),
        ({"on_alarm": "shout"}, "on_alarm"),
        ({"log": "wandbb"}, "did you mean 'wandb'"),
        ({"log": "trackio"}, "pip install trackio"),
        ({"statistics": ("entropie",)}, "unknown statistic"),
    ],
)
def test_bad_input(changes: dict[str, object], what: str) -> None:
    with pytest.raises(InputError, match=what):
        Monitor(Model(), **changes)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"give a torch\.nn\.Module"):
        Monitor("model")  # type: ignore[arg-type]
