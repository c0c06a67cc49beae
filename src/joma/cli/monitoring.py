"""``joma monitor``: where a training run stands, and its messages."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pandas as pd

from joma.cli.words.options import MonitorOptions
from joma.core.errors import InputError, JomaError
from joma.core.printing import one_line_of
from joma.instruments.monitor.alarms.calibration import calibrate
from joma.instruments.monitor.alarms.messages import Message
from joma.instruments.monitor.folder import (
    is_monitored,
    read_facts,
    read_messages,
    read_state,
    read_table,
)
from joma.instruments.monitor.health import able_since, health
from joma.measures.attention.statistics import ATTENTION_ENTROPY
from joma.measures.change.detector import fewest_looks, first_alarm
from joma.measures.change.e_detector import threshold
from joma.measures.change.growth import FLOOR, TIMES, WINDOW

_SECONDS = 5.0
_ALPHA = 0.05
"""Probability of a false alarm that is aimed at."""


def do(options: MonitorOptions) -> int:
    """Print the state of the run; with ``--follow`` go on until interrupted."""
    if options.calibrate:
        return _calibrate(options)
    if len(options.directories) != 1:
        raise InputError("monitor: name the folder that joma.Monitor writes, one.")
    folder = _find_folder(Path(options.directories[0]))
    table = read_table(folder)
    messages = read_messages(folder)
    if options.json:
        state = {**read_facts(folder), "step": _last(table), "messages": [m.as_dict() for m in messages]}
        print(json.dumps(state, indent=1))
        return 0
    print(describe_state(folder, table, messages))
    told = 0
    while True:
        for message in messages[told:]:
            print(one_line_of(f"{message.kind.upper():<9} {message.sentence()}"), flush=True)
        told = len(messages)
        if not options.follow:
            return 0
        time.sleep(_SECONDS)
        messages = read_messages(folder)


def _calibrate(options: MonitorOptions) -> int:
    """Write the reference of healthy runs, and say what alarms against it mean."""
    if not options.directories:
        raise InputError("monitor --calibrate: name the folders of one or more healthy runs.")
    reference = calibrate([_find_folder(Path(one)) for one in options.directories])
    reference.save(options.calibrate)
    count = len(reference.change)
    _, _, share = reference.levels(_ALPHA)
    more = f"; {round(2 / _ALPHA) - 1} runs allow {_ALPHA:g}" if share > _ALPHA + 1e-9 else ""
    print(
        one_line_of(
            f"{options.calibrate}: {count} healthy run{'' if count == 1 else 's'} of {reference.model} over "
            f"{reference.steps:,} steps; a run like them alarms with probability at most {share:.2g}{more}"
        )
    )
    return 0


def _find_folder(folder: Path) -> Path:
    """The folder, or the one that lies right in it (a Trainer's holds its monitor's).

    Raises:
        InputError: there are several.
    """
    if is_monitored(folder) or not folder.is_dir():
        return folder
    inside = sorted(path for path in folder.iterdir() if is_monitored(path))
    if len(inside) > 1:
        names = ", ".join(path.name for path in inside[:4])
        raise InputError(f"{folder} holds {len(inside)} monitor folders ({names}); name one.")
    return inside[0] if inside else folder


def describe_state(folder: Path, table: pd.DataFrame, messages: list[Message]) -> str:
    """Whether the run is healthy, last step and loss, extreme heads, and what the cadence means."""
    facts = read_facts(folder)
    every = facts.get("every")
    if table.empty:
        return f"{facts.get('model')}: nothing was looked at yet; looks are every {every} steps"
    lines = [f"{facts.get('model')} at step {_last(table)}, looked at every {every} steps"]
    lines.append(health(table, messages, able_since(folder)))
    loss = table[table["metric"] == "loss"]
    if len(loss):
        lines.append(f"loss {loss['value'].iloc[-1]:.4g} (at step {int(loss['step'].iloc[-1])})")
    for metric, words, least in (
        (ATTENTION_ENTROPY, "least attention entropy", True),
        ("largest_logit", "largest logit", False),
        ("first_key_mass", "most mass on the first key", False),
    ):
        own = table[table["metric"] == metric].dropna(subset="value")
        if own.empty:
            continue
        own = own[own["step"] == own["step"].max()]
        row = own.loc[own["value"].idxmin() if least else own["value"].idxmax()]
        place = f"{row['stack']} layer {row['layer']}, head {row['head']}".lstrip()
        lines.append(f"{words} {row['value']:.3g}: {place}")
    lines += _growth(folder)
    lines.append(_guarantee(folder, int(facts["every"])))
    return "\n".join(map(one_line_of, lines))


def _growth(folder: Path) -> list[str]:
    """How far norms of queries and keys have grown, against what would be told."""
    try:
        growth = (read_state(folder) or {}).get("growth", {})
    except JomaError:  # the monitor says so when it goes on
        return []
    usual = growth.get("usual", math.nan)
    if not math.isfinite(usual):
        return []
    told = math.exp(max(FLOOR, TIMES * usual) * growth.get("level", 1.0))
    return [
        f"The spectral norm of W_Q^T W_K of a head usually grows {math.exp(usual):.2f}-fold in {WINDOW} "
        f"steps; from {told:.2f}-fold on it is reported, between looks, too."
    ]


def _guarantee(folder: Path, every: int) -> str:
    """What looks at this cadence can tell, and since when."""
    loss = "The loss is read at every step that reported one."
    able = able_since(folder)
    if able is None:
        return f"Nothing was looked at yet. {loss}"
    state, armed = able
    if not armed:
        when = first_alarm(state["watched"]["first"], every)
        return f"No alarm is possible before step {when}. {loss}"
    looks = fewest_looks(threshold(state["looks"], state["alpha"]), len(state["keys"]))
    return (
        f"Alarms are active since step {state['watched']['armed_at']}. A change confined to one head "
        f"needs at "
        f"least {looks} looks ({looks * every} steps) to be noticed. {loss}"
    )


def _last(table: pd.DataFrame) -> int:
    return int(table["step"].max()) if len(table) else -1
