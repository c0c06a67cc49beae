"""What moved along a series, what is wrong with its members, and what could not be measured."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.instruments.track import TrackSettings
from joma.instruments.track.story import largest_changes, when_sinks_arose
from joma.runs.finding import Finding

_NOT_A_MEMBER, _LOSS_RISES, _LOST, _MOVES, _SINK = 95.0, 80.0, 60.0, 50.0, 25.0
"""Weights; that of a curve that moves is multiplied by its relative change."""


def findings(settings: TrackSettings, tables: Mapping[str, pd.DataFrame]) -> list[Finding]:
    """Faulty members, curves that move beyond noise, when a sink arose, and what is missing."""
    found = _faults(tables)
    for change in largest_changes(tables):
        found.append(
            Finding(
                what=change.words(placed=False),
                where=change.place(),
                metric=change.kind[0],
                value=change.extreme(),
                certainty=change.certainty(),
                look_next="lower the learning rate, or go back to the checkpoint before it rose"
                if change.is_loss_that_rises()
                else "its curve beside the others: joma report of this run",
                weight=_LOSS_RISES if change.is_loss_that_rises() else _MOVES * min(change.size, 1.0),
            )
        )
    if sinks := when_sinks_arose(tables["values"]):
        next_look = "which heads, in the table received_attention"
        found.append(Finding(what=sinks, metric="first_key_share", look_next=next_look, weight=_SINK))
    for lost in settings.list_missing(tables)[:2]:
        found.append(Finding(what=f"not measured: {lost.rstrip('.')}", where="series", weight=_LOST))
    return found


def _faults(tables: Mapping[str, pd.DataFrame]) -> list[Finding]:
    if "faults" not in tables:
        return []
    return [
        Finding(
            what=f"{row.fault} in {len(row.tensors)} tensors",
            where=str(row.checkpoint),
            metric="fault",
            value=float(len(row.tensors)),
            unit="tensors",
            certainty="its bytes, names and place among its neighbours",
            look_next="joma track SERIES --audit, and fetch or save this member again",
            weight=_NOT_A_MEMBER,
        )
        for row in tables["faults"].itertuples()
    ]
