"""What breaks around one checkpoint costs that one, is named with its words, and leaves the rest whole."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import attacks
import joma
from joma.checkpoints import checkpoint as checkpoints
from joma.checkpoints.formats.shard import Shard
from joma.core.errors import DiskFullError
from joma.instruments.track.measuring import measured

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def series(tmp_path: Path) -> Path:
    attacks.honest(tmp_path / "series", (1, 2, 3))
    return tmp_path / "series"


@pytest.mark.parametrize("number", range(len(attacks.MEMBERS)))
def test_a_hostile_member(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of each kind; ``make fuzz`` draws 200."""
    monkeypatch.chdir(tmp_path)
    named, said = attacks.hostile_member(number, tmp_path / "series")
    assert not said, named


def test_the_attacks_notice_a_wrong_number(series: Path) -> None:
    shutil.copy(series / "step1" / "model.safetensors", series / "step2" / "model.safetensors")
    os.utime(series / "step2" / "model.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attacks, "weight", lambda step, right=attacks.weight: right(max(step, 2)))
        assert "step3 has" not in attacks.complaint(str(series))
        assert "step2 has" in attacks.complaint(str(series))


Fault = Callable[[Path], Exception]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda path: OSError(errno.EIO, "Input/output error", str(path)), "Input/output error"),
        (lambda path: PermissionError(errno.EACCES, "Permission denied", str(path)), "Permission denied"),
        (
            lambda path: FileNotFoundError(errno.ENOENT, "No such file or directory", str(path)),
            "No such file",
        ),
        (lambda path: RuntimeError("a kernel failed"), "a kernel failed"),
        (lambda path: MemoryError(), "out of memory"),
        (lambda path: RecursionError("too deep"), "too deep"),
    ],
)
@pytest.mark.parametrize("moment", ["open", "read"])
def test_an_error_while_a_member_is_read(
    series: Path, moment: str, fault: Fault, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name = (checkpoints, "open_shard") if moment == "open" else (checkpoints.SafetensorsShard, "read")
    right = getattr(owner, name)

    def broken(first: Path | Shard, *others: object) -> object:
        path = first if isinstance(first, Path) else first.path
        if "step2" in str(path):
            raise fault(path)
        return right(first, *others)

    monkeypatch.setattr(owner, name, broken)
    tables = joma.track(str(series)).tables
    assert tables["checkpoints"].set_index("checkpoint")["measured"].to_dict() == {
        "step1": True,
        "step2": False,
        "step3": True,
    }
    lost = tables["notes"][tables["notes"]["lost"]]
    assert set(lost["checkpoint"]) == {"step2"}
    assert words in lost["text"].iloc[0]


def test_an_interruption_is_none(series: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(measured, "weights_table", interrupted)
    with pytest.raises(KeyboardInterrupt):
        joma.track(str(series))


def test_a_full_disk_ends_the_series(series: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would lose every checkpoint; none is told to be unreadable for it."""

    def full(*_: object) -> None:
        raise DiskFullError("the disk is full")

    monkeypatch.setattr(measured, "weights_table", full)
    with pytest.raises(DiskFullError):
        joma.track(str(series))


def test_a_trainer_that_keeps_the_last_two(series: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is removed when the one after the next is measured: all have their ranks, and those that are
    there with one before them their changes."""
    attacks.honest(series, (4, 5))
    right = measured.weights_table

    def removing(checkpoint: checkpoints.Checkpoint, *others: object) -> object:
        table = right(checkpoint, *others)  # type: ignore[arg-type]
        before = series / f"step{int(checkpoint.path.name[4:]) - 2}"
        shutil.rmtree(before, ignore_errors=True)
        return table

    monkeypatch.setattr(measured, "weights_table", removing)
    tables = joma.track(str(series)).tables
    assert tables["checkpoints"]["measured"].all()
    assert not tables["notes"]["lost"].any()
    changes = tables["values"][tables["values"]["metric"] == "change_norm"]
    assert set(changes["checkpoint"]) == {"step2", "step3", "step4", "step5"}
    assert set(changes[changes["checkpoint"] == "step5"]["against"]) == {"previous"}


def test_a_step_that_no_table_holds(series: Path) -> None:
    shutil.copytree(series / "step1", series / "step999999999999999M")
    os.utime(series / "step3" / "model.safetensors", (10.0**11, 10.0**11))
    tables = joma.track(str(series)).tables
    assert tables["checkpoints"]["measured"].sum() == 3
    assert "step999999999999999M tells no step" in tables["notes"]["text"].str.cat(sep=" ")
