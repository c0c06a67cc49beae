"""The recorded series of each branch, and the rules of others as functions of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joma.measures.change import published

Array = NDArray[np.float64]

LOSS_CUSUM = "loss CUSUM(6, 1)"
KURTOSIS = "kurtosis 3 MAD"


@dataclass(frozen=True)
class History:
    """The same branch of several bases, with all that came before it.

    ``values``: column -> (steps, bases), or (steps, bases, places) for what is seen per head or block.
    """

    values: Mapping[str, Array]
    start: int
    """The branch's first step; 0 for a base."""

    def looks(self, cadence: int) -> NDArray[np.int64]:
        """Steps that are looked at."""
        return np.arange(0, len(self.values["loss"]), cadence)


def histories(table: pd.DataFrame) -> dict[str, History]:
    """Branch -> history, of the series of one setting and side."""
    names = [name for name in table.columns[table.columns.get_loc("step") + 1 :] if table[name].notna().any()]
    places: dict[str, list[str]] = {}
    for name in names:
        places.setdefault(name.partition(".")[0], []).append(name)

    def cube(part: pd.DataFrame) -> dict[str, Array]:
        part = part.sort_values(["base", "step"])
        bases = part["base"].nunique()
        found = {}
        for metric, columns in places.items():
            values = part[columns].to_numpy(np.float64).reshape(bases, -1, len(columns)).swapaxes(0, 1)
            found[metric] = values if "." in columns[0] else values[..., 0]
        return found

    parts = {str(branch): part for branch, part in table.groupby("branch", sort=False)}
    base = cube(parts.pop("base"))
    start = len(base["loss"])
    found = {"base": History(base, 0)}
    for branch, part in parts.items():
        own = cube(part)
        found[branch] = History(
            {metric: np.concatenate([base[metric], own[metric]]) for metric in base}, start
        )
    return found


def with_nan(history: History, after: int = 50) -> History:
    """The same, but one step's forward pass gave no numbers and the optimizer skipped it."""
    values = {metric: value.copy() for metric, value in history.values.items()}
    for value in values.values():
        value[history.start + after] = np.nan
    return History(values, history.start)


# Rules: scores at the looks, one column a base

Scores = Callable[[History, int], Array]


@dataclass(frozen=True)
class Rule:
    """A score at each look, and the level of an alarm; None: the largest of healthy calibration runs."""

    name: str
    scores: Scores
    level: float | None
    at_cadence: bool = True
    """Whether it sees looks only; a loss and a gradient norm are read at every step."""


def _steps(metric: str, score: Callable[[Array], Array], window: int) -> Scores:
    """A rule that reads every step, its window the last steps before the branch."""

    def scores(history: History, cadence: int) -> Array:
        begin = max(history.start - window, 0)
        values = history.values[metric]
        found = np.full(values.shape, np.nan)
        found[begin:] = score(values[begin:])
        return found

    return scores


def _window_rule(metric: str, score: Callable[[Array, int], Array], window: int) -> Scores:
    """A rule over looks; its window, in steps, is at least five looks. The worst place counts."""

    def scores(history: History, cadence: int) -> Array:
        looks = max(5, window // cadence)
        seen = history.values[metric][history.looks(cadence)]
        begin = max(-(-history.start // cadence) - looks, 0)
        found = np.full(seen.shape, np.nan)
        found[begin:] = score(seen[begin:], looks)
        return _largest(found)

    return scores


def _level(metric: str, sign: float) -> Scores:
    return lambda history, cadence: _largest(sign * history.values[metric][history.looks(cadence)])


def _falling_cusum(values: Array, window: int) -> Array:
    return published.cusum(-values, window=window)


def _spectral(history: History, cadence: int) -> Array:
    """Distance of the spectral entropy, recorded every ten steps, from its mean over 100 steps before."""
    recorded = history.values["spectral_entropy"]
    known = np.isfinite(recorded[:: max(cadence, 10)])
    seen = np.where(known, recorded[:: max(cadence, 10)], np.nan)
    window = max(5, 100 // max(cadence, 10))
    begin = max(-(-history.start // max(cadence, 10)) - window, 0)
    mean = np.nanmean(seen[begin : begin + window], axis=0)
    deviation = np.nanstd(seen[begin : begin + window], axis=0)
    found = np.full((len(history.looks(cadence)), *recorded.shape[1:]), np.nan)
    found[:: max(cadence, 10) // cadence] = np.abs(seen - mean) / deviation
    return _largest(found)


def _largest(values: Array) -> Array:
    """Over places; NaN only where all are."""
    filled = np.where(np.isnan(values), -np.inf, values).max(axis=-1)
    return np.where(np.isneginf(filled), np.nan, filled)


_KURTOSIS = _window_rule(
    "residual_kurtosis", lambda x, window: published.absolute_deviations(x, window=window), 128
)
RULES = (
    Rule(LOSS_CUSUM, _steps("loss", lambda x: published.cusum(x, window=200), 200), 6.0, False),
    Rule("loss 6 sigma", _steps("loss", lambda x: published.deviations(x, window=128), 128), 6.0, False),
    Rule("loss twice its mean, five times", _steps("loss", published.lasting_rise, 104), 2.0, False),
    Rule(
        "gradient norm 6 sigma",
        _steps("gradient_norm", lambda x: published.deviations(x, window=128), 128),
        6.0,
        False,
    ),
    Rule(KURTOSIS, _KURTOSIS, 3.0),
    Rule("kurtosis, calibrated", _KURTOSIS, None),
    Rule("largest logit 100", _level("largest_logit", 1.0), 100.0),
    Rule("largest logit, calibrated", _level("largest_logit", 1.0), None),
    Rule("entropy floor, calibrated", _level("normalised_entropy", -1.0), None),
    Rule("residual rms, calibrated", _level("residual_rms", 1.0), None),
    Rule("entropy CUSUM, calibrated", _window_rule("normalised_entropy", _falling_cusum, 200), None),
    Rule("spectral entropy of the change of W_Q W_K, calibrated", _spectral, None),
)
"""All but joma's own. OLMo-core's share of spikes needs 10,000 steps before it says anything: not here."""
