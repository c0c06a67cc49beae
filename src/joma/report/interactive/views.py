"""Which of a run's tables can be looked at by hand: maps of layer and head, and curves, over the steps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from joma.core.arguments import Array
from joma.report.interactive.encoding import encode

AXES = ("step", "time")
"""The columns over which values are followed; the first that a table has counts."""
ERRORS = ("error_bound", "standard_error")
"""The columns that bound a value's error; the first that a table has counts."""
_NO_LINES = {"metric", "value", "unit", "dtype", "count", *AXES, *ERRORS}
"""The columns that do not tell one line from another."""
_NAMES = ("head", "layer", "seed")
"""What names a line best: of columns that say the same, these stay, the last one longest."""
_MOST_LINES, _MOST_CELLS, _MOST_LEVELS = 200, 4096, 24
VIEWS, CURVES = 24, 8
"""Most views of one run; so many curves have a place whatever number of maps there is."""
POINTS = (160, 80, 40, 20, 10)
"""Most steps of a view; the first number at which it fits is taken."""


@dataclass(frozen=True)
class View:
    """One statistic, as a map of layer and head at each step or as curves over the steps."""

    name: str
    unit: str
    table: str
    axis: str
    """``step`` or ``time``; empty where a map has no moments."""
    moments: Array
    values: Array
    """Of shape (cells or lines, moments); NaN where nothing was measured."""
    errors: Array
    """Likewise, the bounds of the errors; NaN where none is known."""
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    """The names of a map's layers and heads."""
    by: Mapping[str, Sequence[str]] | None = None
    """What curves can be switched by, and the levels of each."""
    lines: Sequence[Sequence[int]] = ()
    """For each curve, which level of each."""

    def text(self, most: int) -> str:
        """The view as JSON, with at most so many moments, evenly spaced."""
        stride = max(1, -(-len(self.moments) // most))
        kept = np.arange(len(self.moments) - 1, -1, -stride)[::-1]  # the last one always
        values, errors = self.values[:, kept], self.errors[:, kept]
        if self.by is None:  # cell by cell within a step
            values, errors = values.T, errors.T
        letters = encode(values.ravel(), errors.ravel())
        shown = (
            "" if stride == 1 else f"Every {_ordinal(stride)} {self.axis} that was measured is shown here. "
        )
        fields = {
            "name": self.name,
            "unit": self.unit,
            "note": f"{shown}All values: table {self.table}.",
            "axis": self.axis,
            "steps": [_plain(moment) for moment in self.moments[kept]],
            "low": letters.low,
            "high": letters.high,
            "log": int(letters.logarithmic),
            "v": letters.values,
        }
        if letters.errors:
            fields |= {"e": letters.errors, "elow": letters.elow, "ehigh": letters.ehigh}
        shape = (
            {"rows": self.rows, "columns": self.columns}
            if self.by is None
            else {"by": self.by, "lines": self.lines}
        )
        # A name from a table may hold markup; in a script element only this character could end it.
        return json.dumps(fields | shape, separators=(",", ":")).replace("<", "\\u003c")


def views_of(tables: Mapping[str, pd.DataFrame]) -> list[View]:
    """The views that a run's tables give, maps first; none without values by layer and head, or by step."""
    maps, curves = [], []
    for name, table in tables.items():
        if "value" not in table or not pd.api.types.is_numeric_dtype(table["value"]):
            continue
        groups = table.groupby("metric", sort=False) if "metric" in table else [("value", table)]
        for metric, rows in groups:
            title = name if metric == "value" else str(metric).replace("_", " ")
            maps += list(_maps(name, title, rows))
            curves += list(_curves(name, title, rows))
    views = [*maps[: VIEWS - min(CURVES, len(curves))], *curves][:VIEWS]
    names = [view.name for view in views]
    return [
        replace(view, name=f"{view.name} ({view.table})") if names.count(view.name) > 1 else view
        for view in views
    ]


def fit(views: Sequence[View], size: int) -> str:
    """A JSON list of views that takes at most so many bytes; empty where none fits.

    What one view leaves is there for the next ones; one that does not fit in the least form is left out.
    """
    texts: list[str] = []
    left = size - 2
    for number, view in enumerate(views):
        share = left // (len(views) - number)
        text = next((text for most in POINTS if len(text := view.text(most)) < share), "")
        if text:
            texts.append(text)
            left -= len(text) + 1
    return f"[{','.join(texts)}]" if texts else ""


def _maps(table: str, title: str, rows: pd.DataFrame) -> Iterator[View]:
    """A map for each combination of what is neither layer nor head."""
    if not {"layer", "head"} <= set(rows.columns):
        return
    rows = rows[rows["layer"].notna() & rows["head"].notna()]
    axis = _axis(rows)
    names = [name for name in _identities(rows, axis) if name not in ("layer", "head")]
    for label, own in _split(rows, names):
        layers, heads = (_levels(own[name]) for name in ("layer", "head"))
        if not 1 < len(layers) * len(heads) <= _MOST_CELLS:
            continue
        cell = own["layer"].map(_index(layers)) * len(heads) + own["head"].map(_index(heads))
        grid = _grid(own, cell.to_numpy(int), len(layers) * len(heads), axis)
        if grid is not None:
            name = ", ".join([title, "layer by head", *label])
            yield View(name, _unit(own), table, axis, *grid, list(map(str, layers)), list(map(str, heads)))


def _curves(table: str, title: str, rows: pd.DataFrame) -> Iterator[View]:
    """One view of all lines over the steps, where they are few enough to be told apart."""
    axis = _axis(rows)
    names = _identities(rows, axis)
    if not axis or rows[axis].nunique() < 2:
        return
    levels = {name: _levels(rows[name]) for name in names}
    codes = np.stack(
        [np.zeros(len(rows), int), *(_codes(rows[name], levels[name]) for name in names)], axis=1
    )
    lines, which = np.unique(codes, axis=0, return_inverse=True)
    if len(lines) > _MOST_LINES:
        return
    grid = _grid(rows, which.ravel(), len(lines), axis)
    if grid is None:
        return
    shown = [n for n, name in enumerate(names) if 1 < len(levels[name]) <= _MOST_LEVELS]
    by = {names[n]: [_name(level) for level in levels[names[n]]] for n in shown}
    of_lines = [[int(line[n + 1]) for n in shown] for line in lines]
    yield View(f"{title}, curves", _unit(rows), table, axis, *grid, by=by, lines=of_lines)


def _axis(rows: pd.DataFrame) -> str:
    return next((name for name in AXES if name in rows and rows[name].notna().any()), "")


def _identities(rows: pd.DataFrame, axis: str) -> list[str]:
    """The columns that tell one line from another, without those that others or the moment determine.

    What has another value at each moment (a checkpoint's name) would leave single points.
    """
    several = rows[axis].nunique() > 1 if axis else False
    names = [
        str(name)
        for name in rows.columns
        if name not in _NO_LINES
        and rows[name].nunique(dropna=False) > 1
        and (not pd.api.types.is_float_dtype(rows[name]) or rows[name].nunique() <= _MOST_LEVELS)
        and not (several and name != axis and rows.groupby(name, dropna=False)[axis].nunique().max() == 1)
    ]
    distinct = rows[names].drop_duplicates()

    def worth(name: str) -> int:
        if name in _NAMES:
            return 3 + _NAMES.index(name)
        # A number that differs from line to line was measured, and names nothing; a run's name says what the
        # other columns say.
        measured = pd.api.types.is_float_dtype(rows[name]) and rows[name].nunique() == len(distinct)
        return 0 if measured else 1 if name == "run" else 2

    for name in sorted(names, key=worth):
        others = [other for other in names if other != name]
        if others and len(distinct[others].drop_duplicates()) == len(distinct):
            names = others
    return names


def _split(rows: pd.DataFrame, names: list[str]) -> Iterator[tuple[list[str], pd.DataFrame]]:
    if not names:
        yield [], rows
        return
    for key, own in rows.groupby(names, sort=False, dropna=False):
        told = [f"{name} {_name(level)}" for name, level in zip(names, key, strict=True) if _name(level)]
        yield told, own


def _grid(
    rows: pd.DataFrame, place: np.ndarray[tuple[int], np.dtype[np.int64]], places: int, axis: str
) -> tuple[Array, Array, Array] | None:
    """Moments, values and errors by place and moment; None where a place has two values at one moment."""
    moments = np.unique(rows[axis].dropna().to_numpy(float)) if axis else np.zeros(1)
    at = np.searchsorted(moments, rows[axis].to_numpy(float)) if axis else np.zeros(len(rows), int)
    if (at == len(moments)).any() or len(np.unique(place * len(moments) + at)) < len(rows):
        return None
    values, errors = np.full((2, places, len(moments)), np.nan)
    values[place, at] = rows["value"].to_numpy(float)
    known = next((name for name in ERRORS if name in rows), None)
    if known:
        errors[place, at] = pd.to_numeric(rows[known], errors="coerce").to_numpy(float)
    return (moments, values, errors) if np.isfinite(values).any() else None


def _levels(column: pd.Series[object]) -> list[object]:
    levels = list(column.dropna().unique())
    try:
        levels = sorted(levels)
    except TypeError:
        levels = sorted(levels, key=str)
    return [*levels, None] if column.isna().any() else levels


def _index(levels: Sequence[object]) -> dict[object, int]:
    return {level: number for number, level in enumerate(levels)}


def _codes(column: pd.Series[object], levels: Sequence[object]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    known = [level for level in levels if level is not None]
    return np.asarray(column.map(_index(known)).fillna(len(known)), dtype=np.int64)


def _unit(rows: pd.DataFrame) -> str:
    units = rows["unit"].dropna().unique() if "unit" in rows else []
    return str(units[0]) if len(units) == 1 else ""


def _name(level: object) -> str:
    if level is None or level is pd.NA or level != level:
        return "none"
    return f"{level:.4g}" if isinstance(level, float) else str(level)


def _plain(moment: float) -> float | int:
    return int(moment) if moment == int(moment) else float(f"{moment:.6g}")


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else endings.get(number % 10, 'th')}"
