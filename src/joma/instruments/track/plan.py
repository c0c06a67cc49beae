"""What measuring a series would take: members, bytes, room on the disk, time from one checkpoint measured."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from joma.checkpoints.series.members import select
from joma.checkpoints.series.sources.find import find_series
from joma.checkpoints.series.sources.source import kept_of
from joma.core.errors import JomaError, UnfinishedError
from joma.core.files import Json
from joma.instruments.track import TrackSettings
from joma.instruments.track.measuring.measured import check_settings, measure_one
from joma.instruments.track.measuring.weights import wanted_tensors

_HELD = 4
"""The first, the previous, this one and the next lie on the disk at once."""


@dataclass(frozen=True)
class Plan:
    """What is there and what it takes."""

    members: pd.DataFrame
    """One row per member: ``checkpoint, step, bytes, fetch`` (bytes to transfer)``, same_as``."""
    notes: list[str]
    seconds: float
    """For all, from one checkpoint measured; what is fetched comes on top."""

    @property
    def fetch(self) -> int:
        """Bytes to transfer."""
        return int(self.members["fetch"].sum())

    @property
    def disk(self) -> int:
        """Bytes on the disk at once, where fetched checkpoints are removed after use."""
        return int(self.members["fetch"].nlargest(_HELD).sum())

    def as_json(self) -> dict[str, Json]:
        """For machines."""
        return {
            "members": json.loads(self.members.to_json(orient="records")),
            "notes": self.notes,
            "bytes_to_fetch": self.fetch,
            "bytes_on_disk": self.disk,
            "seconds": round(self.seconds, 1),
        }

    def as_text(self) -> str:
        """For people."""
        distinct = int((self.members["same_as"] == "").sum())
        lines = [
            self.members.to_string(index=False),
            *self.notes,
            f"{len(self.members)} members, {distinct} contents; {self.fetch:,} bytes to fetch, at most "
            f"{self.disk:,} on the disk at once; about {self.seconds:.0f} s of measuring, by one of them.",
        ]
        return "\n".join(lines)


def plan(settings: TrackSettings) -> Plan:
    """Look at the series, and measure one checkpoint for the time that it takes."""
    check_settings(settings)
    found = find_series(settings.series, settings.revisions)
    chosen = select(found.members, settings.revisions, found.lost)
    same: dict[str, str] = {}
    for group in found.identical(chosen):
        same |= {name: kept.name for name, kept in kept_of(group, chosen).items() if kept.name != name}
    wanted = None if settings.reads_text else wanted_tensors(settings.layers)
    notes = [note.text for note in found.notes]
    fetch: dict[str, int] = {}
    for one in chosen:
        if one.name not in same:
            try:
                fetch[one.name] = found.to_fetch(one, wanted)
            except JomaError as error:  # its header is damaged, say: it will be lost, and costs nothing
                notes.append(str(error))
    rows = [
        {
            "checkpoint": one.name,
            "step": one.place.step,
            "bytes": one.size,
            "fetch": fetch.get(one.name, 0),
            "same_as": same.get(one.name, ""),
        }
        for one in chosen
    ]
    distinct = [one for one in chosen if one.name in fetch]
    for one in sorted(distinct, key=lambda one: fetch[one.name]):
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = found.bring(one, wanted, Path(folder))
                started = time.monotonic()
                measure_one(settings, path)
                seconds = time.monotonic() - started
            return Plan(pd.DataFrame(rows), notes, seconds * len(distinct))
        except JomaError as error:  # damaged, say; another one tells the time as well
            notes.append(str(error))
    raise UnfinishedError(f"no checkpoint of {settings.series[0]} could be measured: {'; '.join(notes[-3:])}")
