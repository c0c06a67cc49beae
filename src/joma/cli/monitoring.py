"""``joma monitor``: where a training run stands, and its messages."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pandas as pd

from joma.cli.words.options import MonitorOptions
from joma.core.errors import InputError
from joma.core.printing import one_line_of
from joma.instruments.monitor.folder import read_facts, read_messages, read_state, read_table
from joma.measures.attention.statistics import ATTENTION_ENTROPY
from joma.measures.change.detector import LEARNING, SETTLING, fewest_looks
from joma.measures.change.e_detector import threshold

_SECONDS = 5.0


def do(options: MonitorOptions) -> int:
    """Print the state of the run; with ``--follow`` go on until interrupted."""
    if not options.directory:
        raise InputError("monitor: name the folder that joma.Monitor writes.")
    folder = Path(options.directory)
    table = read_table(folder)
    messages = read_messages(folder)
    if options.json:
        state = {**read_facts(folder), "step": _last(table), "messages": [m.as_dict() for m in messages]}
        print(json.dumps(state, indent=1))
        return 0
    print(standing(folder, table))
    told = 0
    while True:
        for message in messages[told:]:
            print(one_line_of(f"{message.kind.upper():<9} {message.sentence()}"), flush=True)
        told = len(messages)
        if not options.follow:
            return 0
        time.sleep(_SECONDS)
        messages = read_messages(folder)


def standing(folder: Path, table: pd.DataFrame) -> str:
    """Last step and loss, the heads with the least entropy and the largest logit, what the cadence means."""
    facts = read_facts(folder)
    every = facts.get("every")
    lines = [f"{facts.get('model')} at step {_last(table)}, looked at every {every} steps"]
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
        lines.append(f"{words} {row['value']:.3g}: layer {row['layer']}, head {row['head']}")
    lines.append(_guarantee(folder, int(facts["every"])))
    return "\n".join(map(one_line_of, lines))


def _guarantee(folder: Path, every: int) -> str:
    """What looks at this cadence can tell, and since when."""
    state = (read_state(folder) or {}).get("alarm")
    loss = "; the loss is read at every step that was told"
    if state is None:
        return f"nothing was looked at yet{loss}"
    armed = state["watched"]["armed_at"]
    if armed is None:
        needed = max(every * LEARNING, SETTLING)
        return f"no alarm can be raised before step {state['watched']['first'] + needed}{loss}"
    looks = fewest_looks(threshold(state["looks"], state["alpha"]), len(state["keys"]))
    return (
        f"armed since step {armed}: a change of one head alone, however strong, is told after {looks} looks "
        f"({looks * every} steps) at the earliest, of all heads after fewer{loss}"
    )


def _last(table: pd.DataFrame) -> int:
    return int(table["step"].max()) if len(table) else -1
