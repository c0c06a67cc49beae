"""Whether the layers fall, and return, in their order: the table ``orders``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from joma.arguments import Array
from joma.probes.series.waves import half_back, half_fallen, layer_order

_MATRICES = ("lower", "gate", "query", "key", "value", "output", "query_key")
_FOLLOWED = [
    *(("stable_rank", matrix) for matrix in _MATRICES),
    ("spectral_entropy", "query_key"),
    ("entropy", "attention"),
]
_MOVES: dict[str, Callable[[Array, Array], float]] = {"fall": half_fallen, "return": half_back}
_KEY = ["series", "line", "stack", "metric", "matrix"]
COLUMNS = [*_KEY, "move", "layers", "correlation", "null", "probability"]


def layer_curves(values: pd.DataFrame) -> pd.DataFrame:
    """The statistics whose order is asked for, as means over a layer's heads and experts."""
    rows = values[values["layer"].notna() & (values["against"] == "")]
    followed = pd.MultiIndex.from_frame(rows[["metric", "matrix"]]).isin(_FOLLOWED)
    grouped = rows[followed].groupby([*_KEY, "layer", "step"], sort=False)
    return grouped["value"].mean().reset_index()


def dates(curves: pd.DataFrame, move: str) -> Array:
    """When each layer has done half of its fall or return, from the lowest up; NaN where it does not."""
    found = [
        _MOVES[move](one["step"].to_numpy(float), one["value"].to_numpy(float))
        for _, one in curves.sort_values(["layer", "step"]).groupby("layer")
    ]
    return np.array(found)


def orders(values: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Spearman's correlation of layer and date beside the 95 % point of shuffled layers.

    Returns:
        Rows ``series, line, stack, metric, matrix, move, layers, correlation, null, probability``; none
        where fewer than four layers move.
    """
    rows = []
    for key, curves in layer_curves(values).groupby(_KEY, sort=False):
        for move in _MOVES:
            order = layer_order([dates(curves, move)], seed)
            if order is not None:
                numbers = (order.layers, order.correlation, order.null, order.probability)
                rows.append([*key, move, *numbers])
    return pd.DataFrame(rows, columns=COLUMNS)
