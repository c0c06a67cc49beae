"""A stored series with everything that goes wrong in series, tracked as a user would."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

import joma
from hub_server import Hub, serve
from joma.checkpoints.ranks import probe_weights
from joma.cli.main import main
from joma.core.errors import InputError, UnfinishedError
from joma.instruments.track import TrackSettings
from joma.runs.directory import run_experiment

WIDTH, LAYERS = 16, 4


def checkpoint(folder: Path, step: int, *, width: int = WIDTH, when: int | None = None) -> Path:
    """Weights that move along a fixed path, so that any two steps differ by what is known."""
    folder.mkdir(parents=True)
    random = torch.Generator().manual_seed(7)
    parts = {"self_attn.q_proj": width, "self_attn.k_proj": width, "self_attn.v_proj": width}
    parts |= {"self_attn.o_proj": width, "mlp.up_proj": 3 * width}
    tensors = {}
    for layer in range(LAYERS):
        for name, rows in parts.items():
            start, way = (torch.randn(rows, width, generator=random) for _ in range(2))
            tensors[f"model.layers.{layer}.{name}.weight"] = start + step / 100 * way
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "llama", "num_attention_heads": 2, "num_key_value_heads": 2}
    (folder / "config.json").write_text(json.dumps(config))
    stamp = 1_700_000_000 + (step if when is None else when)
    os.utime(folder / "model.safetensors", (stamp, stamp))
    return folder


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Duplicates, a gap, a truncated file, a stale higher step, other shapes, two stages."""
    folder = tmp_path_factory.mktemp("stored")
    for step in (0, 10, 20, 30, 40, 50, 60, 90, 100, 110):
        checkpoint(folder / f"stage1-step{step}", step)
    for step in (10, 20, 30):
        checkpoint(folder / f"stage2-ingredient1-step{step}", step + 1000)
    shutil.rmtree(folder / "stage1-step20")
    shutil.copytree(folder / "stage1-step10", folder / "stage1-step20")
    cut = folder / "stage1-step50" / "model.safetensors"
    stamp = cut.stat().st_mtime
    cut.write_bytes(cut.read_bytes()[:-100])
    os.utime(cut, (stamp, stamp))
    checkpoint(folder / "stage1-step120", 120, when=55)
    checkpoint(folder / "stage1-step130", 130, width=WIDTH + 4)
    (folder / "main").mkdir()
    return folder


@pytest.fixture(scope="module")
def found(stored: Path) -> joma.TrackResult:
    return joma.track(stored, quiet=True)


def test_each_fault_is_found_and_named_and_the_rest_measured(found: joma.TrackResult) -> None:
    notes = found.notes()
    kinds = {(row.kind, row.checkpoint) for row in notes.itertuples()}
    assert {
        ("identical", "stage1-step10"),
        ("gap", ""),
        ("unreadable", "stage1-step50"),
        ("stale", "stage1-step120"),
        ("shapes", "stage1-step130"),
        ("no member", "main"),
        ("weights alone", ""),
    } == kinds
    assert set(notes[notes["lost"]]["checkpoint"]) == {"stage1-step50", "stage1-step130"}
    members = found.tables["checkpoints"].set_index("checkpoint")
    assert members["same_as"]["stage1-step20"] == "stage1-step10"
    assert set(members.index[~members["measured"]]) == {"stage1-step20", "stage1-step50", "stage1-step130"}
    assert set(found.table()["checkpoint"]) == set(members.index[members["measured"]])
    assert list(members["line"].unique()) == ["stage1", "stage2 ingredient1"]


def test_values_are_those_of_a_probe_and_of_the_dense_difference(
    found: joma.TrackResult, stored: Path
) -> None:
    table = found.table()
    alone = probe_weights(stored / "stage1-step30", attention=True)
    own = table[(table["checkpoint"] == "stage1-step30") & (table["metric"] == "stable_rank")]
    own = own[own["matrix"] != "query_key"]
    expected = alone[alone["metric"] == "stable_rank"]["value"]
    assert own["value"].to_numpy() == pytest.approx(expected.to_numpy(), rel=1e-12)
    rows = table[(table["metric"] == "change_norm") & (table["matrix"] == "lower") & (table["layer"] == 2)]
    norms = rows.pivot_table(index="step", columns="against", values="value")
    way = norms["first"][110] / 110
    # Step 10 counts for itself and 20; the neighbour of 60 is 40.
    assert norms["previous"][60] == pytest.approx(20 * way, rel=1e-5)
    assert norms["first"][60] == pytest.approx(60 * way, rel=1e-5)
    speed = table[(table["metric"] == "speed") & (table["matrix"] == "lower") & (table["layer"] == 2)]
    stage_1 = speed[speed["line"] == "stage1"]
    assert stage_1["value"].to_numpy() == pytest.approx(np.full(len(stage_1), way), rel=1e-4)


def test_the_object_has_a_table_a_plot_and_bounces(found: joma.TrackResult) -> None:
    bounces = found.bounces()
    one = bounces[(bounces["metric"] == "stable_rank") & (bounces["matrix"] == "lower")]
    assert len(one[one["line"] == "stage1"]) == LAYERS
    assert set(one[one["line"] == "stage2 ingredient1"]["verdict"]) == {"cannot tell"}
    assert len(found.plot().axes) >= 4
    assert "of 15 checkpoints measured" in str(found)
    assert len(found.answer()) <= 3


def test_what_is_left_out_is_said_once_with_its_reason(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        folder = checkpoint(tmp_path / f"step{step}", step)
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
        tensors = load_file(folder / "model.safetensors")
        tensors["model.layers.0.mlp.gate_proj.weight"] = torch.zeros(3 * WIDTH, WIDTH)
        tensors["model.layers.1.mlp.gate_proj.qweight"] = torch.ones(WIDTH, WIDTH, dtype=torch.int32)
        tensors["model.oracle.weight"] = torch.randn(WIDTH, WIDTH)
        save_file(tensors, folder / "model.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = joma.track(tmp_path, quiet=True)
    notes = found.notes()
    told = notes[notes["kind"].isin(["left out", "zero"])]
    texts = "; ".join(told["text"])
    assert len(told) == 4
    for words in (
        "no product of queries and keys: no configuration tells the number of heads; give it (--heads)",
        "model.oracle.weight: not recognised: no rule matches this name",
        "model.layers.0.mlp.gate_proj.weight: the matrix is zero",
        "gate_proj.weight: packed quantised weights",
    ):
        assert texts.count(words) == 1, words
    # What was asked for and cannot be read counts as lost, and no checkpoint is.
    assert list(told[told["lost"]]["kind"]) == ["left out"]
    assert found.tables["checkpoints"]["measured"].all()
    assert not found.table()["metric"].eq("omitted").any()


@pytest.mark.usefixtures("no_pictures")
def test_a_series_on_a_cluster_is_the_same(found: joma.TrackResult, tmp_path: Path) -> None:
    """Each checkpoint's parts are handed out; what cannot be read there is told by who follows the series."""
    handed: list[str] = []

    def cluster(calls: Any, workers: int) -> Any:
        for number, call in reversed(list(enumerate(calls))):
            handed.append(call.args[1])
            yield number, pickle.loads(pickle.dumps(call))()

    here = run_experiment(found.settings, tmp_path / "here", quiet=True)
    run = run_experiment(found.settings, tmp_path / "there", quiet=True, executor=cluster)
    assert sum(name.startswith("weights-") for name in handed) >= 3
    assert any(name.startswith("changes-") for name in handed)
    for name, table in here.tables.items():
        pd.testing.assert_frame_equal(run.tables[name], table, check_exact=True)


def test_dates_have_intervals_and_layers_a_row_each(found: joma.TrackResult) -> None:
    dated = found.tables["dates"]
    dated = dated[dated["step"].notna()]
    assert len(dated)
    assert (dated["step_from"] <= dated["step"]).all()
    assert (dated["step"] <= dated["step_to"]).all()
    layers = found.tables["layers"]
    assert set(layers["line"]) == {"stage1", "stage2 ingredient1"}
    assert len(layers) == 2 * LAYERS
    assert (layers["rank_lowest"] <= layers["rank_last"]).all()


def test_the_command_ends_with_the_list_of_what_was_lost(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["track", str(stored), "--weights", "--json", "--out", str(tmp_path / "run"), "-q"])
    printed = capsys.readouterr()
    assert status == 1
    assert "stage1-step50" in printed.err
    assert "stage1-step130" in printed.err
    assert {row["checkpoint"] for row in json.loads(printed.out)["tables"]["values"]} >= {"stage1-step0"}
    assert (tmp_path / "run" / "report.html").exists()
    assert main(["track", str(stored), "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["bytes_to_fetch"] == 0
    assert planned["seconds"] > 0
    assert main(["track", str(stored), "--dry-run"]) == 0
    assert "15 members, 14 contents" in capsys.readouterr().out


@pytest.mark.usefixtures("no_pictures")
def test_a_new_checkpoint_adds_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = tmp_path / "series", tmp_path / "run"
    for step in (1, 2, 3):
        checkpoint(folder / f"checkpoint-{step}", step)
    before = joma.track(folder, out=out, quiet=True)
    parts = {path.name: path.stat().st_mtime_ns for path in (out / "parts").glob("*.parquet")}
    checkpoint(folder / "checkpoint-4", 4)
    after = joma.track(folder, out=out, quiet=True, window=4)
    again = {path.name: path.stat().st_mtime_ns for path in (out / "parts").glob("*.parquet")}
    assert len(again) == len(parts) + 3  # its weights, its changes, and the audit of all
    assert parts.items() <= again.items()
    kept = after.table()[after.table()["step"] < 4].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, before.table())


def test_a_folder_that_grows_is_followed(tmp_path: Path) -> None:
    folder = tmp_path / "series"
    checkpoint(folder / "checkpoint-1", 1)
    script = (
        "import sys, joma; print(len(joma.track(sys.argv[1], follow=8, quiet=True).tables['checkpoints']))"
    )
    with subprocess.Popen([sys.executable, "-c", script, folder], stdout=subprocess.PIPE, text=True) as run:
        time.sleep(1.0)
        checkpoint(tmp_path / "checkpoint-2", 2).rename(folder / "checkpoint-2")
        assert run.communicate()[0].strip() == "2"


def test_what_a_trainer_removes_while_it_is_followed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "series"
    for step in (1, 2):
        checkpoint(folder / f"checkpoint-{step}", step)
    moves = [
        lambda: (checkpoint(folder / "checkpoint-3", 3), shutil.rmtree(folder / "checkpoint-1")),
        lambda: (checkpoint(folder / "checkpoint-4", 4), shutil.rmtree(folder / "checkpoint-2")),
    ]

    def grown(settings: TrackSettings, before: object) -> bool:
        if not moves:
            return False
        moves.pop(0)()
        return True

    monkeypatch.setattr("joma.instruments.track.run._has_grown", grown)
    found = joma.track(folder, follow=1, quiet=True)
    assert found.tables["checkpoints"]["step"].tolist() == [1, 2, 3, 4]
    assert found.tables["checkpoints"]["measured"].all()
    notes = found.notes()
    assert set(notes[notes["kind"] == "gone"]["checkpoint"]) == {"checkpoint-1", "checkpoint-2"}
    moved = found.table().query("metric == 'change_norm' and against == 'previous' and matrix == 'lower'")
    assert sorted(moved["step"].unique()) == [2, 3, 4]
    since = found.table().query("metric == 'change_norm' and against == 'first'")
    assert sorted(since["step"].unique()) == [2]  # the first is gone: nothing else is called so


def test_of_two_names_of_one_step_that_which_can_be_read_is_followed(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint(tmp_path / f"step{step}", step)
    cut = checkpoint(tmp_path / "step_2", 2) / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-100])
    found = joma.track(tmp_path, quiet=True)
    assert found.table()["step"].unique().tolist() == [1, 2, 3]
    assert "same step" not in set(found.notes()["kind"])


def test_epochs_and_steps_are_curves_of_their_own(tmp_path: Path) -> None:
    for number in range(1, 6):
        checkpoint(tmp_path / f"checkpoint-{number}", number)
        checkpoint(tmp_path / f"epoch_{number}", 100 + number)
    found = joma.track(tmp_path, quiet=True)
    assert set(found.table()["line"]) == {"", "epochs"}
    assert found.bounces()["points"].max() == 5


def test_the_time_is_told_by_a_checkpoint_that_can_be_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = checkpoint(tmp_path / "step1", 1) / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-100])
    checkpoint(tmp_path / "step2", 2)
    assert main(["track", str(tmp_path), "--dry-run"]) == 0
    assert "2 members" in capsys.readouterr().out


def test_two_series_side_by_side(stored: Path, tmp_path: Path) -> None:
    for step in (0, 25, 55):
        checkpoint(tmp_path / "other" / f"step_{step}", step)
    for step in (0, 10, 30, 50):
        checkpoint(tmp_path / "one" / f"step_{step}", step)
    found = joma.track(tmp_path / "one", against=str(tmp_path / "other"), quiet=True)
    beside = found.tables["beside"]
    norms = beside[(beside["metric"] == "change_norm") & (beside["against"] == "first")]
    norms = norms[norms["matrix"] == "lower"]
    # Both run along one path at one speed, so that their distance from the start is the same.
    assert sorted(norms["at"].unique()) == [30, 50]
    assert norms["difference"].abs().max() < 1e-4 * norms["value"].max()


def test_what_is_no_series(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name a series"):
        TrackSettings().check_complete()
    with pytest.raises(InputError, match="align loss"):
        joma.track(tmp_path, align="loss")
    alone = checkpoint(tmp_path / "checkpoint-5", 5)
    only = joma.track(alone, quiet=True)
    assert "only checkpoint" in " ".join(only.notes()["text"])
    assert set(only.bounces()["verdict"]) == {"cannot tell"}
    (alone / "model.safetensors").write_bytes(b"half")
    with pytest.raises(UnfinishedError, match="no checkpoint"):
        joma.track(alone, quiet=True)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve(tmp_path / "hub") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        for step in (0, 10, 20, 30):
            checkpoint(hub.model("lab/tiny") / f"step{step}", step)
        yield hub


def test_a_damaged_header_on_the_hub_does_not_end_the_plan(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = hub.model("lab/tiny") / "step20" / "model.safetensors"
    damaged.write_bytes(b"\xff" * 7 + damaged.read_bytes()[7:])
    assert main(["track", "lab/tiny", "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert any("step20" in note and "damaged" in note for note in planned["notes"])
    fetch = {row["checkpoint"]: row["fetch"] for row in planned["members"]}
    assert fetch.pop("step20") == 0
    assert all(fetch.values())
    assert planned["bytes_to_fetch"] == sum(fetch.values())


@pytest.mark.usefixtures("no_pictures")
def test_a_series_on_the_hub_is_that_of_its_folders(hub: Hub, tmp_path: Path) -> None:
    shutil.copytree(hub.model("lab/tiny") / "step30", hub.model("lab/tiny") / "step40")
    hub.missing = {"step50"}
    out = tmp_path / "run"
    remote = joma.track("lab/tiny", out=out, quiet=True)
    local = joma.track(hub.model("lab/tiny"), quiet=True)
    pd.testing.assert_frame_equal(remote.table(), local.table())
    assert set(remote.notes()["kind"]) == {"identical", "unreadable", "weights alone", "audit"}
    assert all(count == 1 for count in _times_sent(hub).values())
    assert not list(out.rglob("*.safetensors"))
    sent = hub.sent.total()
    joma.track("lab/tiny", out=out, quiet=True)
    assert hub.sent.total() == sent


def test_downloads_are_kept_where_it_is_asked_for(hub: Hub, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    joma.track("lab/tiny", revisions=("step0", "step20"), keep_downloads=str(kept), quiet=True)
    assert len(list(kept.rglob("*.safetensors"))) == 2
    sent = hub.sent.total()
    joma.track("lab/tiny", revisions=("step0", "step20"), keep_downloads=str(kept), changes=False, quiet=True)
    again = hub.sent.total() - sent
    assert again < 2 * 40_000  # headers and settings


def _times_sent(hub: Hub) -> dict[tuple[str, str, int], int]:
    """How often each byte range's beginning went out, beyond the headers."""
    counted: dict[tuple[str, str, int], int] = {}
    for revision, file, begin, _ in hub.ranges:
        if file.endswith(".safetensors") and begin > 0:
            counted[revision, file, begin] = counted.get((revision, file, begin), 0) + 1
    return counted


@pytest.mark.slow
def test_killed_at_ten_moments_and_continued(tmp_path: Path) -> None:
    folder = tmp_path / "series"
    for step in range(12):
        checkpoint(folder / f"checkpoint-{step}", step, width=96)
    undisturbed = joma.track(folder, out=tmp_path / "whole", quiet=True).tables
    words = [sys.executable, "-m", "joma", "track", str(folder), "-q", "--out", str(tmp_path / "broken")]
    random = np.random.default_rng(0)
    kept: dict[str, int] = {}
    killed = 0
    parts = tmp_path / "broken" / "parts"
    for _ in range(10):
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
            had = len(list(parts.glob("[!.]*.parquet")))
            limit = time.monotonic() + 120
            # A moment after something new was finished, so that every try gets on.
            while process.poll() is None and time.monotonic() < limit:
                if len(list(parts.glob("[!.]*.parquet"))) > had:
                    break
                time.sleep(0.005)
            time.sleep(float(random.uniform(0.0, 0.2)))
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                killed += 1
        now = {path.name: path.stat().st_mtime_ns for path in parts.glob("[!.]*.parquet")}
        assert kept.items() <= now.items(), "a finished part was measured again"
        kept = now
    assert killed >= 5
    assert subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode == 0
    now = {path.name: path.stat().st_mtime_ns for path in parts.glob("[!.]*.parquet")}
    assert kept.items() <= now.items()
    for name, table in undisturbed.items():
        again = pd.read_parquet(tmp_path / "broken" / f"{name}.parquet")
        pd.testing.assert_frame_equal(table, again, check_exact=True)
