"""Which rows of the tables are which."""

from __future__ import annotations

import pandas as pd


def of_layers(curves: pd.DataFrame, metric: str = "index", given: str = "nothing") -> pd.DataFrame:
    """One variant of the curves: linear, without the first token, mean over heads."""
    chosen = (curves["metric"] == metric) & (curves["given"] == given) & (curves["scale"] == "linear")
    return curves[chosen & (curves["sink"] == "out") & curves["head"].isna()]
