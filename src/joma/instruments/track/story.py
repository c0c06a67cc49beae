"""What happened along a series, in one sentence made of the curves that move beyond noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from joma.instruments.track.curves import CURVE
from joma.measures.attention.statistics import ATTENTION_ENTROPY

_SHOWN = 2
_NAMES = {
    "loss": "the loss",
    "stable_rank": "the stable rank",
    ATTENTION_ENTROPY: "the attention entropy",
    "spectral_entropy": "the spectral entropy",
}
_SCATTER = 1.4826 / 6**0.5
"""From the median size of second differences to the deviation of noise without memory."""
_AWAY = 6.0
"""Standard errors by which a curve's ends differ that is said to rise: many curves are looked at."""
_LEAST_POINTS = 8
_LEAST_CHANGE = 0.005
"""The least relative change that a sentence tells: smaller ones do not show in three digits."""
_LEAST_SHARE = 0.02
"""The least change of a share of the mass that a sentence tells."""
FIRST_KEY = "first_key_share"
"""Metric of the section ``received_attention``: the share of the mass that the first key seen receives."""


def what_happened(tables: Mapping[str, pd.DataFrame]) -> str:
    """The largest changes of each kind of curve, or that none is beyond noise; empty where none was judged.

    Of every metric and matrix, the curve with the largest relative change among those that fall, or dip and
    bounce, beyond their null, and those that rise by more than their scatter. A loss that rises comes first.
    """
    if not (tables["bounces"]["points"] >= _LEAST_POINTS).any():
        return ""
    ordered = largest_changes(tables)
    some = [change.words() for change in ordered[:_SHOWN]]
    sinks = when_sinks_arose(tables["values"])
    told_first = some or ["no curve falls, rises or bounces beyond noise"]
    sentence = "; ".join([*told_first, *([sinks] if sinks else [])])
    return f"{sentence[0].upper()}{sentence[1:]}."


def largest_changes(tables: Mapping[str, pd.DataFrame]) -> list[Change]:
    """Of every metric and matrix the curve that changes most beyond noise; a loss that rises before all."""
    judged = tables["bounces"]
    judged = judged[judged["points"] >= _LEAST_POINTS]
    curves = {key: rows.sort_values("step") for key, rows in _by_curve(tables["values"])}
    told = [Change(row, curves[key]) for key, row in _rows(judged) if key in curves]
    told = [change for change in told if change.is_real() and change.size >= _LEAST_CHANGE]
    largest: dict[tuple[str, str], Change] = {}
    for change in sorted(told, key=lambda one: -one.size):
        largest.setdefault(change.kind, change)
    return sorted(largest.values(), key=lambda one: not one.is_loss_that_rises())


def when_sinks_arose(values: pd.DataFrame) -> str:
    """How the mass of the first key moved along the first series, and when half of that was done.

    Empty without the section ``received_attention``, or where the mean over layers and heads hardly moves.
    """
    own = values[(values["series"] == "A") & (values["metric"] == FIRST_KEY)]
    mean = own.groupby("step")["value"].mean().sort_index()
    if len(mean) < 2 or abs(mean.iloc[-1] - mean.iloc[0]) < _LEAST_SHARE:
        return ""
    first, last = float(mean.iloc[0]), float(mean.iloc[-1])
    done = (mean - first) / (last - first)
    half = int(done.index[done >= 0.5][0])
    return (
        f"the first key receives {first:.2f} of the attention at step {int(mean.index[0])} and {last:.2f} at "
        f"step {int(mean.index[-1])}, half of the change by step {half}"
    )


class Change:
    """How one curve moved: from its first value to its lowest, and back where it bounces; or upward."""

    def __init__(self, row: Mapping[str, Any], values: pd.DataFrame) -> None:
        values = values[np.isfinite(values["value"].to_numpy(float))]
        known = values["value"].to_numpy(float)
        lowest = int(known.argmin())
        self._row, self._known = row, known
        self._first, self._last, self.lowest = float(known[0]), float(known[-1]), float(known[lowest])
        self._step, self._end = int(values["step"].iloc[lowest]), int(values["step"].iloc[-1])
        self.kind = (str(row["metric"]), str(row["matrix"]))
        self.rises = row["verdict"] not in ("bounces", "only falls")
        to = self._last if self.rises else self.lowest
        self.size = abs(self._first - to) / max(abs(self._first), abs(to), 1e-300)

    def is_real(self) -> bool:
        """Whether it falls or bounces beyond its null, or ends far above where it began."""
        if not self.rises:
            return True
        quarter = max(2, len(self._known) // 4)
        ends = self._known[:quarter], self._known[-quarter:]
        scatter = float(np.median(np.abs(np.diff(self._known, n=2)))) * _SCATTER
        away = float(ends[1].mean() - ends[0].mean())
        return self._last > self._first and away > _AWAY * scatter * np.sqrt(2 / quarter)

    def is_loss_that_rises(self) -> bool:
        """Whether the model gets worse."""
        return self.rises and self.kind[0] == "loss"

    def certainty(self) -> str:
        """How rarely chance moves a curve so far."""
        if self.rises:
            return f"beyond {_AWAY:g} standard errors of its scatter"
        dip, back = self._row["dip_probability"], self._row["rebound_probability"]
        rebound = f", such a return with p = {back:.2g}" if self._row["verdict"] == "bounces" else ""
        return f"noise alone falls so far with p = {dip:.2g}{rebound}"

    def extreme(self) -> float:
        """The value that it reached."""
        return self._last if self.rises else self.lowest

    def place(self) -> str:
        """``layer 3, head 1``, as far as the curve has one."""
        where = [f"{name} {int(self._row[name])}" for name in ("layer", "head") if _rows_of(self._row[name])]
        return ", ".join(where)

    def words(self, *, placed: bool = True) -> str:
        """The change as a clause: what, where (unless that is said beside it), from what to what, by when."""
        what = _NAMES.get(self.kind[0], self.kind[0].replace("_", " "))
        if self.kind[1] not in ("", "attention"):
            what += f" of {self.kind[1]}"
        of = f" ({self.place()})" if placed and self.place() else ""
        if self.rises:
            return f"{what}{of} rose from {self._first:.3g} to {self._last:.3g} by step {self._end}"
        said = f"{what}{of} fell from {self._first:.3g} to {self.lowest:.3g} by step {self._step}"
        if self._row["verdict"] == "bounces" and f"{self._last:.3g}" != f"{self.lowest:.3g}":
            said += f" and was back at {self._last:.3g} in the end"
        return said


def _rows_of(value: Any) -> bool:
    return not pd.isna(value) and value != ""


def _key(values: Any) -> tuple[str, ...]:
    return tuple("" if pd.isna(value) else str(value) for value in values)


def _by_curve(values: pd.DataFrame) -> list[tuple[tuple[str, ...], pd.DataFrame]]:
    return [(_key(key), rows) for key, rows in values.groupby(list(CURVE), dropna=False, sort=False)]


def _rows(table: pd.DataFrame) -> list[tuple[tuple[str, ...], Mapping[str, Any]]]:
    rows: list[dict[str, Any]] = table.to_dict("records")
    return [(_key(row[name] for name in CURVE), row) for row in rows]
