"""A row per layer of a series: what one looks at first, and what a page shows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from joma.measures.attention.statistics import ATTENTION_ENTROPY

_STATISTICS = {"rank": ("stable_rank", "lower"), "entropy": (ATTENTION_ENTROPY, "attention")}


def layer_summary(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Of the first series, by line and layer: ``rank`` (stable, lower MLP) and ``entropy`` (nats).

    Of each, as far as it was measured: ``..._first, ..._lowest, ..._last`` along the steps; ``..._bounces``,
    the share of the layer's curves that dip and bounce beyond their null; of the rank ``half_fall`` and
    ``half_return``, the steps of the table ``dates``.
    """
    columns: dict[str, pd.Series] = {}
    values, found, moves = (tables[name] for name in ("values", "bounces", "dates"))
    for name, (metric, matrix) in _STATISTICS.items():
        rows = _of(values, metric, matrix).sort_values("step")
        if rows.empty:
            continue
        by_layer = rows.groupby(["line", "layer", "step"])["value"].mean().groupby(["line", "layer"])
        columns |= {f"{name}_first": by_layer.first(), f"{name}_lowest": by_layer.min()}
        columns[f"{name}_last"] = by_layer.last()
        judged = _of(found, metric, matrix)
        judged = judged[judged["verdict"] != "cannot tell"]
        bouncing = (judged["verdict"] == "bounces").groupby([judged["line"], judged["layer"]]).mean()
        columns[f"{name}_bounces"] = bouncing.reindex(by_layer.first().index)
    dated = _of(moves, *_STATISTICS["rank"]).groupby(["line", "layer", "move"])["step"].first()
    for move in ("fall", "return"):
        if move in dated.index.get_level_values("move"):
            columns[f"half_{move}"] = dated.xs(move, level="move")
    if not columns:
        return pd.DataFrame({"layer": np.array([], dtype=np.int64)})
    table = pd.DataFrame(columns).rename_axis(["line", "layer"]).reset_index()
    return table.drop(columns="line") if (table["line"] == "").all() else table


def _of(table: pd.DataFrame, metric: str, matrix: str) -> pd.DataFrame:
    rows = table[(table["series"] == "A") & (table["metric"] == metric) & (table["matrix"] == matrix)]
    return rows[rows["layer"].notna()]
