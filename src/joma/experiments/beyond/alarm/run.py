"""Bases and branches trained, labelled, and watched by every rule."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from joma.core.progress import Progress
from joma.experiments.beyond.alarm import Alarm
from joma.experiments.beyond.alarm.branches import CONTINUE, SIDES, groups
from joma.experiments.beyond.alarm.detection import alarms, calibrate
from joma.experiments.beyond.alarm.intervals import median_bounds, share_bounds
from joma.experiments.beyond.alarm.labels import END, at_end, became
from joma.experiments.beyond.alarm.rules import LOSS_CUSUM, Array, History, histories, with_nan
from joma.experiments.beyond.alarm.training import texts, train_group
from joma.experiments.shared.tables import Rows
from joma.instruments.monitor.alarms.messages import LARGE_LOGIT, LOW_ENTROPY


def run(settings: Alarm, progress: Progress) -> dict[str, pd.DataFrame]:
    """The tables of ``joma.experiments.beyond.alarm.Alarm``."""
    texts(settings)
    parts = progress.parts({group.name: partial(train_group, settings, group) for group in groups(settings)})
    series = pd.concat(parts.values(), ignore_index=True)
    planned = settings.base_steps + CONTINUE.steps
    tables: dict[str, list[pd.DataFrame]] = {"runs": [], "alarms": [], "validity": [], "states": []}
    levels: Rows = []
    scratch: Array | None = None
    for setting, own in series.groupby("setting", sort=False):
        sides = {side: histories(own[own["side"] == side]) for side in SIDES if (own["side"] == side).any()}
        judged = sides["judged"]
        if CONTINUE.name in judged:
            judged["nan at one step"] = with_nan(judged[CONTINUE.name])
        if scratch is None:  # the main setting comes first
            scratch = judged["base"].values["loss"]
        found = {"runs": _labels(judged, scratch), "states": _states(judged)}
        if "calibration" in sides:
            thresholds = calibrate(sides["calibration"], planned)
            levels += [
                {"setting": str(setting), "rule": rule, "cadence": cadence, "value": level}
                for (rule, cadence), level in thresholds.items()
            ]
            found["alarms"], found["validity"] = alarms(judged, thresholds, planned)
        for name, table in found.items():
            tables[name].append(table.assign(setting=setting))
    joined = {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items() if parts}
    leads = _with_leads(joined["alarms"], joined["runs"])
    return {
        "series": series,
        **joined,
        "alarms": leads,
        "thresholds": pd.DataFrame(levels),
        "rates": _rates(leads),
        "leads": _leads(leads),
    }


def _labels(found: dict[str, History], scratch: Array) -> pd.DataFrame:
    """A row for each run: what it became, by its loss and its twin's.

    Args:
        found: of one setting.
        scratch: losses (steps, bases) of the main setting's bases, which have the same seeds: the twins of
            all that start from scratch.
    """
    rows: Rows = []
    base = found["base"].values["loss"]
    for branch, history in found.items():
        loss = history.values["loss"][history.start :]
        for column in range(loss.shape[1]):
            own = loss[:, column]
            if branch == "other text":
                # Its twin reads another text: it is held against its own beginning.
                judged = at_end(own[-END:], own[:END])
            elif branch == "base":
                judged = at_end(own, scratch[: len(own), column])
            else:
                twin = found[CONTINUE.name].values["loss"][history.start :, column]
                judged = became(own, twin, base[:, column])
            rows.append(
                {
                    "branch": branch,
                    "base": column,
                    "label": judged.label,
                    "onset": judged.onset,
                    "excess": judged.excess,
                    "unit": "nats",
                    "end": float(own[-END:].mean()),
                    "steps": len(own),
                }
            )
    return pd.DataFrame(rows).astype({"onset": float})


def _states(found: dict[str, History]) -> pd.DataFrame:
    """The first state message of each run: a head on one key, a logit above 100; from the branch's first."""
    rows: Rows = []
    for branch, history in found.items():
        entropy = history.values["normalised_entropy"][history.start :].min(axis=-1)
        logit = history.values["largest_logit"][history.start :].max(axis=-1)
        said = (entropy < LOW_ENTROPY) | (logit > LARGE_LOGIT)
        for column in range(said.shape[1]):
            at = np.flatnonzero(said[:, column])
            rows.append({"branch": branch, "base": column, "step": float(at[0]) if at.size else None})
    return pd.DataFrame(rows).astype({"step": float})


def _with_leads(found: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Alarms with their run's label, and steps by which they came before the onset and the loss's CUSUM."""
    keys = ["setting", "branch", "base"]
    table = found.merge(runs[[*keys, "label", "onset", "steps"]], on=keys)
    cusum = table[(table["rule"] == LOSS_CUSUM) & (table["cadence"] == 1)].set_index(keys)["step"]
    table = table.join(cusum.rename("loss_cusum"), on=keys)
    # A rule that has not alarmed by the run's end would have done so after it at the earliest.
    at = table["step"].fillna(table["steps"])
    table["lead_on_onset"] = table["onset"] - at
    table["lead_on_cusum"] = table["loss_cusum"].fillna(table["steps"]) - at
    return table


def _rates(table: pd.DataFrame) -> pd.DataFrame:
    """Share of bases with an alarm, by setting, branch, label, cadence and rule; within 100 steps too."""
    rows: Rows = []
    for key, own in table.groupby(["setting", "branch", "label", "cadence", "rule"], sort=False):
        for metric, said in (
            ("alarmed", own["step"].notna()),
            ("alarmed within 100 steps", own["step"] < 100),
            ("alarmed before the onset", own["step"] < own["onset"]),
        ):
            count, of = int(said.sum()), len(own)
            low, high = share_bounds(count, of)
            names = dict(zip(("setting", "branch", "label", "cadence", "rule"), key, strict=True))
            rows.append(
                {
                    **names,
                    "metric": metric,
                    "value": count / of,
                    "count": count,
                    "of": of,
                    "low": low,
                    "high": high,
                }
            )
    return pd.DataFrame(rows)


def _leads(table: pd.DataFrame) -> pd.DataFrame:
    """Median leads of damaged runs, with bounds; a run without an alarm counts as alarmed at its end."""
    rows: Rows = []
    damaged = table[table["label"].isin(("degraded", "collapsed", "recovered")) & table["onset"].notna()]
    for key, own in damaged.groupby(["setting", "branch", "cadence", "rule"], sort=False):
        for metric in ("lead_on_onset", "lead_on_cusum"):
            low, high = median_bounds(own[metric].to_numpy())
            names = dict(zip(("setting", "branch", "cadence", "rule"), key, strict=True))
            median = float(own[metric].median())
            rows.append(
                {
                    **names,
                    "metric": metric,
                    "value": median,
                    "unit": "steps",
                    "of": len(own),
                    "low": low,
                    "high": high,
                }
            )
    return pd.DataFrame(rows)
