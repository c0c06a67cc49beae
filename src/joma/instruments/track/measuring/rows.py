"""One measurement of a checkpoint, and many of them as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd


class Row(NamedTuple):
    """One measurement, or, of metric ``omitted``, what could not be measured."""

    layer: int | None
    stack: str
    expert: str
    head: int | None
    matrix: str
    metric: str
    against: str
    """What it is compared with: ``previous``, ``first``, or nothing."""
    value: float
    unit: str
    error_bound: float | None
    dtype: str
    """As stored."""
    tensor: str = ""
    """The tensor that was asked for, where it could not be measured."""
    reason: str = ""


_NUMBERS = ("value", "error_bound")
_WHOLE = ("layer", "head")


def table_of(rows: Sequence[Row]) -> pd.DataFrame:
    """The rows, in their order; a column at a time, since tables are made for every checkpoint."""
    columns: dict[str, pd.api.extensions.ExtensionArray | np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
    for number, name in enumerate(Row._fields):
        values = [row[number] for row in rows]
        if name in _NUMBERS:
            columns[name] = np.array(values, dtype=float)
        else:
            columns[name] = pd.array(values, dtype="Int64" if name in _WHOLE else "str")
    return pd.DataFrame(columns)
