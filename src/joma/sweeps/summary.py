"""Means over seeds with their intervals, for every setting of a grid."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import t as student

from joma.core.errors import InputError
from joma.sweeps import SweepSettings

LEVEL = 0.95
_NOT_KEYS = frozenset({"cell", "run", "seed", "value", "error_bound", "unit", "dtype"})


def curves_of(tables: Mapping[str, pd.DataFrame]) -> str:
    """The first table with values along steps; empty where there is none."""
    return next((name for name, table in tables.items() if {"step", "metric", "value"} <= set(table)), "")


def summary(settings: SweepSettings, tables: Mapping[str, pd.DataFrame], name: str = "") -> pd.DataFrame:
    """A row per setting, measurement and step: ``mean``, ``low`` and ``high`` (95 %, Student), ``runs``.

    Heads are averaged first. With one seed there is no interval.

    Raises:
        InputError: no table has values along steps.
    """
    name = name or curves_of(tables)
    if not name or name not in tables:
        raise InputError(f"sweep: {settings.experiment} has no table of values along steps to average.")
    table = tables[name]
    varied = [
        axis
        for axis in next(iter(settings.varied_settings().values()))
        if axis in table and axis not in _NOT_KEYS
    ]
    beside = [
        c
        for c in ("depth", "learning_rate", "variant", "layer", "metric", "step")
        if c in table and c not in varied
    ]
    keys = [*varied, *beside]
    identity = [c for c in ("cell", "run", "seed") if c in table]
    per_run = table.groupby([*keys, *identity], dropna=False, sort=True)["value"].mean()
    grouped = per_run.groupby(keys, dropna=False, sort=True)
    found = grouped.agg(["mean", "std", "size"]).rename(columns={"size": "runs"})
    count = found["runs"].clip(lower=2).to_numpy()
    half = student.ppf((1 + LEVEL) / 2, count - 1) * found["std"].to_numpy() / np.sqrt(count)
    found["low"], found["high"] = found["mean"] - half, found["mean"] + half
    return found.drop(columns="std").reset_index()[[*keys, "mean", "low", "high", "runs"]]
