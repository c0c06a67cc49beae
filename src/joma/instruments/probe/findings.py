"""What stands out in a probed model: heads and matrices far from others of their kind; what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from joma.instruments.probe import ProbeSettings
from joma.measures.attention.statistics import ATTENTION_ENTROPY
from joma.runs.finding import Finding

FARTHEST = 8.0
"""Robust deviations (1.4826 median absolute ones) from which on a head or matrix stands out."""
LEAST_SHARE = 0.1
"""Relative difference below which nothing stands out, however alike the others are."""
_FEWEST = 6
"""Values of one kind that are needed to say what is usual."""
_NAMED = 3
_ONE_KEY = 0.1
"""Share of the log of the keys below which a layer's attention lies on one key."""
_LAYER_ON_ONE_KEY, _LOST, _HEAD, _MATRIX = 70.0, 60.0, 50.0, 45.0


def findings(settings: ProbeSettings, tables: Mapping[str, pd.DataFrame]) -> list[Finding]:
    """Layers whose attention is on one key, heads and matrices that stand out, and what was not measured."""
    found = _layers(tables) + _heads(tables) + _matrices(tables)
    lost = settings.list_missing(tables)[:2]
    return found + [Finding(what=f"not measured: {one.rstrip('.')}", weight=_LOST) for one in lost]


def far_from_others(values: pd.Series[float]) -> pd.Series[float]:
    """Of values of one kind: how many robust deviations each lies from the median, where it stands out."""
    known = values[np.isfinite(values)]
    if len(known) < _FEWEST:
        return known.head(0)
    apart = known - known.median()
    scale = 1.4826 * float(apart.abs().median())
    if not scale > 0:
        return known.head(0)
    least = LEAST_SHARE * abs(known.median())
    far = apart[(apart.abs() > FARTHEST * scale) & (apart.abs() > least)]
    return (far / scale).sort_values(key=lambda one: -one.abs())


def _farthest_of(far: pd.Series[float]) -> list[tuple[Any, float]]:
    """Place and deviations of the farthest."""
    some = far.head(_NAMED)
    return list(zip(some.index.tolist(), some.tolist(), strict=True))


def _layers(tables: Mapping[str, pd.DataFrame]) -> list[Finding]:
    layers = tables.get("layers")
    if layers is None or "normalised" not in layers:
        return []
    low = layers[layers["normalised"] < _ONE_KEY]
    return [
        Finding(
            what=f"attention is on one key (entropy {row.normalised:.3f} of log n)",
            where=f"layer {row.layer}",
            metric="normalised_entropy",
            value=float(str(row.normalised)),
            certainty="a level, not a comparison",
            look_next="joma probe MODEL --sections received_attention: which key it is",
            weight=_LAYER_ON_ONE_KEY,
        )
        for row in low.itertuples()
    ][:_NAMED]


def _heads(tables: Mapping[str, pd.DataFrame]) -> list[Finding]:
    rows = tables.get("attention")
    if rows is None:
        return []
    rows = rows[rows["metric"] == ATTENTION_ENTROPY]
    heads = rows.groupby(["module", "layer", "head"])["value"].mean()
    apart = heads - heads.groupby(["module", "layer"]).transform("median")
    middle = float(heads.median())
    return [
        Finding(
            what=f"its attention entropy is {heads[place]:.3g} nats, its layer's median "
            f"{heads[place] - apart[place]:.3g}",
            where=f"layer {place[1]}, head {place[2]}",
            metric=ATTENTION_ENTROPY,
            value=float(heads[place]),
            unit="nats",
            certainty=f"{abs(deviations):.0f} robust deviations from the heads of its layer",
            look_next="joma.watch: what this head attends to (first_key_mass, previous_key_mass)",
            weight=_HEAD,
        )
        for place, deviations in _farthest_of(far_from_others(apart + middle))
    ]


def _matrices(tables: Mapping[str, pd.DataFrame]) -> list[Finding]:
    ranks = tables.get("ranks")
    if ranks is None or "matrix" not in ranks:
        return []
    ranks = ranks[ranks["metric"] == "stable_rank"]
    found = []
    for kind, own in ranks.groupby("matrix", sort=False):
        own = own.reset_index(drop=True)
        usual = float(own["value"].median())
        logs = np.log(own["value"].clip(lower=1e-12))
        far = far_from_others(logs - logs.median() + 1.0)
        found += [
            Finding(
                what=f"the stable rank of {kind} is {own['value'][row]:.3g}, "
                f"its median over layers {usual:.3g}",
                where=f"layer {own['layer'][row]}",
                metric="stable_rank",
                value=float(own["value"][row]),
                certainty=f"{abs(deviations):.0f} robust deviations of its logarithm",
                look_next="the same matrix at earlier checkpoints: joma track SERIES",
                weight=_MATRIX,
            )
            for row, deviations in _farthest_of(far)
        ]
    return found
