"""Series as folders: members, order, gaps, steps that occur twice, stale checkpoints, the same bytes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from joma.checkpoints.series.members import Member, notes_on, select
from joma.checkpoints.series.names import place_of
from joma.checkpoints.series.sources.find import find_series
from joma.checkpoints.series.sources.source import kept_of
from joma.core.errors import InputError


def checkpoint(folder: Path, seed: int, when: int | None = None) -> Path:
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    save_file({"w": torch.randn(300, 300, generator=generator)}, folder / "model.safetensors")
    stamp = 1_700_000_000 + (seed if when is None else when)
    os.utime(folder / "model.safetensors", (stamp, stamp))
    return folder


def member(name: str, date: float = float("nan")) -> Member:
    place = place_of(name)
    assert place is not None
    return Member(name, place, 1, date)


def test_a_folder_of_a_trainer(tmp_path: Path) -> None:
    for step in (1000, 200, 500):
        checkpoint(tmp_path / f"checkpoint-{step}", step)
    (tmp_path / "tmp-checkpoint-1500").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "checkpoint-300").mkdir()
    (tmp_path / "checkpoint-300" / "adapter_model.safetensors").touch()
    series = find_series([str(tmp_path)])
    assert [one.name for one in series.members] == ["checkpoint-200", "checkpoint-500", "checkpoint-1000"]
    assert {(note.kind, note.member) for note in series.notes} == {
        ("no member", "tmp-checkpoint-1500"),
        ("unreadable", "checkpoint-300"),
    }


def test_gaps_of_a_regular_series_and_none_of_growing_distances() -> None:
    regular = [member(f"step{step}") for step in (0, 100, 200, 300, 600, 700)]
    assert [n.text for n in notes_on(regular)] == [
        "steps 400 to 500 are missing: 2 of the usual distance 100"
    ]
    pythia = [member(f"step{step}") for step in (0, 1, 2, 4, 8, 16, *range(1000, 9000, 1000))]
    assert notes_on(pythia) == []


def test_stages_and_branches_are_lines_of_their_own() -> None:
    names = [f"stage1-step{n}000-tokens4B" for n in range(1, 6)]
    names += [f"stage2-ingredient{i}-step{n}000-tokens4B" for i in (1, 2, 3) for n in (1, 2)]
    assert notes_on([member(name) for name in names]) == []


def test_an_older_date_and_a_step_that_occurs_twice() -> None:
    line = [member("step100", 1.0), member("step200", 5.0), member("step300", 6.0), member("step400", 3.0)]
    assert [(n.kind, n.member) for n in notes_on(line)] == [("stale", "step400")]
    left = [member(f"step{n}", date) for n, date in ((1, 1.0), (2, 2.0), (3, 10.0), (4, 4.0), (5, 5.0))]
    (note,) = notes_on(left)  # one run that was restarted is said once
    assert note.text.startswith("step4, step5 are older by date than step3, which comes before")
    undated = [member("step1", 3.0), member("step2"), member("step3", 2.0)]
    assert [n.member for n in notes_on(undated)] == ["step3"]
    thrice = notes_on([member("step100"), member("step_100"), member("step0100")])
    assert [n.text.endswith("of step0100; the latter is followed") for n in thrice] == [True, True]
    twice = notes_on([member("step100"), member("step_100")])
    assert [(n.kind, n.lost) for n in twice] == [("same step", True)]


def test_the_same_bytes_and_which_of_them_is_measured(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        checkpoint(tmp_path / f"step{step}", step)
    for copy in ("step2", "step1"):
        shutil.rmtree(tmp_path / copy)
        shutil.copytree(tmp_path / "step4", tmp_path / copy)
    series = find_series([str(tmp_path)])
    (group,) = series.identical(series.members)
    assert [one.name for one in group] == ["step1", "step2", "step4"]
    assert {one.name for one in kept_of(group, series.members).values()} == {"step4"}
    assert {one.name for one in kept_of(group[:2], series.members).values()} == {"step1"}


def test_final_weights_of_one_line_stay_its_end_and_every_line_keeps_one() -> None:
    names = [*(f"stage1-step{n}" for n in range(1, 6)), "stage2-step0", "stage2-step1"]
    members = {name: member(name) for name in names}
    same = [members[f"stage1-step{n}"] for n in (1, 3, 5)]
    kept = kept_of([*same, members["stage2-step0"]], list(members.values()))
    assert {name: one.name for name, one in kept.items()} == {
        **dict.fromkeys(("stage1-step1", "stage1-step3", "stage1-step5"), "stage1-step5"),
        "stage2-step0": "stage2-step0",
    }


def test_one_byte_between_the_samples_is_another_content(tmp_path: Path) -> None:
    checkpoint(tmp_path / "step1", 1)
    shutil.copytree(tmp_path / "step1", tmp_path / "step2")
    file = tmp_path / "step2" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[5000] ^= 1
    file.write_bytes(content)
    series = find_series([str(tmp_path)])
    assert series.identical(series.members) == []


def test_selection() -> None:
    members = [member(f"step{step}") for step in range(0, 1001, 10)]
    assert [one.place.step for one in select(members, ("every:40",))] == [0, 400, 800, 1000]
    chosen = [one.place.step for one in select(members, ("log:5",))]
    assert chosen[0] == 0
    assert chosen[-1] == 1000
    assert len(chosen) <= 5
    assert [one.name for one in select(members, ("step20", "step10"))] == ["step20", "step10"]
    with pytest.raises(InputError, match="no member 'step11'"):
        select(members, ("step11",))
    with pytest.raises(InputError, match="every:10"):
        select(members, ("every:0",))


def test_no_step_in_any_name_and_nothing_there(tmp_path: Path) -> None:
    checkpoint(tmp_path / "final", 0)
    with pytest.raises(InputError, match=r"no checkpoint whose name tells a step \(it holds final\)"):
        find_series([str(tmp_path)])
    with pytest.raises(InputError, match="does not exist"):
        find_series([str(tmp_path / "step1"), str(tmp_path / "step2")])


@pytest.mark.parametrize("names", [["9" * 3000], ["9" * 3000, "step1"], ["~nosuchuser/" + "9" * 3000]])
def test_a_name_that_no_file_can_have(names: list[str]) -> None:
    with pytest.raises(InputError, match=r"9\.\.\.9+' does not exist"):
        find_series(names)


def test_a_list_of_folders_and_files(tmp_path: Path) -> None:
    paths = [checkpoint(tmp_path / run / "checkpoint-5", n) for n, run in enumerate(("a", "b"))]
    torch.save({"state_dict": {"w": torch.ones(3, 3)}}, tmp_path / "epoch=1-step=7.ckpt")
    series = find_series([str(paths[0]), str(tmp_path / "epoch=1-step=7.ckpt")])
    assert [one.place.step for one in series.members] == [5, 7]
    both = find_series([str(path) for path in paths])
    assert [one.name for one in both.members] == ["a/checkpoint-5", "b/checkpoint-5"]


def test_sidecars_and_the_state_of_an_optimizer_are_no_members(tmp_path: Path) -> None:
    for name in ("step_100.json", "optimizer_step_200.pt", "step_200_optim.pt", "step_100.pt.sha256"):
        (tmp_path / name).write_text("{}")
    for name in ("step_100.pt", "step_200.pt", "step_300.ckpt"):
        torch.save({"w": torch.zeros(2, 2)}, tmp_path / name)
    (tmp_path / "checkpoint-500.zip").touch()
    assert [one.name for one in find_series([str(tmp_path)]).members] == [
        "step_100.pt",
        "step_200.pt",
        "step_300.ckpt",
    ]


def test_folders_farther_up_tell_the_stages_of_a_list(tmp_path: Path) -> None:
    names = ["stage1/step1000", "stage1/step2000", "stage2/step500", "stage2/step3000"]
    series = find_series([str(checkpoint(tmp_path / name, i)) for i, name in enumerate(names)])
    assert [(one.name, one.place.stage) for one in series.members] == [(name, int(name[5])) for name in names]
    plain = find_series([str(checkpoint(tmp_path / "seed1" / f"step{n}", n)) for n in (1, 2)])
    assert [one.name for one in plain.members] == ["step1", "step2"]


def test_what_is_gone_when_it_is_read_is_named(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint(tmp_path / f"checkpoint-{step}", step)
    series = find_series([str(tmp_path)])
    shutil.rmtree(tmp_path / "checkpoint-2")
    assert series.identical(series.members) == []
    with pytest.raises(InputError, match="checkpoint-2 cannot be read: No such file"):
        series.content(series.members[1])


def test_names_that_are_lost_are_passed_over() -> None:
    members = [member("step10"), member("step20")]
    assert [one.name for one in select(members, ("step20", "step30"), {"step30"})] == ["step20"]
    with pytest.raises(InputError, match="step40"):
        select(members, ("step20", "step40"), {"step30"})
