"""Which passes count, what a broken part leaves of a look, and which steps are looked at."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from joma.instruments.monitor.alarms.alarm import ChangeAlarm
from joma.instruments.monitor.alarms.messages import states
from joma.instruments.monitor.folder import Folder, read_table
from joma.instruments.monitor.measuring.blocks import residual_blocks
from joma.instruments.monitor.measuring.rows import COLUMNS
from joma.instruments.monitor.monitor import Monitor

WIDTH, LENGTH = 8, 5


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]
        return out


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.experts[0](x).relu()


class Body(nn.Module):
    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks(x)
        return out


class Net(nn.Module):
    """Embedded outside of the body, which is called by itself, as training steps do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, WIDTH)
        self.body = Body()

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.body(self.embed(ids))
        return out


def ids(rows: int) -> Tensor:
    return torch.randint(0, 7, (rows, LENGTH))


def entropies(monitor: Monitor) -> pd.DataFrame:
    table = monitor.table()
    return table[table["metric"] == "attention_entropy"]


def test_parts_that_are_called_by_themselves_are_seen() -> None:
    net = Net()
    with Monitor(net, every=1) as monitor:
        for step in range(3):
            monitor.step(step, loss=net.body(net.embed(ids(2))).sum())
    assert entropies(monitor)["step"].value_counts().to_dict() == {0: 3, 1: 3, 2: 3}
    assert set(entropies(monitor)["count"]) == {2 * LENGTH}
    assert (monitor.table()["metric"] == "residual_rms").sum() == 9


def test_evaluation_between_steps_is_not_measured_and_leaves_nothing() -> None:
    net = Net()
    with Monitor(net, every=1) as monitor:
        for step in range(2):
            net.eval()
            for _ in range(5):
                net(ids(4))
            net.train()
            with torch.no_grad():
                net(ids(4))
            loss = net(ids(2)).sum()
            assert monitor._looks.look is not None
            assert len(monitor._looks.look._watch._records) == 3
            monitor.step(step, loss=loss)
    assert set(entropies(monitor)["count"]) == {2 * LENGTH}


def test_what_breaks_in_one_layer_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    with torch.no_grad():
        net.body.blocks[1].experts[0].weight.fill_(torch.nan)  # type: ignore[union-attr, index]
    with caplog.at_level(logging.WARNING, "joma"), Monitor(net, every=1) as monitor:
        for step in range(3):
            monitor.step(step, loss=net(ids(2)).sum())
    assert set(entropies(monitor)["layer"]) == {0, 1}
    rms = monitor.table().query("metric == 'residual_rms' and step == 0").set_index("layer")["value"]
    assert rms.isna().tolist() == [False, True, True]
    assert [m.where for m in monitor.messages if m.metric == "residual_rms"] == [
        "2 of 3 layers (layer 1; layer 2)"
    ]
    assert sum("could not be measured" in record.message for record in caplog.records) == 1


def test_a_gradient_without_a_norm_does_not_end_the_training(caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    net.embed = nn.Embedding(7, WIDTH, sparse=True)
    with caplog.at_level(logging.WARNING, "joma"), Monitor(net, every=2) as monitor:
        for step in range(4):
            loss = net(ids(2)).sum()
            loss.backward()
            monitor.step(step, loss=loss)
    assert sum("gradient norm" in record.message for record in caplog.records) == 1
    assert monitor.table()["metric"].value_counts()["loss"] == 4


@pytest.mark.parametrize(
    ("steps", "looked"),
    [
        (range(25), [0, 10, 20]),
        (range(1, 25), [10, 20]),
        (range(1, 30, 2), [11, 21]),
        (range(2, 30, 4), [14, 26]),  # 10 is known to be past only when it is done
        (range(7, 130, 30), [67, 127]),
    ],
)
def test_steps_in_strides_are_looked_at_all_the_same(steps: range, looked: list[int]) -> None:
    net = Net()
    monitor = Monitor(net, every=10)
    monitor.begin(steps[0])
    for step in steps:
        monitor.step(step, loss=net(ids(2)).sum())
    monitor.close()
    assert entropies(monitor)["step"].unique().tolist() == looked


def test_a_loss_that_is_added_up_in_place_is_that_of_its_step() -> None:
    net, total = Net(), torch.zeros(())
    with Monitor(net, every=10) as monitor:
        for step in range(6):
            total += step
            monitor.step(step, loss=total)
            total.zero_()
    assert monitor.table().query("metric == 'loss'")["value"].tolist() == [0, 1, 2, 3, 4, 5]


def test_blocks_are_the_layers_and_not_what_lies_in_them() -> None:
    assert [block.name for block in residual_blocks(Net())] == [f"body.blocks.{i}" for i in range(3)]
    towers = nn.ModuleList([Body(5), Body(5)])
    both = [(str(tower), i, f"{tower}.blocks.{i}") for tower in range(2) for i in range(5)]
    assert [block[:3] for block in residual_blocks(towers)] == both
    plain = nn.ModuleList(nn.ModuleList(nn.Linear(2, 2) for _ in range(9)) for _ in range(3))
    assert [block.name for block in residual_blocks(plain)] == ["0", "1", "2"]


def rows_of(step: int, places: list[tuple[str, int, float]], metric: str) -> pd.DataFrame:
    rows = [[step, "", 0, module, call, 1, metric, value, "", 4] for module, call, value in places]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def test_two_attentions_of_a_layer_are_told_apart() -> None:
    both = [("decoder.0.own", 0, 0.01), ("decoder.0.cross", 0, 0.02)]
    told = states(rows_of(3, both, "normalised_entropy"), {})
    assert [m.where for m in told] == ["all 2 heads"]
    assert states(rows_of(3, both, "normalised_entropy"), {"decoder.0.own 0 1 entropy": 1})[0].where == (
        "layer 0, head 1, decoder.0.cross"
    )
    calls = [("albert", 0, 500.0), ("albert", 1, 600.0)]
    told = states(rows_of(3, calls, "largest_logit"), {})
    assert [m.what for m in told] == ["the largest logit is 600 (the farthest from 0)"]
    (second,) = states(rows_of(3, calls, "largest_logit"), {"albert 0 1 logit": 1})
    assert second.where == "layer 0, head 1, albert, call 1"
    assert states(rows_of(3, calls[:1], "largest_logit"), {})[0].where == "layer 0, head 1"


def losses(steps: range) -> list[float]:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=400)
    return [float(noise[step] + (20.0 if step >= 305 else 0.0)) for step in steps]


def followed(folder: Path, steps: range, every: int = 50) -> Monitor:
    monitor = Monitor(Net(), every=every, folder=folder, ranks_every=None)
    monitor.begin(steps[0])
    for step, loss in zip(steps, losses(steps), strict=True):
        monitor.step(step, loss=loss)
    monitor.close()
    return monitor


def told(monitor: Monitor) -> list[tuple[int, str, int]]:
    return [(m.step, m.kind, m.since) for m in monitor.messages]


def test_a_run_closed_between_looks_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole = followed(tmp_path / "whole", range(340))
    followed(tmp_path / "two", range(320))
    resumed = followed(tmp_path / "two", range(320, 340))
    assert told(resumed) == told(whole)
    assert len(told(whole)) == 1
    keys = ["step", "metric"]
    pd.testing.assert_frame_equal(
        resumed.table()[[*keys, "value"]].sort_values(keys, ignore_index=True),
        whole.table()[[*keys, "value"]].sort_values(keys, ignore_index=True),
    )


def test_a_state_older_than_the_rows_is_judged_again(tmp_path: Path) -> None:
    followed(tmp_path, range(300))
    state = (tmp_path / "state.json").read_text()
    followed(tmp_path, range(300, 320))
    (tmp_path / "state.json").write_text(state)  # killed before the state was written
    resumed = followed(tmp_path, range(320, 340))
    assert [step for step, *_ in told(resumed)] == [305]


def test_what_could_not_be_cut_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Folder, which: object) -> None:
        raise OSError("no space left")

    monitor = Monitor(Net(), every=1, folder=tmp_path, ranks_every=None)
    monitor.begin(0)
    for step in range(20):
        monitor.step(step, loss=1.0)
    monkeypatch.setattr(Folder, "filter", full)
    monitor.begin(10)
    assert len(monitor._judge.loss.cusum.reference) == 10
    monitor.close()


def test_no_bound_is_claimed_beyond_the_looks_that_were_planned() -> None:
    alarm = ChangeAlarm(looks=10, alpha=0.05)
    rng = np.random.default_rng(0)
    for step in range(11):
        assert alarm.invalid() == "" or step < 2
        alarm.look(rows_of(step, [("a", 0, float(0.5 + 0.01 * rng.normal()))], "normalised_entropy"))
    assert "looked at 11 times, and 10 were planned" in alarm.invalid()


def test_a_loss_that_stays_high_does_not_make_the_state_grow(tmp_path: Path) -> None:
    monitor = Monitor(Net(), every=500, folder=tmp_path, ranks_every=None)
    monitor.begin(1)
    for step in range(1, 3000):
        monitor.step(step, loss=float(step % 7) + 1e6 * (step > 300))
    monitor.close()
    assert len(monitor._judge.loss.cusum.excursion) == 200
    assert (tmp_path / "state.json").stat().st_size < 20_000
    assert len(read_table(tmp_path).query("metric == 'loss'")) == 2999
    assert not monitor._record.tables  # a long run's rows lie in the folder, not in memory
