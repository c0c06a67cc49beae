"""Tables whose rows come from one function and are told apart by a column ``table``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

Row = dict[str, str | float | int | None]
"""A row of a table that is being made: column -> value."""
Rows = list[Row]


def by_table(parts: Iterable[pd.DataFrame], *, counted: Sequence[str] = ()) -> dict[str, pd.DataFrame]:
    """The parts' rows, apart by their column ``table``, each with the columns that its rows use.

    Columns that are ``counted`` are whole numbers again, where another table left them empty.
    """
    tables = {}
    for name, rows in pd.concat(parts, ignore_index=True).groupby("table", sort=False):
        table = rows.drop(columns="table").dropna(axis="columns", how="all").reset_index(drop=True)
        tables[str(name)] = table.astype(dict.fromkeys(table.columns.intersection(counted), int))
    return tables
