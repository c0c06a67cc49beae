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
