"""Series of checkpoints made of curves, and the first sentence about them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from joma.instruments.track.curves import CURVE, bounces
from joma.instruments.track.story import what_happened
from joma.measures.attention.statistics import ATTENTION_ENTROPY

KINDS = {"rank": ("stable_rank", "lower"), "entropy": (ATTENTION_ENTROPY, "attention"), "loss": ("loss", "")}
NOISE = 0.02


def story_of(courses: Mapping[str, np.ndarray]) -> str:
    """What is said of these curves over steps, ten apart, with a little noise on each."""
    return what_happened(tables_of(courses))


def tables_of(courses: Mapping[str, np.ndarray], seed: int = 0) -> dict[str, pd.DataFrame]:
    """The tables ``values`` and ``bounces`` of a series with these curves; of its files nothing is told."""
    random = np.random.default_rng(seed)
    rows = []
    for name, course in courses.items():
        metric, matrix = KINDS[name]
        known = {"series": "A", "line": "", "layer": 0, "head": np.nan, "matrix": matrix, "metric": metric}
        given = {column: known.get(column, "") for column in CURVE}
        noisy = course + NOISE * random.standard_normal(len(course))
        rows += [{**given, "step": 10 * number, "value": value} for number, value in enumerate(noisy)]
    values = pd.DataFrame(rows)
    notes = pd.DataFrame(columns=["kind", "text", "lost"]).astype({"lost": bool})
    return {"values": values, "bounces": bounces(values), "notes": notes}
