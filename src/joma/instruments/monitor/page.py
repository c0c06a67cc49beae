"""A monitor's folder as a run that a page can show."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from joma.core.files import whole_file
from joma.core.style import style
from joma.instruments.monitor.alarms.messages import Message
from joma.instruments.monitor.figure import draw_monitor
from joma.instruments.monitor.folder import is_monitored, read_facts, read_messages, read_table
from joma.instruments.monitor.health import able_since, health
from joma.measures.attention.statistics import ATTENTION_ENTROPY
from joma.runs.directory import Run

_COURSES = (("loss", "the loss", ""), (ATTENTION_ENTROPY, "mean attention entropy", " nats"))
_FIGURES = {"light": "figure.png", "dark": "figure-dark.png"}


def find_monitored(directory: Path) -> list[Path]:
    """The monitors' folders at or right below a directory, in order of their names."""
    if is_monitored(directory):
        return [directory]
    return sorted(path for path in directory.iterdir() if path.is_dir() and is_monitored(path))


def monitored_run(directory: Path) -> Run:
    """What was measured so far, with its messages; the figure is drawn anew into the folder.

    Raises:
        InputError, RunDirectoryError: not a monitor folder, or a damaged one.
    """
    table, messages, facts = read_table(directory), read_messages(directory), read_facts(directory)
    for theme, name in _FIGURES.items():
        with style(theme), whole_file(directory / name) as temporary:
            draw_monitor(table, messages).savefig(temporary)
    told = [{**message.as_dict(), "to do": message.advice()} for message in messages]
    settings = {
        "experiment": "monitor",
        "title": f"{facts.get('model')}, watched while it trained",
        "subject": "papers",
        "settings": {name: value for name, value in facts.items() if not name.startswith("version")},
        "answer": _answer(directory, table, messages),
        "versions": facts.get("versions", {}),
        "figure": draw_monitor.__doc__,
    }
    tables = {"messages": pd.DataFrame(told)} if told else {}
    return Run(directory, settings, [], {**tables, "statistics": table})


def _answer(directory: Path, table: pd.DataFrame, messages: list[Message]) -> list[str]:
    if table.empty:
        return ["Nothing was looked at yet."]
    judged = health(table, messages, able_since(directory))
    courses = [_course(table, *course) for course in _COURSES]
    course = " and ".join(filter(None, courses))
    kinds = [message.kind for message in messages]
    told = f"{_count(kinds.count('alarm'), 'alarm')} and {_count(kinds.count('state'), 'state message')}"
    first = f"Up to step {int(table['step'].max())}: {told}{course and '; '}{course}."
    alarms = [message for message in messages if message.kind == "alarm"]
    unsure = [message for message in messages if message.kind in ("not judged", "not valid")]
    return [
        judged,
        first,
        *(["The first alarm: " + alarms[0].sentence()] if alarms else []),
        *(["A change without a probability: " + unsure[0].sentence()] if unsure and not alarms else []),
    ]


def _course(table: pd.DataFrame, metric: str, words: str, unit: str) -> str:
    """Where the mean over heads began and where it stands."""
    means = table[table["metric"] == metric].groupby("step")["value"].mean().dropna()
    if len(means) < 2:
        return ""
    first, last = f"{means.iloc[0]:.3g}", f"{means.iloc[-1]:.3g}"
    if first == last:
        return f"{words} is {last}{unit}, as it was"
    return f"{words} {'fell' if means.iloc[-1] < means.iloc[0] else 'rose'} from {first} to {last}{unit}"


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
