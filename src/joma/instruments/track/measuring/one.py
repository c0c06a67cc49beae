"""One checkpoint of a series measured alone, for what all of them would take."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from joma.checkpoints.adapters import open_weights
from joma.checkpoints.series.audit.content import read_content
from joma.checkpoints.series.audit.folding import MOST_SUMS
from joma.checkpoints.series.members import Member
from joma.checkpoints.series.sources.source import Series, Wanted
from joma.core.errors import JomaError, UnfinishedError
from joma.instruments.track import TrackSettings
from joma.instruments.track.measuring.elsewhere import on_text
from joma.instruments.track.measuring.reading import check_reading
from joma.instruments.track.measuring.weights import changes_table, wanted_tensors, weights_table


def check_settings(settings: TrackSettings) -> None:
    """Raises InputError where no checkpoint could be measured with these settings."""
    settings.check_complete()
    if settings.reads_text:
        check_reading(settings.reading, settings.sections, settings.statistics)


def wanted_by(settings: TrackSettings) -> Wanted | None:
    """Which tensors are needed; None for whole models."""
    return None if settings.reads_text else wanted_tensors(settings.layers)


def measure_one(settings: TrackSettings, path: Path) -> None:
    """One checkpoint alone, as it is measured in its series but for the changes since the first."""
    checkpoint = open_weights(path)
    weights_table(checkpoint, settings.layers)
    if settings.changes:
        changes_table(checkpoint, [("previous", checkpoint)], settings.layers, heads=settings.heads)
    if settings.reads_text:
        on_text(settings, path)


@dataclass(frozen=True)
class Prices:
    """What members take, by one of them measured."""

    fetch: dict[str, int]
    """Bytes to transfer, of those whose files can be read."""
    seconds: float
    """Of measuring one, its transfer aside; an audit's reading included."""
    transfer: float
    """Seconds a byte."""

    def seconds_of(self, name: str) -> float:
        """All that one member takes."""
        return self.seconds + self.transfer * self.fetch[name]


def fetch_sizes(
    found: Series, members: Sequence[Member], wanted: Wanted | None, notes: list[str]
) -> dict[str, int]:
    """Bytes to transfer of each member that can be read; why the others cannot is added to the notes."""
    fetch: dict[str, int] = {}
    for one in members:
        try:
            fetch[one.name] = found.to_fetch(one, wanted)
        except JomaError as error:  # its header is damaged, say: it will be lost, and costs nothing
            notes.append(str(error))
    return fetch


def prices_of(
    settings: TrackSettings,
    found: Series,
    members: Sequence[Member],
    fetch: Mapping[str, int],
    notes: list[str],
) -> Prices:
    """Measure the member that comes soonest and can be measured, and time it.

    Raises:
        UnfinishedError: not one of them can be measured.
    """
    wanted = wanted_by(settings)
    for one in sorted((one for one in members if one.name in fetch), key=lambda one: fetch[one.name]):
        try:
            with tempfile.TemporaryDirectory() as folder:
                begun = time.monotonic()
                path = found.bring(one, wanted, Path(folder))
                started = time.monotonic()
                if settings.audit and not found.distant:
                    read_content(one, path, open_weights(path), MOST_SUMS)
                measure_one(settings, path)
                seconds = time.monotonic() - started
            transfer = (started - begun) / fetch[one.name] if fetch[one.name] else 0.0
            return Prices(dict(fetch), seconds, transfer)
        except JomaError as error:  # damaged, say; another one tells the time as well
            notes.append(str(error))
    raise UnfinishedError(f"no checkpoint of {settings.series[0]} could be measured: {'; '.join(notes[-3:])}")
