"""What a sweep would take: cells, time and memory, from a few steps of each kind of cell."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from joma.core.errors import JomaError, UnfinishedError
from joma.core.files import Json
from joma.core.progress import LostCall
from joma.core.settings import Value, as_text
from joma.core.threads import limit_threads, usable_cores
from joma.experiments.costs import in_words
from joma.runs.executors.processes import local_processes
from joma.runs.job import Job
from joma.runs.parts import CELLS
from joma.sweeps import SweepSettings
from joma.sweeps.cells import at_once, finished_cells
from joma.sweeps.grid import key

resource: Any = importlib.import_module("resource") if importlib.util.find_spec("resource") else None
"""The standard library's module, which Windows does not have."""

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class SweepPlan:
    """What there is to do and what it takes."""

    kinds: pd.DataFrame
    """A row per kind of cell: its settings, ``cells``, ``to_do``, ``seconds`` and ``megabytes`` of one.

    Both are missing where the experiment does not say."""
    workers: int

    @property
    def seconds(self) -> float:
        """Of all cells that are not done yet, on this machine."""
        left = self.kinds[self.kinds["to_do"] > 0]
        return float((left["seconds"] * left["to_do"]).sum(skipna=False)) / self.workers

    @property
    def megabytes(self) -> float:
        """Of all that compute at once; not a number where the system does not say."""
        return float(self.kinds["megabytes"].max()) * self.workers

    def as_json(self) -> dict[str, Json]:
        """For machines."""
        known = self.seconds == self.seconds
        return {
            "cells": int(self.kinds["cells"].sum()),
            "to_do": int(self.kinds["to_do"].sum()),
            "workers": self.workers,
            "seconds": round(self.seconds, 1) if known else None,
            "megabytes": None if self.kinds["megabytes"].isna().all() else round(self.megabytes),
            "kinds": self.kinds.astype(object).where(self.kinds.notna(), None).to_dict("records"),
        }

    def as_text(self) -> str:
        """For people."""
        all_cells, left = int(self.kinds["cells"].sum()), int(self.kinds["to_do"].sum())
        known = self.seconds == self.seconds
        held = self.megabytes
        memory = "memory that this system does not tell" if held != held else f"{held:,.0f} MB"
        cost = (
            f"about {in_words(self.seconds)} and {memory}, {self.workers} at once on this "
            f"machine, by a few measured steps"
            if known
            else "how long they take is not known before one has run"
        )
        return f"{self.kinds.to_string(index=False, na_rep='')}\n{all_cells} cells, {left} to do: {cost}."


def plan(settings: SweepSettings, directory: Path) -> SweepPlan:
    """Count the cells, and measure a few steps of one of each kind, in a process of its own."""
    cells = settings.grid_cells()
    there = finished_cells(directory / CELLS)
    kinds: dict[tuple[Value, ...], list[Job]] = {}
    for cell in cells:
        values = tuple(value for name, value in cell.flat().items() if name not in cell.costless)
        kinds.setdefault(values, []).append(cell)
    firsts = [members[0] for members in kinds.values()]
    flat = [cell.flat() for cell in firsts]
    names = [name for name in flat[0] if len({one[name] for one in flat}) > 1]
    cost = getattr(settings.own("run"), "cost", None)
    to_do = [sum(key(cell) not in there for cell in members) for members in kinds.values()]
    costs = [_cost(cell, cost if left else None) for cell, left in zip(firsts, to_do, strict=True)]
    rows = [
        {
            **{name: as_text(values[name]) for name in names},
            "cells": len(members),
            "to_do": left,
            "seconds": seconds,
            "megabytes": megabytes,
        }
        for members, values, left, (seconds, megabytes) in zip(
            kinds.values(), flat, to_do, costs, strict=True
        )
    ]
    return SweepPlan(pd.DataFrame(rows).astype({"seconds": float, "megabytes": float}), at_once(cells))


def _cost(cell: Job, cost: Callable[[Job], float] | None) -> tuple[float | None, float | None]:
    if cost is None:
        return None, None
    ((_, outcome),) = local_processes([functools.partial(_measure, cell, cost)], 1)
    if isinstance(outcome, LostCall):
        raise UnfinishedError(
            f"the process that measured a cell was ended ({outcome.reason}; out of memory?)."
        )
    if isinstance(outcome, JomaError):
        raise outcome
    return outcome


def _measure(cell: Job, cost: Callable[[Job], float]) -> tuple[float, float] | JomaError:
    """Seconds and megabytes of a cell, in the process that this is called in."""
    try:
        with limit_threads(cell.threads or usable_cores()):
            seconds = cost(cell)
    except JomaError as error:
        return error
    return seconds, _megabytes()


def _megabytes() -> float:
    """The most that this process has held; not a number where the system does not say (Windows)."""
    lines = _STATUS.read_text("utf-8").splitlines() if _STATUS.exists() else []
    for line in lines:
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1e3
    if resource is None:
        return float("nan")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(most / (1e6 if sys.platform == "darwin" else 1e3))  # bytes there, kilobytes elsewhere
