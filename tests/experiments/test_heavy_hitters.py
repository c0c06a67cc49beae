"""The experiment ``heavy_hitters``: its correlations, and what turns its claims."""

from __future__ import annotations

import numpy as np
import pytest

from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.beyond.heavy_hitters import HeavyHitters
from joma.experiments.beyond.heavy_hitters.claims import GARBAGE, STATEMENTS
from joma.experiments.beyond.heavy_hitters.run import lift, partial_correlation

SMALL = HeavyHitters(steps=2, measure_every=1, width=16, heads=2, length=12, windows=3, batch=2)


def test_lift_counts_pairs_beside_chance() -> None:
    tokens = np.array([0, 1, 0, 1, 2, 2])
    found = lift(tokens, 3, 1)
    assert found[1, 0] == pytest.approx(2 * 5 / (2 * 2))  # 1 after 0 twice; 5 pairs, two of each
    assert found[0, 2] == 0.0


def test_what_position_explains_is_taken_out() -> None:
    rng = np.random.default_rng(0)
    place, own = np.arange(200.0), rng.normal(size=200)
    one, other = place + 5 * own, place + 5 * rng.normal(size=200)
    assert partial_correlation(one, other, []) > 0.9
    assert abs(partial_correlation(one, other, [place])) < 0.25
    assert partial_correlation(place + 20 * own, own, [place]) > 0.9


def test_claims_turn_on_garbage() -> None:
    tables = SMALL.run(Progress(quiet=True))
    curves = tables["curves"].copy()
    assert set(curves["metric"]) == {
        "hitter_share", "first_key_share", "cooccurrence", "shuffled_cooccurrence",
    }  # fmt: skip
    with style():
        SMALL.draw(tables)
    falls = curves["step"].map({0: 0.9, 1: 0.3, 2: 0.3})
    grows = curves["step"].map({0: 0.0, 1: 0.2, 2: 0.3})
    real = curves["metric"].map({"hitter_share": 1, "cooccurrence": 2}).fillna(0)
    made = curves.assign(value=falls.where(real == 1, grows.where(real == 2, 0.0)))
    assert {c.id: c.verdict for c in SMALL.claims({"curves": made})} == dict.fromkeys(STATEMENTS, "holds")
    turned = made.assign(step=2 - made["step"])
    turned["value"] = turned["value"].where(turned["metric"] != "cooccurrence", 0.0)
    assert {c.id: c.verdict for c in SMALL.claims({"curves": turned})} == dict.fromkeys(GARBAGE, "fails")
