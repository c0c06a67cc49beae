"""``joma track --budget``: planned first, the members that tell most, and which were chosen and why."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import joma
from command_line import called
from hub_server import serve
from joma.checkpoints.series.members import Member
from joma.checkpoints.series.names import Place
from joma.core.errors import InputError
from joma.instruments.track import TrackSettings
from joma.instruments.track.measuring.budget import choices
from joma.instruments.track.measuring.one import Prices
from joma.instruments.track.plan import plan
from planted import write_member

_STEPS = tuple(range(0, 90, 10))


def _series(folder: Path) -> int:
    """Nine members; the bytes of one."""
    for step in _STEPS:
        draw = torch.Generator().manual_seed(1)
        name = "model.layers.0.mlp.up_proj.weight"
        first, way = torch.randn(2, 32, 16, generator=draw)
        write_member(folder / f"step{step}", {name: first + step / 100 * way})
    return (folder / "step0" / "model.safetensors").stat().st_size


def test_bytes_choose_the_members_that_tell_most(tmp_path: Path) -> None:
    size = _series(tmp_path)
    found = joma.track(tmp_path, budget=f"{5 * size}B", quiet=True)
    choice = found.table("choice")
    assert len(choice) == 5
    assert choice["checkpoint"].tolist()[:2] == ["step0", "step80"]
    assert choice["reason"].tolist()[:2] == ["end of its line"] * 2
    assert choice["cost"].sum() == 5 * size
    assert set(found.tables["checkpoints"]["checkpoint"]) == set(choice["checkpoint"])
    (note,) = found.notes().query("kind == 'budget'")["text"]
    assert note.startswith(f"5 of 9 members chosen within {5 * size}B")
    whole = joma.track(tmp_path, budget="1GB", quiet=True)
    assert len(whole.tables["checkpoints"]) == len(_STEPS)


@pytest.mark.usefixtures("no_pictures")
def test_a_time_is_planned_by_one_member_measured_and_the_choice_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _series(tmp_path / "series")
    planned = plan(TrackSettings.of(model=str(tmp_path / "series"), budget="1h"))
    assert planned.members["chosen"].ne("").all()
    assert 0 < planned.seconds < 3600
    out, asked = tmp_path / "run", {"budget": "1d", "quiet": True}
    first = joma.track(tmp_path / "series", out=out, **asked)
    assert len(first.tables["checkpoints"]) == len(_STEPS)
    monkeypatch.setattr("joma.instruments.track.measuring.budget.prices_of", None)  # nothing is timed again
    again = joma.track(tmp_path / "series", out=out, **asked)
    assert again.table("choice").equals(first.table("choice"))


def test_a_time_is_reckoned_with_the_transfer() -> None:
    members = [Member(f"step{one}", Place(step=one), 100, math.nan) for one in _STEPS]
    fetch = {one.name: 50 for one in members}
    settings = TrackSettings.of(model="lab/tiny", budget="1min")
    prices = Prices(fetch, seconds=10.0, transfer=0.2)  # 20 s each
    found = choices(settings, members, fetch, prices)
    assert [(one.member.name, one.cost) for one in found] == [("step0", 20), ("step80", 20), ("step20", 20)]


def test_the_plan_says_which_would_be_chosen(tmp_path: Path) -> None:
    size = _series(tmp_path)
    done = called(["track", str(tmp_path), "--dry-run", "--json", "--budget", f"{3 * size}B"])
    planned = json.loads(done.stdout)
    assert [row["checkpoint"] for row in planned["members"]] == ["step0", "step20", "step80"]
    assert all(row["chosen"] for row in planned["members"])
    assert any("3 of 9 members chosen" in note for note in planned["notes"])


def test_of_a_hub_the_bytes_that_travel_are_what_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = _series(tmp_path / "lab" / "tiny")
    with serve(tmp_path) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        found = joma.track("lab/tiny", budget=f"{3 * size}B", audit=False, quiet=True)
    choice = found.table("choice")
    assert 0 < choice["cost"].iloc[0] == 32 * 16 * 4 < size  # the tensor without its header
    assert len(choice) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--budget", "6 parsecs"], "give bytes or a time, such as 200GB"),
        (["--budget", "3B"], "does not suffice for one member"),
        (["--budget", "1GB", "--audit"], "--audit looks at every member"),
    ],
)
def test_bad_budgets_are_one_sentence(words: list[str], said: str, tmp_path: Path) -> None:
    _series(tmp_path / "series")
    done = called(["track", str(tmp_path / "series"), "-q", "--out", str(tmp_path / "run"), *words])
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_budget_of_nothing_is_refused_before_the_series_is_looked_at(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give bytes or a time"):
        joma.track(tmp_path / "nowhere", budget="much", quiet=True)
