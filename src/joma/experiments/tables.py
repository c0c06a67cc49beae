"""Tables whose rows come from one function and are told apart by a column ``table``."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

Row = dict[str, str | float | int | None]
"""A row of a table that is being made: column -> value."""
Rows = list[Row]


def by_table(parts: Iterable[pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The parts' rows, apart by their column ``table``, each with the columns that its rows use."""
    everything = pd.concat(parts, ignore_index=True)
    return {
        str(name): rows.drop(columns="table").dropna(axis="columns", how="all").reset_index(drop=True)
        for name, rows in everything.groupby("table", sort=False)
    }
