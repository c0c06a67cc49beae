"""What healthy runs reached, read from their monitors' folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from joma.core.errors import InputError
from joma.core.files import parse_json, read_bytes, user_path
from joma.instruments.monitor.alarms.judge import Judge
from joma.instruments.monitor.alarms.reference import VERSION, Reference
from joma.instruments.monitor.folder import read_facts, read_table

Folders = str | Path | Sequence[str | Path]
"""Folders of healthy runs, or the file that ``joma monitor --calibrate`` wrote from them."""


def read_reference(given: Folders) -> Reference:
    """A reference from its file, or from the folders of healthy runs.

    Raises:
        InputError: no folder, folders of different networks, or a damaged file.
    """
    several = [given] if isinstance(given, str | Path) else list(given)
    if len(several) == 1 and user_path(several[0]).is_file():
        return _read_file(user_path(several[0]))
    return calibrate(several)


def calibrate(folders: Sequence[str | Path]) -> Reference:
    """What the healthy runs in these monitor folders reached.

    Raises:
        InputError: none is given, one is not of a monitor, or they are not of one network and cadence.
    """
    if not folders:
        raise InputError("reference = [] in Monitor names no run; give the monitor folders of healthy runs.")
    found: Reference | None = None
    for folder in map(user_path, folders):
        table = read_table(folder)
        facts = read_facts(folder)
        last = int(table["step"].max()) + 1 if len(table) else 0
        judge = Judge(looks=max(1, -(-last // int(facts["every"]))), alpha=0.05)
        judge.replay(table)
        if judge.change.watched.armed_at is None:
            raise InputError(
                f"reference: the run in {folder} ended after {last} steps, before an alarm was possible; "
                "give longer ones."
            )
        own = Reference(
            str(facts["model"]),
            int(facts["every"]),
            list(facts["statistics"]),
            [list(key) for key in judge.change.keys],
            last,
            [judge.change.largest],
            [judge.growth.largest],
        )
        found = own if found is None else _join(found, own, folder)
    assert found is not None
    return found


def _join(found: Reference, own: Reference, folder: Path) -> Reference:
    for name, words in (
        ("model", "model"),
        ("every", "cadence"),
        ("statistics", "statistics"),
        ("keys", "attentions and heads"),
    ):
        if getattr(found, name) != getattr(own, name):
            raise InputError(
                f"reference: {folder} is of another network than the runs before it: its {words} differ."
            )
    return Reference(
        **{
            **asdict(found),
            "steps": min(found.steps, own.steps),
            "change": found.change + own.change,
            "growth": found.growth + own.growth,
        }
    )


def _read_file(path: Path) -> Reference:
    try:
        content: Any = parse_json(read_bytes(path), finite=False)
        if content.pop("version") != VERSION:
            raise ValueError("its version is another one")
        return Reference(**content)
    except (InputError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is no reference that joma monitor --calibrate wrote ({error}).") from error
