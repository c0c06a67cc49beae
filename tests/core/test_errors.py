"""What errors say: the name that was meant, and nothing that was not."""

from __future__ import annotations

import pytest

from joma.core.errors import closest, nearest

SETTINGS = ["layers", "learning_rate", "record_every", "seeds", "runs", "steps", "quiet", "json"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("lr", "learning_rate"),
        ("--lr", "learning_rate"),
        ("rate", "learning_rate"),
        ("Record-Every", "record_every"),
        ("record_evry", "record_every"),
        ("seed", "seeds"),
        ("list", ""),
        ("x", ""),
        ("--", ""),
        ("l" * 10_000, ""),
    ],
)
def test_the_name_that_was_meant(name: str, meant: str) -> None:
    assert closest(name, SETTINGS) == meant
    said = nearest(name, SETTINGS)
    assert said == (f"did you mean {meant!r}?" if meant else "known are: " + ", ".join(sorted(SETTINGS)))


def test_of_two_with_the_same_word_the_likest_is_meant() -> None:
    assert closest("rate", ["learning_rate", "decay_rate", "rates"]) == "rates"
