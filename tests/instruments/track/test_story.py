"""The first sentence about a series says what happened in it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from joma.instruments.track.curves import CURVE, bounces
from joma.instruments.track.story import what_happened
from joma.measures.attention.statistics import ATTENTION_ENTROPY

STEPS = np.arange(0, 400, 10)
TIME = STEPS / 400
NOISE = 0.02 * np.random.default_rng(0).standard_normal((2, len(STEPS)))


def _story(**courses: np.ndarray) -> str:
    kinds = {"rank": ("stable_rank", "lower"), "entropy": (ATTENTION_ENTROPY, "attention")}
    kinds["sink"] = ("first_key_share", "received_attention")
    rows = []
    for name, values in courses.items():
        metric, matrix = kinds[name]
        known = {"series": "A", "line": "", "layer": 0, "head": np.nan, "matrix": matrix, "metric": metric}
        given = {column: known.get(column, "") for column in CURVE}
        rows += [{**given, "step": step, "value": v} for step, v in zip(STEPS, values, strict=True)]
    values = pd.DataFrame(rows)
    return what_happened({"values": values, "bounces": bounces(values)})


@pytest.mark.parametrize(
    ("course", "story"),
    [
        (10 - 6 * TIME, "The stable rank of lower (layer 0) fell from 10 to 4"),
        (10 - 6 * np.sin(np.pi * TIME), "and was back at 9.5"),
        (10 + 0 * TIME, "No curve falls, rises or bounces beyond noise."),
        (4 + 6 * TIME, "The stable rank of lower (layer 0) rose from 4 to 9.8"),
    ],
)
def test_falls_bounces_and_rest_are_told_apart(course: np.ndarray, story: str) -> None:
    said = _story(rank=course + NOISE[0])
    assert story in said
    assert ("back at" in said) == ("back at" in story)


def test_the_larger_change_comes_first() -> None:
    said = _story(entropy=3.2 - 0.5 * TIME + NOISE[0], rank=10 - 6 * TIME + NOISE[1])
    assert said.index("stable rank") < said.index("attention entropy")


def test_when_the_first_key_became_a_sink_is_told() -> None:
    """A step up at 200: before it 0.1, from there on 0.6."""
    said = _story(sink=np.where(STEPS < 200, 0.1, 0.6))
    assert "the first key receives 0.10 of the attention at step 0 and 0.60 at step 390" in said
    assert "half of the change by step 200" in said
    assert "first key" not in _story(sink=np.full(len(STEPS), 0.3))
