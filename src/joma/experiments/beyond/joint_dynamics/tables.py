"""Which rows of the tables are which."""

from __future__ import annotations

import pandas as pd

from joma.instruments.probe.sections.index_rows import index_rows


def of_layers(curves: pd.DataFrame, metric: str = "index", given: str = "nothing") -> pd.DataFrame:
    """One variant of the curves: linear, without the first token, mean over heads."""
    rows = index_rows(curves, metric, given=given)
    return rows[rows["head"].isna()]
