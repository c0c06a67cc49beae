"""Measure a series checkpoint by checkpoint, each a resumable part, and look along its curves."""

from __future__ import annotations

import time

import pandas as pd

from joma.checkpoints.series.members import Member
from joma.checkpoints.series.sources.find import find_series
from joma.core.errors import UnfinishedError
from joma.core.progress import Progress
from joma.instruments.track import TrackSettings
from joma.instruments.track.curves import bounces, early_warnings, side_by_side
from joma.instruments.track.measuring.measured import MeasuredSeries
from joma.instruments.track.measuring.one import check_settings
from joma.instruments.track.measuring.parts import Parts
from joma.instruments.track.orders import dates, layer_curves, orders
from joma.instruments.track.summary import layer_summary
from joma.measures.attention.statistics import ATTENTION_ENTROPY

_JUDGED = (ATTENTION_ENTROPY, "stable_rank", "spectral_entropy", "loss")
_POLL_SECONDS, _DISTANT_POLL_SECONDS = 2.0, 60.0


def run(settings: TrackSettings, progress: Progress) -> dict[str, pd.DataFrame]:
    """What the settings ask for; with ``follow``, until no checkpoint has come for so long."""
    check_settings(settings)
    parts = Parts(progress)
    while True:
        before, _ = _list_members(settings) if settings.follow else ([], False)
        tables = _all_tables(settings, parts)
        if not settings.follow or not _has_grown(settings, before):
            return tables


def _has_grown(settings: TrackSettings, before: list[Member]) -> bool:
    """Wait for a listing that is another one; False if none has come for as long as was asked for."""
    since = time.monotonic()
    while True:
        members, distant = _list_members(settings)
        if members != before:
            return True
        left = settings.follow - (time.monotonic() - since)
        if left <= 0:
            return False
        time.sleep(min(left, _DISTANT_POLL_SECONDS if distant else _POLL_SECONDS))


def _list_members(settings: TrackSettings) -> tuple[list[Member], bool]:
    found = find_series(settings.series, settings.revisions)
    return found.members, found.distant


def _all_tables(settings: TrackSettings, parts: Parts) -> dict[str, pd.DataFrame]:
    found = [MeasuredSeries(settings, "A", settings.series, parts).tables()]
    if settings.against:
        found.append(MeasuredSeries(settings, "B", (settings.against,), parts).tables())
    tables = {
        name: pd.concat([one[name] for one in found if name in one], ignore_index=True)
        for name in dict.fromkeys(name for one in found for name in one)
    }
    values = tables["values"]
    if values.empty:
        lost = tables["notes"][tables["notes"]["lost"]]["text"]
        reasons = "; ".join(text.rstrip(".") for text in lost[:3])
        raise UnfinishedError(f"no checkpoint of {settings.reading.model} could be measured: {reasons}.")
    level = values[values["metric"].isin(_JUDGED) & (values["against"] == "")]
    tables["bounces"] = bounces(level, seed=settings.seed)
    tables["dates"] = dates(layer_curves(values))
    tables["orders"] = orders(tables["dates"], seed=settings.seed)
    tables["warnings"] = early_warnings(level[level["head"].isna()], settings.window)
    tables["layers"] = layer_summary(tables)
    if settings.against:
        tables["beside"] = side_by_side(values, settings.align)
    return tables
