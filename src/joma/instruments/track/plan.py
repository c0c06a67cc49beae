"""What measuring a series would take: members, bytes, room on the disk, time from one checkpoint measured."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pandas as pd

from joma.checkpoints.series.amounts import read_budget
from joma.checkpoints.series.choice import sentence_of
from joma.checkpoints.series.members import select
from joma.checkpoints.series.sources.find import find_series
from joma.core.files import Json
from joma.instruments.track import TrackSettings
from joma.instruments.track.measuring.budget import choices, each_once
from joma.instruments.track.measuring.one import check_settings, fetch_sizes, prices_of, wanted_by

_HELD = 4
"""The first, the previous, this one and the next lie on the disk at once."""


@dataclass(frozen=True)
class Plan:
    """What is there and what it takes."""

    members: pd.DataFrame
    """One row per member: ``checkpoint, step, bytes, fetch`` (bytes to transfer)``, same_as``; with a budget
    only those that were chosen, and ``chosen``, why."""
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
    """Look at the series, measure one checkpoint for the time that it takes, and choose within the budget.

    Raises:
        InputError: no such series; a budget that does not suffice for one member.
        UnfinishedError: not one checkpoint can be measured.
    """
    check_settings(settings)
    found = find_series(settings.series, settings.revisions)
    listed = select(found.members, settings.revisions, found.lost)
    distinct, same = each_once(found, listed)
    notes = [note.text for note in found.notes]
    fetch = fetch_sizes(found, distinct, wanted_by(settings), notes)
    prices = prices_of(settings, found, distinct, fetch, notes)
    reasons = {one.name: "" for one in listed}
    if settings.budget:
        chosen = choices(settings, distinct, fetch, prices)
        reasons = {one.member.name: one.reason for one in chosen}
        notes.append(sentence_of(chosen, len(distinct), read_budget(settings.budget)))
    rows = [
        {
            "checkpoint": one.name,
            "step": one.place.step,
            "bytes": one.size,
            "fetch": fetch.get(one.name, 0),
            "same_as": same.get(one.name, ""),
            **({"chosen": reasons[one.name]} if settings.budget else {}),
        }
        for one in listed
        if one.name in reasons
    ]
    return Plan(pd.DataFrame(rows), notes, prices.seconds * sum(name in reasons for name in fetch))
