"""How a series is named, and what is said of calls that make no sense."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

import joma
from joma.core.errors import InputError
from joma.core.figures import panels
from joma.instruments.reading.texts import windows
from joma.instruments.track import TrackSettings
from joma.instruments.track.figure import _by_layer
from joma.instruments.track.text import terminal_text


class _Images(torch.nn.Module):
    main_input_name = "pixel_values"


def test_a_folders_name_is_no_title(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert TrackSettings.of(model=".").heading() == "checkpoints in . along a training"
    assert TrackSettings.of(model="a/hub-name").heading() == "a/hub-name along its training"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: joma.track(".", text=3), "track: text = 3 is not a text"),
        (lambda: joma.track(3), r"track: the series \[3\] holds what is no path"),
        (lambda: joma.track([]), "track: the series is empty"),
        (lambda: windows("abc"), "no tokenizer; give one \\(--tokenizer NAME"),
        (lambda: windows("abc", model=_Images()), "_Images reads pixel_values and no text"),
    ],
)
def test_one_sentence_says_what_is_wrong(call: object, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        call()  # type: ignore[operator]
    assert not str(caught.value).startswith("joma")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("layers", [[2], [2.12], [0, 1, 2], [0, 30]])
def test_a_layers_axis_has_whole_ticks(layers: list[float]) -> None:
    _, axes = panels()
    axes[0, 0].plot(range(len(layers)), layers, "o", label="dips")
    _by_layer(axes[0, 0], "")
    low, high = axes[0, 0].get_ylim()
    ticks = [tick for tick in axes[0, 0].get_yticks() if low <= tick <= high]
    assert ticks
    assert all(tick == round(tick) for tick in ticks)


def test_notes_fit_into_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    members = pd.DataFrame({"checkpoint": ["a"], "step": 1, "bytes": 2, "same_as": "", "measured": True})
    notes = pd.DataFrame({"kind": ["left out"], "text": "a matrix " * 40, "lost": False})
    found = pd.DataFrame({"verdict": ["no dip"]})
    text = terminal_text(
        TrackSettings.of(model="run"), {"checkpoints": members, "notes": notes, "bounces": found}
    )
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("a matrix") + text.count("a\n    matrix") == 40
