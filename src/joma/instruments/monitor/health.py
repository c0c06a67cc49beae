"""Is a monitored run healthy? One sentence, made from its last look, its messages and its losses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joma.core.errors import JomaError
from joma.instruments.monitor.alarms.messages import Message, states
from joma.instruments.monitor.folder import read_state
from joma.instruments.monitor.measuring.rows import BETWEEN
from joma.runs.finding import Finding

_SHARE = 10
"""A run's losses are compared by tenths of it."""
_SPREADS = 3.0
"""Standard errors of their difference from which on two tenths differ."""
_LEAST_FALL = 0.02
"""Share of the first tenth's loss by which the last one lies lower in a run that learns."""


def able_since(folder: Path) -> tuple[dict[str, Any], bool] | None:
    """What the change alarm remembers, and whether it can alarm; None before the first look."""
    try:
        state = (read_state(folder) or {}).get("alarm")
    except JomaError:  # the monitor says so when it goes on
        return None
    return None if state is None else (state, state["watched"]["armed_at"] is not None)


def health(
    table: pd.DataFrame, messages: Sequence[Message], able: tuple[dict[str, Any], bool] | None = None
) -> str:
    """What speaks against the run, the worst first; or that nothing does, and whether anything could have."""
    losses = table[table["metric"] == "loss"]["value"].to_numpy(float)
    looks = table[~table["metric"].isin((*BETWEEN, "stable_rank"))]
    last = looks[looks["step"] == looks["step"].max()]
    told = {(message.metric, message.where): message for message in messages if message.kind == "state"}
    against: list[str] = []
    causes: list[str] = []
    if len(losses) and not np.isfinite(losses[-1]):
        against.append(f"the loss is {losses[-1]}")
    for state in states(last, {}):
        began = told.get((state.metric, state.where))
        since = "" if began is None else f" since step {began.since}"
        first = ", the first look" if began is not None and "first look" in began.sure else ""
        causes += [began.to_do] if began is not None and began.to_do else []
        against.append(f"{state.where}: {state.what}{since}{first}")
    if rise := _rise(losses):
        against.append(rise)
    alarms = [message for message in messages if message.kind == "alarm" and not _over(message, messages)]
    against += [f"alarm at step {alarm.step}: {alarm.where}: {alarm.what}" for alarm in alarms[:1]]
    if against:
        cause = f" To do: {causes[0]}." if causes else ""
        return f"The run is not healthy: {'; '.join(against)}.{cause}"
    for message in messages:
        if message.kind in ("not valid", "not judged"):
            words = "not yet judged" if message.kind == "not judged" else "not valid"
            return f"The run changed at step {message.step} ({words}, no probability): {message.what}."
    if able is not None and not able[1]:
        return "No fault was seen, but no alarm was possible yet: states and the loss were judged only."
    spikes = [message for message in messages if message.kind == "spike"]
    if spikes:
        return f"No fault was seen at the end; {_tell_spike(spikes[-1])}."
    if slow := _hardly_falls(losses):
        return f"No fault was seen, but {slow}."
    return "No fault was seen: no alarm, and no head, layer or loss that stands out."


def _tell_spike(spike: Message) -> str:
    return f"the loss rose at step {spike.since} and was back at step {spike.step}"


def _hardly_falls(losses: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    """Whether the last tenth lies below the first one by little, or by no more than their spread."""
    size = len(losses) // _SHARE
    if size < 5 or not np.isfinite(losses).all():
        return ""
    first, last = losses[:size], losses[-size:]
    fall = first.mean() - last.mean()
    error = float(np.hypot(first.std(ddof=1), last.std(ddof=1)) / np.sqrt(size))
    if fall > max(_LEAST_FALL * abs(first.mean()), _SPREADS * error):
        return ""
    return f"the loss has hardly fallen: {first.mean():.3g} in its first tenth, {last.mean():.3g} in its last"


def _over(alarm: Message, messages: Sequence[Message]) -> bool:
    return any(one.kind == "spike" and one.since == alarm.step for one in messages)


def _rise(losses: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    """Whether the last tenth lies above the lowest one, or the first, by more than their spread."""
    size = len(losses) // _SHARE
    if size < 5 or not np.isfinite(losses).all():
        return ""
    tenths = losses[: size * _SHARE].reshape(_SHARE, size)
    means, errors = tenths.mean(axis=1), tenths.std(axis=1, ddof=1) / np.sqrt(size)
    lowest = int(means.argmin())
    error = float(np.hypot(errors[-1], errors[lowest]))
    if means[-1] - means[lowest] <= _SPREADS * error or means[-1] - means[lowest] < 0.1 * abs(means[lowest]):
        return ""
    return f"the loss stands at {means[-1]:.3g}, above the {means[lowest]:.3g} that it had reached"


_METRICS = {
    "attention_entropy": "normalised_entropy",
    "largest_logit": "largest_logit",
    "residual_rms": "residual_rms",
    "residual_update": "residual_update",
}
"""What a state is about -> what was measured."""
_BROKEN, _STATE, _RISEN, _ALARM, _UNSURE, _SPIKE, _STALLED = 100.0, 90.0, 70.0, 60.0, 40.0, 30.0, 20.0
"""Weights of findings."""


def findings(table: pd.DataFrame, messages: Sequence[Message]) -> list[Finding]:
    """What speaks against a monitored run, with its number: states of the last look, the loss, alarms."""
    losses = table[table["metric"] == "loss"]["value"].to_numpy(float)
    looks = table[~table["metric"].isin((*BETWEEN, "stable_rank"))]
    last = looks[looks["step"] == looks["step"].max()]
    began = {(message.metric, message.where): message for message in messages if message.kind == "state"}
    found: list[Finding] = []
    if len(losses) and not np.isfinite(losses[-1]):
        said = next((one for one in messages if one.metric == "loss" and one.kind == "alarm"), None)
        advice = "" if said is None else said.advice()
        found.append(_about_loss(f"the loss is {losses[-1]}", None, "a value", advice, _BROKEN))
    for order, state in enumerate(states(last, {})):
        first = began.get((state.metric, state.where), state)
        found.append(
            Finding(
                what=state.what,
                where=state.where,
                metric=state.metric,
                value=_farthest(last, state.metric),
                certainty=f"a level, in the last look; since step {first.since}",
                look_next=first.advice(),
                weight=_STATE - order,
            )
        )
    rise, stalled = _rise(losses), _hardly_falls(losses)
    if rise:
        sure = f"more than {_SPREADS:g} standard errors of the tenths' means"
        advice = "joma report: which of loss, norms and entropies moved first"
        found.append(_about_loss(rise, float(losses[-len(losses) // _SHARE :].mean()), sure, advice, _RISEN))
    elif stalled:
        sure = f"less than {_LEAST_FALL:.0%}, or than {_SPREADS:g} standard errors"
        advice = "the learning rate, and whether gradients reach the weights"
        found.append(_about_loss(stalled, float(losses[-1]), sure, advice, _STALLED))
    known = {(one.metric, one.where) for one in found}
    return found + [
        _of_message(message, table, weight)
        for message, weight in _worth_telling(messages)
        if (message.metric, message.where) not in known
    ]


def _worth_telling(messages: Sequence[Message]) -> list[tuple[Message, float]]:
    """Alarms that are not over, changes without a probability, the last spike; the first of each place."""
    weights = {"alarm": _ALARM, "not valid": _UNSURE, "not judged": _UNSURE, "spike": _SPIKE}
    kept: dict[tuple[str, str], tuple[Message, float]] = {}
    for message in messages:
        if message.kind in weights and not (message.kind == "alarm" and _over(message, messages)):
            kept.setdefault((message.metric, message.where), (message, weights[message.kind]))
    return list(kept.values())


def _of_message(message: Message, table: pd.DataFrame, weight: float) -> Finding:
    own = table[(table["step"] == message.step) & (table["metric"] == message.metric)]
    return Finding(
        what=f"at step {message.step}: {message.what}",
        where=message.where,
        metric=message.metric,
        value=float(own["value"].iloc[0]) if len(own) == 1 else _farthest(own, message.metric),
        certainty=message.sure,
        look_next=message.advice(),
        weight=weight,
    )


def _farthest(rows: pd.DataFrame, metric: str) -> float | None:
    """The value of these rows that is worst for this metric."""
    values = rows[rows["metric"].isin((metric, _METRICS.get(metric, metric)))]["value"].to_numpy(float)
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    return float(values[np.abs(values).argmax()] if metric == "largest_logit" else values.min())


def _about_loss(what: str, value: float | None, sure: str, advice: str, weight: float) -> Finding:
    return Finding(
        what=what, where="loss", metric="loss", value=value, certainty=sure, look_next=advice, weight=weight
    )
