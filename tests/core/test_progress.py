from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterable

import pytest

from joma.core.progress import LINE_EVERY, Progress


class Clock:
    """Seconds as a test lets them pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def watched(
    steps: Iterable[int], seconds: float, *, quiet: bool = False, total: int | None = None, initial: int = 0
) -> None:
    """Loop over the steps, each as long as that."""
    clock = Clock()
    for _ in Progress(quiet=quiet, clock=clock).track(steps, "training", total=total, initial=initial):
        clock.now += seconds


def test_a_line_every_thirty_seconds_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    watched(range(10), LINE_EVERY / 2 + 1)
    assert capsys.readouterr().err.splitlines() == [
        "training: 2 of 10 (20 %), about 2 min left",
        "training: 4 of 10 (40 %), about 96 s left",
        "training: 6 of 10 (60 %), about 64 s left",
        "training: 8 of 10 (80 %), about 32 s left",
    ]


def test_lines_of_what_goes_on_and_of_what_has_no_end(capsys: pytest.CaptureFixture[str]) -> None:
    watched(range(7, 9), LINE_EVERY, total=9, initial=7)
    watched(iter(range(3)), LINE_EVERY)
    assert capsys.readouterr().err.splitlines() == [
        "training: 8 of 9 (88 %), about 30 s left",
        "training: 1 done in 30 s",
        "training: 2 done in 60 s",
    ]


@pytest.mark.parametrize(("seconds", "quiet"), [(LINE_EVERY, True), (1.0, False)])
def test_no_line_where_it_is_quiet_or_quick(
    seconds: float, quiet: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    watched(range(20), seconds, quiet=quiet)
    assert capsys.readouterr().err == ""


def test_a_bar_and_no_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", screen)
    watched(range(5), LINE_EVERY)
    assert "of 5" not in screen.getvalue()


def test_it_goes_to_other_processes() -> None:
    clock: Callable[[], float] = pickle.loads(pickle.dumps(Progress())).clock
    assert clock() > 0
