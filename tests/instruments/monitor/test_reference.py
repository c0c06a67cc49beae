"""Levels of alarms from healthy runs, and what was changed from outside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from command_line import called
from joma.core.errors import InputError
from joma.instruments.monitor.alarms.calibration import calibrate, read_reference
from joma.instruments.monitor.alarms.judge import Judge
from joma.instruments.monitor.alarms.outside import Outside
from joma.instruments.monitor.alarms.reference import Reference
from joma.instruments.monitor.folder import Folder
from joma.instruments.monitor.measuring.rows import COLUMNS, LOG_NORM
from joma.instruments.monitor.monitor import Monitor

HEADS = 2
FACTS = {"model": "Linear", "statistics": ["entropy"], "every": 10}


def rows(seed: int, *, heads: int = HEADS, steps: int = 300, grows: float = 0.0) -> pd.DataFrame:
    """The record of a run: entropies at every tenth step, norms at every fifth."""
    random = np.random.default_rng(seed)
    parts = []
    for step in range(0, steps, 5):
        norm = 1 + 0.01 * random.standard_normal(heads) + grows * max(step - 250, 0)
        parts.append((step, LOG_NORM, norm))
        if step % 10 == 0:
            parts.append(
                (step, "normalised_entropy", 1 / (1 + np.exp(-0.05 * random.standard_normal(heads))))
            )
    table = pd.concat(
        pd.DataFrame({"step": step, "metric": metric, "value": values, "head": range(heads)})
        for step, metric, values in parts
    )
    table = table.assign(stack="", layer=0, module="attention", call=0, unit="", count=12)
    return table.astype({"layer": "Int64", "head": "Int64"})[list(COLUMNS)].reset_index(drop=True)


def run(path: Path, seed: int, **how) -> Path:
    folder = Folder.open(path, FACTS)
    folder.add(rows(seed, **how))
    folder.release()
    return path


def test_the_level_of_n_runs_is_exceeded_by_one_in_n_plus_one() -> None:
    numbers = list(map(float, range(1, 40)))
    reference = Reference("Linear", 10, [], [], 300, numbers, numbers[::-1])
    assert reference.levels(0.05) == (39.0, 39.0, pytest.approx(0.05))
    assert reference.levels(0.5) == (
        30.0,
        30.0,
        pytest.approx(0.5),
    )  # the 30th of 39: a quarter of 40 lie above
    few = Reference("Linear", 10, [], [], 300, [3.0, 1.0], [2.0, 5.0])
    assert few.levels(0.05) == (3.0, 5.0, pytest.approx(2 / 3))
    # By simulation: how often a further run exceeds the level.
    random = np.random.default_rng(0)
    draws = random.standard_normal((4000, 20))
    level = np.sort(draws[:, :19], axis=1)[:, 18]
    assert np.mean(draws[:, 19] > level) == pytest.approx(1 / 20, abs=0.01)


def test_healthy_runs_are_read_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [run(tmp_path / f"run{seed}", seed) for seed in range(3)]
    reference = calibrate(folders)
    assert (reference.model, reference.every, reference.steps) == ("Linear", 10, 296)
    judge = Judge(30, 0.05)
    judge.replay(rows(1))
    assert reference.change[1] == judge.change.largest > -np.inf
    assert 0 < reference.growth[1] == judge.growth.largest < 1
    out = tmp_path / "healthy.json"
    done = called(["monitor", "--calibrate", str(out), *map(str, folders)])
    assert done.returncode == 0
    assert "3 healthy runs of Linear over 296 steps" in done.stdout
    assert "probability at most 0.5; 39 runs allow 0.05" in done.stdout
    assert read_reference(out) == reference
    assert read_reference([out]) == reference


def test_a_reference_raises_alarms_at_its_levels(tmp_path: Path) -> None:
    reference = calibrate([run(tmp_path / f"run{seed}", seed) for seed in range(3)])
    judge = Judge(30, 0.05)
    judge.hold_against(reference, "Linear", 10)
    told = []
    healthy, grown = rows(7), rows(8, grows=0.02)
    for table in (healthy, grown):
        judge.replay(table)
        told.append(judge.growth.raised)
    assert judge.growth.level == max(reference.growth)
    assert told[1] is not None
    assert "of 3 healthy runs went so far" in judge.growth.level_sure


def test_folders_of_other_networks_are_refused(tmp_path: Path) -> None:
    first = run(tmp_path / "one", 0)
    with pytest.raises(InputError, match="is of another network than the runs before it: its attentions"):
        calibrate([first, run(tmp_path / "two", 1, heads=3)])
    with pytest.raises(InputError, match="before an alarm was possible"):
        calibrate([run(tmp_path / "short", 1, steps=60)])
    with pytest.raises(InputError, match="is not a monitor folder"):
        calibrate([tmp_path])
    with pytest.raises(InputError, match="names no run"):
        Monitor(nn.Linear(2, 2), reference=[])
    with pytest.raises(InputError, match="its cadence is 10, and here it is 50"):
        Monitor(nn.Linear(2, 2), reference=[first])
    with pytest.raises(InputError, match="its model is 'Linear', and here it is 'Sequential'"):
        Monitor(nn.Sequential(nn.Linear(2, 2)), every=10, reference=[first])
    (tmp_path / "file.json").write_text(json.dumps({"version": 9}))
    with pytest.raises(InputError, match="no reference that joma monitor --calibrate wrote"):
        Monitor(nn.Linear(2, 2), reference=tmp_path / "file.json")
    done = called(["monitor", "--calibrate", str(tmp_path / "out.json")])
    assert done.returncode == 2
    assert "name the folders of one or more healthy runs" in done.stderr


def schedule(rates: list[float], decay: float = 0.1) -> list[tuple[int, str]]:
    outside, told = Outside(), []
    for step, rate in enumerate(rates):
        told += [(step, one) for one in outside.read([{"lr": rate, "weight_decay": decay}])]
    return told


def test_a_jump_of_a_rate_is_named_and_a_schedule_is_not() -> None:
    warm = [1e-3 * (step + 1) / 50 for step in range(50)]
    cosine = [1e-3 * (1 + np.cos(np.pi * step / 300)) / 2 for step in range(299)]
    assert not schedule(warm + cosine)
    assert not schedule([1e-3 * 2 ** (step / 20) for step in range(100)])
    assert schedule([1e-3] * 20 + [2e-3] * 20) == [(20, "the learning rate went from 0.001 to 0.002")]
    assert schedule([1e-3] * 20 + [1e-4] * 20) == [(20, "the learning rate went from 0.001 to 0.0001")]
    outside = Outside()
    for decay in (0.1, 0.1, 0.1, 0.0, 0.3):
        assert not outside.read([{"lr": 1.0, "weight_decay": decay}])  # from and to 0 there is no ratio
    assert outside.read([{"lr": torch.tensor(1.0)}]) == []


def test_a_batch_that_grew_is_named_where_it_was_steady() -> None:
    outside = Outside()
    assert [outside.look(rows) for rows in (96, 96, 96, 96)] == [[]] * 4
    assert outside.look(192) == ["the batch went from 96 to 192 rows"]
    assert [outside.look(rows) for rows in (192, 192, 192, 100)][3] == ["the batch went from 192 to 100 rows"]
    varying = Outside()
    assert not any(varying.look(rows) for rows in (96, 90, 200, 40, 96, 300))


def test_the_past_is_learnt_anew_after_a_change() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Monitor(model, every=100, optimizer=optimizer) as monitor:
        for step in range(30):
            if step == 20:
                optimizer.param_groups[0]["lr"] = 1e-2
            monitor.step(step, loss=1.0)
        assert not monitor._judge.loss.cusum.reference  # losses are judged at looks
        assert monitor._judge.growth.state.first == -1
    (change,) = [one for one in monitor.messages if one.kind == "change"]
    assert change.sentence() == (
        "step 20: settings: the learning rate went from 0.001 to 0.01; what is usual is learnt anew from "
        "here on."
    )
