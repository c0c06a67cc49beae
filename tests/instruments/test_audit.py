"""What ``joma track`` does with members that are not what their names say, and what an audit saves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import joma
from command_line import called
from joma.core.errors import InputError
from joma.report.page import write_report
from joma.runs.directory import read_run
from planted import State, write_member, write_series

_WIDTH, _LAYERS, _STEPS = 16, 3, tuple(range(0, 100, 10))


def _state(step: int, seed: int = 0) -> State:
    """Weights that walk: what a member of another seed or step is can be told."""
    tensors = {}
    for layer in range(_LAYERS):
        for name, rows in (("self_attn.q_proj", 16), ("self_attn.k_proj", 16), ("mlp.up_proj", 48)):
            draw = torch.Generator().manual_seed(1000 * seed + 10 * layer + rows + len(name) + ord(name[-6]))
            walk = torch.randn(rows, _WIDTH, generator=draw)
            for _ in range(step // 10):
                walk = walk + 0.2 * torch.randn(rows, _WIDTH, generator=draw)
            tensors[f"model.layers.{layer}.{name}.weight"] = walk
    return tensors


def _series(folder: Path) -> Path:
    return write_series(folder, {step: _state(step) for step in _STEPS}, files=3)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _series(tmp_path_factory.mktemp("clean"))


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Step 40 has layer 0 of the last member."""
    folder = _series(tmp_path_factory.mktemp("stale"))
    last = {name: one for name, one in _state(90).items() if ".layers.0." in name}
    write_member(folder / "step40", {**_state(40), **last}, files=3)
    return folder


def _curves(found: joma.TrackResult) -> pd.DataFrame:
    return found.table().drop(columns="stack")


def test_stale_tensors_are_left_out_of_the_curves_and_nothing_else(clean: Path, stale: Path) -> None:
    right, found = (joma.track(folder, quiet=True) for folder in (clean, stale))
    (fault,) = found.table("faults").to_dict("records")
    assert (fault["checkpoint"], fault["fault"], fault["matches"]) == ("step40", "stale tensors", "step90")
    assert {name.split(".")[2] for name in fault["tensors"]} == {"0"}
    table = _curves(found)
    own = table[table["checkpoint"] == "step40"]
    assert set(own["layer"]) == {1, 2}
    # Whatever stands in the tables is what the right series has there: nothing of the wrong tensors is left.
    keys = [name for name in table.columns if name not in ("value", "error_bound", "loss", "tokens")]
    both = _curves(right).merge(table, on=keys, how="left", suffixes=("", "_found"), indicator=True)
    told = both[both["_merge"] == "both"]
    assert len(told) == len(table)
    assert told["value_found"].tolist() == told["value"].tolist()
    missing = both[both["_merge"] == "left_only"]
    assert set(missing["layer"]) == {0}
    assert set(missing[missing["step"] == 40]["against"]) == {"", "previous", "first"}
    assert set(missing[missing["step"] == 50]["against"]) == {"previous"}
    assert set(missing["step"]) == {40, 50}
    assert found.tables["checkpoints"]["measured"].all()
    assert "step40" in " ".join(found.answer())
    assert "left out of the curves" in " ".join(found.notes()["text"])


def test_without_the_audit_everything_is_measured_as_it_lies(stale: Path) -> None:
    found = joma.track(stale, audit=False, quiet=True)
    assert found.table("faults").empty
    assert set(found.table().query("checkpoint == 'step40'")["layer"]) == {0, 1, 2}


def test_a_member_that_is_wholly_another_is_passed_over_and_its_neighbours_compared(tmp_path: Path) -> None:
    folder = _series(tmp_path)
    write_member(folder / "step50", _state(50, seed=3), files=3)
    found = joma.track(folder, quiet=True)
    assert found.table("faults")["fault"].tolist() == ["other run"]
    members = found.tables["checkpoints"].set_index("checkpoint")["measured"]
    assert members[~members].index.tolist() == ["step50"]
    change = found.table().query("step == 60 and metric == 'change_norm' and against == 'previous'")
    row = change[(change["layer"] == 1) & (change["matrix"] == "lower")]
    name = "model.layers.1.mlp.up_proj.weight"
    assert row["value"].item() == pytest.approx(float((_state(60)[name] - _state(40)[name]).norm()), rel=1e-5)
    assert any("step50" in text for text in found.notes()[found.notes()["lost"]]["text"])


def test_of_a_copy_the_member_is_kept_that_the_weights_fit(tmp_path: Path) -> None:
    folder = _series(tmp_path)
    shutil.rmtree(folder / "step30")
    shutil.copytree(folder / "step60", folder / "step30")  # the earlier of two, and not the last
    found = joma.track(folder, quiet=True)
    members = found.tables["checkpoints"].set_index("checkpoint")
    assert members["same_as"]["step30"] == "step60"
    assert members["measured"]["step60"]
    assert not members["measured"]["step30"]


def test_a_member_without_a_layer_has_the_curves_of_the_others(tmp_path: Path) -> None:
    folder = _series(tmp_path)
    state = {name: one for name, one in _state(40).items() if ".layers.2." not in name}
    write_member(folder / "step40", state)
    found = joma.track(folder, quiet=True)
    assert found.table("faults")["fault"].tolist() == ["missing tensors"]
    assert set(found.table().query("checkpoint == 'step40'")["layer"]) == {0, 1}
    assert found.tables["checkpoints"]["measured"].all()


def test_numbers_of_another_type_are_measured_and_named(tmp_path: Path) -> None:
    folder = _series(tmp_path)
    write_member(folder / "step40", {name: one.bfloat16() for name, one in _state(40).items()}, files=3)
    found = joma.track(folder, quiet=True)
    assert found.table("faults")["fault"].tolist() == ["other type"]
    assert set(found.table().query("checkpoint == 'step40'")["layer"]) == {0, 1, 2}
    notes = found.notes()
    assert notes[notes["kind"] == "digits"]["checkpoint"].tolist() == ["step40"]


@pytest.mark.usefixtures("no_pictures")
def test_the_audit_is_timed_apart_and_kept(stale: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = joma.track(stale, out=out, quiet=True)
    took = read_run(out).settings
    assert 0 < took["seconds_of_parts"]["audit"] <= took["seconds_of_last_try"]
    (part,) = (out / "parts").glob("audit-*.parquet")
    written = part.stat().st_mtime_ns
    again = joma.track(stale, out=out, quiet=True)
    assert part.stat().st_mtime_ns == written
    pd.testing.assert_frame_equal(first.table(), again.table())


@pytest.mark.usefixtures("no_pictures")
def test_the_words_no_audit_switch_it_off(stale: Path, tmp_path: Path) -> None:
    done = called(["track", str(stale), "--no-audit", "-q", "--out", str(tmp_path / "run")])
    assert done.returncode == 0, done.stderr
    assert read_run(tmp_path / "run").settings["settings"]["audit"] is False
    done = called(["track", str(stale), "-q", "--out", str(tmp_path / "audited")])
    assert done.returncode == 1  # what was asked for could not be measured whole
    assert "step40" in done.stderr
    config = str(tmp_path / "audited" / "settings.yaml")
    done = called(["track", str(stale), "-q", "--config", config, "--out", str(tmp_path / "again")])
    assert "of 10 checkpoints measured" in done.stdout  # audit: true in a file is the setting, not the option


def test_an_audit_is_saved_as_a_run_that_reads_and_shows(stale: Path, tmp_path: Path) -> None:
    found = joma.audit(stale, quiet=True)
    found.save(tmp_path / "run")
    back = joma.read(tmp_path / "run")
    assert back.name == "audit"
    assert back.answer() == found.answer()
    pd.testing.assert_frame_equal(
        back.table().drop(columns="tensors"), found.table().drop(columns="tensors"), check_dtype=False
    )
    assert list(back.table()["tensors"].iloc[0]) == found.table()["tensors"].iloc[0]
    for result in (found, back):
        assert sum(bar.get_height() for bar in result.plot().axes[0].patches) == 3
    page = write_report([read_run(tmp_path / "run")], tmp_path / "page.html").read_text()
    assert "step40" in page
    with pytest.raises(joma.RunDirectoryError, match="holds a run"):
        found.save(tmp_path / "run")
    found.save(tmp_path / "run", overwrite=True)
    assert back.job().command({}) == f"joma track {stale} --audit"


@pytest.mark.usefixtures("no_pictures")
def test_the_command_saves_an_audit_where_it_is_told(stale: Path, tmp_path: Path) -> None:
    done = called(["track", str(stale), "--audit", "-q", "--out", str(tmp_path / "run")])
    assert done.returncode == 1
    assert "step40: some of its tensors are another member's" in done.stdout
    assert joma.read(tmp_path / "run").table()["member"].tolist() == ["step40"]
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_clean_audit_is_saved_too(clean: Path, tmp_path: Path) -> None:
    found = joma.audit(clean, quiet=True)
    assert found.faults == []
    found.save(tmp_path / "run")
    assert joma.read(tmp_path / "run").table().columns.tolist() == found.table().columns.tolist()
    assert "Each of the 10 members is what its name says" in joma.read(tmp_path / "run").answer()[0]


def test_bad_series_are_one_sentence_each(clean: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the series is empty"):
        joma.audit([])
    with pytest.raises(InputError, match="has no member 'step5'"):
        joma.audit(clean, revisions="step5", quiet=True)
    write_member(tmp_path / "one" / "step5", _state(0))
    alone = joma.audit(tmp_path / "one", quiet=True)
    assert alone.faults == []
    assert "one member that can be read: nothing can be compared" in alone.answer()[1]
    assert len(load_file(tmp_path / "one" / "step5" / "model.safetensors")) == 9
