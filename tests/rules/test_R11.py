"""R11: a rebound on the last point alone is no detection, and a family of curves is judged together."""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

import joma
from joma.instruments.track import curves
from joma.instruments.track.curves import CURVE, bounces
from joma.measures.bounce import bounce

SOURCE = "".join(path.read_text() for path in Path(joma.__file__).parent.rglob("*.py"))
WORDS = st.text(string.ascii_lowercase, min_size=6, max_size=12).filter(lambda word: word not in SOURCE)


def falling(points: int, speed: float, random: np.random.Generator) -> np.ndarray:
    return 3 * np.exp(-np.arange(points) / (speed * points)) + 0.02 * random.normal(size=points)


def table(rows: np.ndarray, metric: str) -> pd.DataFrame:
    """A curve in each row, as layers of one series."""
    steps = 10 * np.arange(rows.shape[1])
    parts = [
        pd.DataFrame({**dict.fromkeys(CURVE, ""), "metric": metric, "layer": i, "step": steps, "value": row})
        for i, row in enumerate(rows)
    ]
    return pd.concat(parts, ignore_index=True)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.integers(8, 120), st.floats(0.1, 0.5), st.floats(0.2, 100), st.booleans()
)
def test_whatever_the_last_point_is_it_alone_is_no_rebound(
    seed: int, points: int, speed: float, height: float, first: bool
) -> None:
    """Nor is what the first point alone makes a dip."""
    curve = falling(points, speed, np.random.default_rng(seed))
    curve[-1] += height
    found = bounce(np.arange(points), curve[::-1] if first else curve)
    assert (found.dip_probability if first else found.rebound_probability) >= 0.05


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(40, 60), WORDS)
def test_a_rise_over_several_last_points_is_one(seed: int, points: int, metric: str) -> None:
    """So that the rule is no silence: a third of the curve rises to fifty deviations, under any name."""
    curve = falling(points, 0.3, np.random.default_rng(seed))
    last = points // 3
    curve[-last:] += np.linspace(1 / last, 1, last)
    assert bounce(np.arange(points), curve).rebound_probability < 0.05
    assert bounces(table(curve[None], metric))["verdict"].tolist() == ["bounces"]


def test_of_many_curves_of_noise_hardly_one_bounces() -> None:
    """39 walks, ten times: some are below 0.05 alone, a family rarely has one."""
    random = np.random.default_rng(0)
    alone = families = 0
    for _ in range(10):
        rows = np.cumsum(random.normal(size=(39, 40)), axis=1)
        found = bounces(table(rows, "rank"))
        alone += int((found["rebound_probability"] < 0.05).sum())
        families += int((found["verdict"] == "bounces").any())
    assert alone >= 5
    assert families <= 1


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=30), WORDS)
def test_the_discovery_rate_is_that_of_benjamini_and_hochberg(alone: list[float], metric: str) -> None:
    """By the definition: the least over k >= rank of p_(k) n/k; one that cannot be judged is left out."""
    rows = pd.DataFrame(
        {
            "metric": metric,
            "dip_probability": [0.001] * len(alone) + [np.nan],
            "rebound_probability": [*alone, np.nan],
            "dip_discovery": np.nan,
            "rebound_discovery": np.nan,
            "verdict": [""] * len(alone) + ["cannot tell"],
        }
    )
    found = curves._judge_curves(rows)
    ordered = np.sort(alone)
    wanted = [
        min(1.0, *(p * len(alone) / (k + 1) for k, p in enumerate(ordered) if p >= one)) for one in alone
    ]
    assert found["rebound_discovery"].tolist()[:-1] == pytest.approx(wanted)
    assert wanted == pytest.approx(false_discovery_control(alone))
    assert np.isnan(found["rebound_discovery"].iloc[-1])
    for verdict, rate, one in zip(found["verdict"], wanted, alone, strict=False):
        expected = "bounces" if rate < 0.05 else "cannot tell" if one < 0.05 else "only falls"
        assert verdict == expected
    assert found["verdict"].iloc[-1] == "cannot tell"


def test_copies_of_one_run_do_not_make_it_certain() -> None:
    curve = falling(40, 0.3, np.random.default_rng(1))
    curve[-8:] += np.linspace(0.125, 1, 8)
    one, copies = bounce(np.arange(40), curve), bounce(np.arange(40), [curve, curve, curve])
    assert 0 < one.rebound_probability == pytest.approx(copies.rebound_probability, rel=1e-9)
