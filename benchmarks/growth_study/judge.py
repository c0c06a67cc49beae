"""Bases and branches trained, labelled, and watched by the rule."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from growth_study.kinds import BRANCHES, RAMP, TWIN
from joma.experiments.beyond.alarm.intervals import median_bounds, share_bounds
from joma.experiments.beyond.alarm.labels import became
from joma.experiments.shared.tables import Row, Rows
from joma.instruments.monitor.alarms.messages import LARGE_LOGIT
from joma.instruments.monitor.measuring.gauge import READ_EVERY
from joma.measures.change.growth import Array, Forecast, GrowthState, add_reading, forecast_crossing
from joma.measures.change.loss import LossCusum

LOOKS_EVERY = 50
"""Steps between the looks that tell the largest logit for a forecast."""
DAMAGED = ("degraded", "collapsed")
DOUBLED = "rate x2"


def tables_of(parts: Iterable[pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Of the series of bases: ``runs``, a row a run; ``rates`` and ``leads`` over bases, with bounds."""
    runs = pd.concat([_judge_base(part) for part in parts], ignore_index=True)
    runs = runs.sort_values(["kind", "base"], kind="stable", ignore_index=True)
    return {"runs": runs, "rates": _rates(runs), "leads": _leads(runs)}


def quiet_bases(runs: pd.DataFrame) -> tuple[int, int]:
    """Bases with an alarm in a healthy run (a doubled rate aside), and all bases."""
    names = {"base", *(branch.name for branch in BRANCHES if branch.kind == "healthy")} - {DOUBLED}
    healthy = runs[runs["branch"].isin(names)]
    said = healthy.groupby(["kind", "base"])["alarm"].apply(lambda alarms: bool(alarms.notna().any()))
    return int(said.sum()), len(said)


def held_forecasts(runs: pd.DataFrame) -> tuple[int, int]:
    """Forecasts of a head's logit of 100 whose interval held it, and all of heads that reached it."""
    told = runs.dropna(subset=["forecast", "logit_100"])
    held = (told["logit_100"] >= told["low"]) & (told["logit_100"] <= told["high"])
    return int(held.sum()), len(told)


def _judge_base(part: pd.DataFrame) -> pd.DataFrame:
    """A row for each run of a base: label, first alarms, forecast."""
    branches = {str(name): own.dropna(axis=1, how="all") for name, own in part.groupby("branch", sort=False)}
    base = branches["base"]
    state, cusum = GrowthState(), LossCusum()
    losses = base["loss"].to_numpy(float)
    twin = branches[TWIN.name]["loss"].to_numpy(float)
    rows: Rows = []
    begun: tuple[GrowthState, LossCusum] | None = None
    for name, own in branches.items():
        if begun is not None:
            state, cusum = begun[0], copy.deepcopy(begun[1])
        found, state = _watch(own, state, cusum, None if name == "base" else base)
        if begun is None:
            begun = state, cusum
        loss = own["loss"].to_numpy(float)
        judged = None if name == "base" else became(loss, twin[: len(loss)], losses)
        rows.append(
            {
                "kind": str(own["kind"].iloc[0]),
                "base": int(own["base"].iloc[0]),
                "branch": name,
                "steps": len(own),
                "label": "healthy" if judged is None else judged.label,
                "onset": None if judged is None or judged.onset is None else float(judged.onset),
                "excess": None if judged is None else judged.excess,
                **found,
            }
        )
    numbers = ["onset", "excess", "alarm", "loss_cusum", "logit_100", "forecast", "low", "high"]
    return pd.DataFrame(rows).astype(dict.fromkeys(numbers, float))


def _watch(
    own: pd.DataFrame, state: GrowthState, cusum: LossCusum, base: pd.DataFrame | None
) -> tuple[Row, GrowthState]:
    """What rule and CUSUM say of a run; steps are those from its first."""
    norms, logits = (_columns(own, metric) for metric in ("log_norm", "largest_logit"))
    start = int(own["step"].iloc[0])
    found: Row = {"alarm": None, "forecast": None, "low": None, "high": None, "logit_100": None}
    largest = 0.0
    seen = logits[0], norms[0]
    if base is not None:
        last = start // LOOKS_EVERY * LOOKS_EVERY - (LOOKS_EVERY if start % LOOKS_EVERY == 0 else 0)
        seen = _columns(base, "largest_logit")[last], _columns(base, "log_norm")[last]
    for number, step in enumerate(own["step"].tolist()):
        if step % READ_EVERY:
            continue
        if step % LOOKS_EVERY == 0:
            seen = logits[number], norms[number]
        state, growth = add_reading(state, step, norms[number])
        score = growth.score if np.isfinite(growth.score) else 0.0
        largest = max(largest, score)
        if score >= 1 and found["alarm"] is None:
            head = growth.head
            found["alarm"] = float(step - start)
            logit = float(seen[0][head] * np.exp(norms[number][head] - seen[1][head]))
            ahead = forecast_crossing(step, logit, LARGE_LOGIT, growth.rate)
            found |= _forecast(ahead, logits[number:, head], step - start, start)
    alarms = [number for number, loss in enumerate(own["loss"].tolist()) if cusum.add(loss)]
    return {**found, "score": largest, "loss_cusum": float(alarms[0]) if alarms else None}, state


def _forecast(ahead: Forecast | None, after: Array, step: int, start: int) -> Row:
    """What was forecast, where the level was not reached yet, and when the head reached it."""
    if ahead is None or after[0] >= LARGE_LOGIT:
        return {}
    reached = np.flatnonzero(after >= LARGE_LOGIT)
    return {
        "forecast": ahead.at - start,
        "low": ahead.low - start,
        "high": ahead.high - start,
        "logit_100": float(step + reached[0]) if reached.size else None,
    }


def _columns(own: pd.DataFrame, metric: str) -> Array:
    names = [name for name in own if str(name).startswith(f"{metric}.")]
    return own[names].to_numpy(np.float64)


def _rates(runs: pd.DataFrame) -> pd.DataFrame:
    """Share of bases with an alarm, by kind and branch, with exact one-sided 95 % bounds; all kinds, too."""
    rows: Rows = []
    tables: Mapping[str, pd.DataFrame] = {
        "all": runs,
        **{str(name): own for name, own in runs.groupby("kind", sort=False)},
    }
    for kind, own in tables.items():
        for branch, of_branch in own.groupby("branch", sort=False):
            for metric, said, of in _shares(of_branch, str(branch)):
                low, high = share_bounds(said, of)
                value = said / of if of else float("nan")
                rows.append(
                    {
                        "kind": kind,
                        "branch": str(branch),
                        "metric": metric,
                        "value": value,
                        "count": said,
                        "of": of,
                        "low": low,
                        "high": high,
                    }
                )
    return pd.DataFrame(rows)


def _shares(own: pd.DataFrame, branch: str) -> list[tuple[str, int, int]]:
    damaged = own[own["label"].isin(DAMAGED)]
    told = [("alarmed", int(own["alarm"].notna().sum()), len(own))]
    if branch in {one.name for one in BRANCHES if one.kind == "fault"}:
        before = damaged["alarm"] < damaged["onset"].fillna(np.inf)
        told += [
            ("damaged runs alarmed", int(damaged["alarm"].notna().sum()), len(damaged)),
            ("damaged runs alarmed before the onset", int(before.sum()), len(damaged)),
        ]
    return told


def _leads(runs: pd.DataFrame) -> pd.DataFrame:
    """Median steps by which the rule came before onset and CUSUM in damaged ramps of W_Q and W_K."""
    rows: Rows = []
    damaged = runs[(runs["branch"] == RAMP) & runs["label"].isin(DAMAGED)]
    alarm = damaged["alarm"].fillna(damaged["steps"])
    for metric, other in (("lead_on_onset", "onset"), ("lead_on_cusum", "loss_cusum")):
        lead = (damaged[other].fillna(damaged["steps"]) - alarm).to_numpy(float)
        low, high = median_bounds(lead)
        median = float(np.median(lead)) if len(lead) else float("nan")
        rows.append(
            {"metric": metric, "value": median, "unit": "steps", "of": len(lead), "low": low, "high": high}
        )
    return pd.DataFrame(rows)
