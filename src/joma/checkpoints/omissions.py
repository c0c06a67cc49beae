"""What a table of weights leaves out: rows of metric ``omitted``, and matrices that are zero."""

from __future__ import annotations

import pandas

OMITTED = "omitted"
"""The metric of rows that stand for a tensor that was not measured: its name stands in ``matrix``."""


def left_out(table: pandas.DataFrame) -> str:
    """A sentence that names what a table of ``joma.probe_weights`` leaves out, or nothing."""
    rows = table[table["metric"] == OMITTED]
    if rows.empty:
        return ""
    by_reason = rows.groupby("reason", sort=False)["matrix"].agg(list)
    named = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
    return f"left out: {named}."


def is_whole(table: pandas.DataFrame) -> bool:
    """Whether all that was asked for was measured: no zero matrix, none that could not be read."""
    omitted = table["metric"] == OMITTED
    return not bool((omitted & (table["tensor"] != "")).any() or table["value"].isna().any())
