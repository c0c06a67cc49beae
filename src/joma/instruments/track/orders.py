"""When the layers fall and return, and whether in their order: the tables ``dates`` and ``orders``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from joma.core.arguments import Array
from joma.instruments.track.waves import half_back, half_fallen, layer_order
from joma.measures.attention.statistics import ATTENTION_ENTROPY

_MATRICES = ("lower", "gate", "query", "key", "value", "output", "query_key")
_FOLLOWED = [
    *(("stable_rank", matrix) for matrix in _MATRICES),
    ("spectral_entropy", "query_key"),
    (ATTENTION_ENTROPY, "attention"),
]
_MOVES: dict[str, Callable[[Array, Array], float]] = {"fall": half_fallen, "return": half_back}
KEY = ("series", "line", "stack", "metric", "matrix")
COLUMNS = [*KEY, "move", "layers", "correlation", "null", "probability"]


def layer_curves(values: pd.DataFrame) -> pd.DataFrame:
    """The statistics whose order is asked for, as means over a layer's heads and experts."""
    rows = values[values["layer"].notna() & (values["against"] == "")]
    followed = pd.MultiIndex.from_frame(rows[["metric", "matrix"]]).isin(_FOLLOWED)
    grouped = rows[followed].groupby([*KEY, "layer", "step"], sort=False)
    return grouped["value"].mean().reset_index()


def dates(curves: pd.DataFrame, key: Sequence[str] = KEY) -> pd.DataFrame:
    """When each layer has done half of its fall, and half of its return.

    Returns:
        Rows ``..., layer, move`` (``fall`` or ``return``)``, step, step_from, step_to``: the date, between
        checkpoints taken for straight, and the checkpoints around it; NaN where a layer does not move so.
    """
    rows = []
    for keys, one in curves.sort_values("step").groupby([*key, "layer"], sort=True):
        steps, values = one["step"].to_numpy(float), one["value"].to_numpy(float)
        for move, date_of in _MOVES.items():
            date = date_of(steps, values)
            after = int(np.searchsorted(steps, date)) if np.isfinite(date) else 0
            around = (steps[max(0, after - 1)], steps[after]) if after else (np.nan, np.nan)
            rows.append([*keys, move, date, *around])
    return pd.DataFrame(rows, columns=[*key, "layer", "move", "step", "step_from", "step_to"])


def orders(found: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Spearman's correlation of layer and date (``dates``) beside the 95 % point of shuffled layers.

    Returns:
        Rows ``series, line, stack, metric, matrix, move, layers, correlation, null, probability``; none
        where fewer than four layers move.
    """
    rows = []
    for key, own in found.groupby([*KEY, "move"], sort=False):
        order = layer_order([own.sort_values("layer")["step"].to_numpy(float)], seed)
        if order is not None:
            rows.append([*key, order.layers, order.correlation, order.null, order.probability])
    return pd.DataFrame(rows, columns=COLUMNS)
