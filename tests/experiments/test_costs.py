"""What commands are said to cost is what was measured."""

from __future__ import annotations

import json
from importlib import resources

import pytest

from joma.experiments import catalog
from joma.experiments.costs import all_measured, in_words, measured_seconds


def test_what_is_stored_is_measured_of_what_there_is() -> None:
    stored = json.loads(resources.files("joma.experiments").joinpath("costs.json").read_text("utf-8"))
    assert set(stored) == {"experiments", "instruments", "machine"}
    assert set(stored["experiments"]) <= set(catalog.names())
    assert set(stored["instruments"]) == {"probe", "weights", "track", "neurons"}
    assert all(
        0.5 < seconds < 3600 for kind in ("experiments", "instruments") for seconds in stored[kind].values()
    )
    assert all_measured("experiments") == stored["experiments"]


def test_an_experiment_says_what_was_measured_and_else_an_estimate() -> None:
    costs = catalog.find("fig2").costs()
    seconds = measured_seconds("fig2")
    assert seconds is not None
    assert costs == {"quick": in_words(seconds), "paper": "about 10 s"}
    assert measured_seconds("toy") is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.3, "1 s"), (4.8, "5 s"), (12.3, "10 s"), (88.0, "90 s"), (100.0, "2 min"), (5400.0, "1.5 h")],
)
def test_as_exact_as_another_machine_allows(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
