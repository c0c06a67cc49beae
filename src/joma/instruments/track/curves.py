"""What runs along a series: one curve per layer, head and statistic; its dip, its bounce, its warnings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import false_discovery_control

from joma.core.arguments import Array
from joma.measures.bounce import bounce
from joma.measures.bounce.found import RESAMPLES

CURVE = ("series", "line", "stack", "layer", "expert", "head", "matrix", "metric", "against")
"""The columns that tell one curve from another."""
_LEAST_POINTS = 8
FALSE_DISCOVERIES = 0.05
"""Of the curves of a table that are said to fall, or to bounce: the share that may be chance."""
_MOST_RESAMPLES = 20_000


@dataclass(frozen=True)
class Curve:
    """One statistic along one line of a series."""

    key: dict[str, str | float]
    """Its values of ``CURVE``."""
    steps: Array
    values: Array


def curves_of(values: pd.DataFrame) -> Iterator[Curve]:
    """The curves of a table of values, in its order, without what is not finite."""
    for key, rows in values.groupby(list(CURVE), sort=False, dropna=False):
        kept = rows[np.isfinite(rows["value"].to_numpy(float))].sort_values("step")
        if len(kept):
            yield Curve(
                dict(zip(CURVE, key, strict=True)),
                kept["step"].to_numpy(float),
                kept["value"].to_numpy(float),
            )


def bounces(values: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Dip and bounce of every curve that ``joma.bounce`` can judge, each with its null.

    Returns:
        One row per curve: the columns of ``CURVE``, then ``points, dip_step, dip_from, dip_to`` (the
        neighbours between which the lowest point must lie)``, dip_depth, dip_probability, dip_null,
        rebound_step, rebound, rebound_probability, rebound_null, dip_discovery, rebound_discovery,
        verdict``. Many curves are a family: of 39 one has a probability of .03 by chance. ``..._discovery``
        is the least false discovery rate at which the curve still counts among all judged curves (Benjamini
        and Hochberg), and the verdict is ``bounces`` where both are below 0.05, else ``only falls``, ``no
        dip``, or ``cannot tell`` (fewer than 8 points; a rebound that slower noise makes too, or a spike at
        its last point; one that would count alone, and not among so many).
    """
    rows = []
    curves = list(curves_of(values))
    # Of many curves one must be far rarer than one in twenty to count.
    resamples = min(max(RESAMPLES, 2 * round(len(curves) / FALSE_DISCOVERIES)), _MOST_RESAMPLES)
    for curve in curves:
        row: dict[str, str | float] = {**curve.key, "points": len(curve.steps)}
        if len(curve.steps) < _LEAST_POINTS or np.ptp(curve.values) == 0.0:
            short = len(curve.steps) < _LEAST_POINTS
            rows.append({**row, "verdict": "cannot tell" if short else "no dip"})
            continue
        found = bounce(curve.steps, curve.values, seed=seed, resamples=resamples)
        dip = int(np.searchsorted(curve.steps, found.main.step))
        rows.append(
            {
                **row,
                "dip_step": found.main.step,
                "dip_from": curve.steps[max(0, dip - 1)],
                "dip_to": curve.steps[min(len(curve.steps) - 1, dip + 1)],
                "dip_depth": found.main.depth,
                "dip_probability": found.dip_probability,
                "dip_null": found.dip_null,
                "rebound_step": found.main.rebound_step,
                "rebound": found.main.rebound,
                "rebound_probability": found.rebound_probability,
                "rebound_null": found.rebound_null,
                "verdict": "cannot tell" if found.cannot_tell else "",
            }
        )
    numbers = ["dip_step", "dip_from", "dip_to", "dip_depth", "dip_probability", "dip_null"]
    numbers += ["rebound_step", "rebound", "rebound_probability", "rebound_null"]
    numbers += ["dip_discovery", "rebound_discovery"]
    return _judge_curves(pd.DataFrame(rows, columns=[*CURVE, "points", *numbers, "verdict"]))


def _judge_curves(table: pd.DataFrame) -> pd.DataFrame:
    """With the false discovery rates of its curves, and the verdicts that were open."""
    measured = table["dip_probability"].notna()
    for move in ("dip", "rebound"):
        alone = table.loc[measured, f"{move}_probability"].to_numpy(float)
        table.loc[measured, f"{move}_discovery"] = false_discovery_control(alone) if len(alone) else alone
    falls, rises = (table[f"{move}_discovery"] < FALSE_DISCOVERIES for move in ("dip", "rebound"))
    only_alone = ~rises & (table["rebound_probability"] < FALSE_DISCOVERIES)
    verdicts = np.select(
        [falls & rises, falls & only_alone, falls], ["bounces", "cannot tell", "only falls"], "no dip"
    )
    return table.assign(verdict=table["verdict"].where(table["verdict"] != "", verdicts))


def early_warnings(values: pd.DataFrame, window: int) -> pd.DataFrame:
    """Variance and lag-1 correlation over the last ``window`` neighbours: signs of a transition to come.

    Both rise as a system loses stability (Scheffer et al., "Early-warning signals for critical transitions",
    Nature 461 (2009) 53). A straight line is taken out of each window first.

    Returns:
        Rows ``series, line, ..., metric`` (the statistic's, with ``variance of`` or ``lag-1 of`` before)
        ``, step, value``; none of curves shorter than the window.
    """
    tables = [
        pd.DataFrame(
            {
                **curve.key,
                "metric": f"{sign} of {curve.key['metric']}",
                "step": curve.steps[window - 1 :],
                "value": numbers,
            }
        )
        for curve in curves_of(values)
        if len(curve.steps) >= window
        for sign, numbers in zip(("variance", "lag-1"), _signs(curve, window), strict=True)
    ]
    columns = [*CURVE, "step", "value"]
    return pd.concat(tables, ignore_index=True)[columns] if tables else pd.DataFrame(columns=columns)


def _signs(curve: Curve, window: int) -> tuple[Array, Array]:
    number = np.arange(window) - (window - 1) / 2
    parts = np.lib.stride_tricks.sliding_window_view(curve.values, window)
    centred = parts - parts.mean(axis=1, keepdims=True)
    residuals = centred - np.outer(centred @ number / (number @ number), number)
    squares = (residuals**2).sum(axis=1)
    # What is left of a straight line is rounding, and its correlation means nothing.
    flat = squares <= (1e-12 * np.abs(parts).max(axis=1)) ** 2 * window
    with np.errstate(invalid="ignore", divide="ignore"):
        lag = (residuals[:, 1:] * residuals[:, :-1]).sum(axis=1) / squares
    return squares / (window - 2), np.where(flat, np.nan, lag)


def side_by_side(values: pd.DataFrame, align: str) -> pd.DataFrame:
    """Two series, curve by curve, at the points of the first; the second is interpolated between its own.

    Args:
        values: with the column ``series`` (``A`` or ``B``), and the column ``align``.
        align: ``step``, ``tokens`` or ``loss``.

    Returns:
        The columns that tell a curve, then ``at`` (in the unit of ``align``)``, value, against, difference``;
        only where both series have been.
    """
    key = [name for name in CURVE if name != "series"]
    # Numbers for what has no layer or head, since nothing equals a missing value.
    values = values.assign(**{name: values[name].astype("Int64").fillna(-1) for name in ("layer", "head")})
    first, second = (dict(iter(values[values["series"] == s].groupby(key, sort=False))) for s in ("A", "B"))
    tables = []
    for keys in (keys for keys in first if keys in second):
        a, b = (one[keys].dropna(subset=[align, "value"]).sort_values(align) for one in (first, second))
        a = a[a[align].between(b[align].min(), b[align].max())]
        if len(a) and len(b):
            theirs = np.interp(a[align], b[align], b["value"])
            named = dict(zip(key, keys, strict=True))
            compared = {
                "at": a[align],
                "value": a["value"],
                "other": theirs,
                "difference": a["value"] - theirs,
            }
            tables.append(pd.DataFrame({**named, **compared}))
    columns = [*key, "at", "value", "other", "difference"]
    if not tables:
        return pd.DataFrame(columns=columns)
    found = pd.concat(tables, ignore_index=True)[columns]
    return found.assign(
        **{name: found[name].replace(-1, pd.NA).astype("Int64") for name in ("layer", "head")}
    )
