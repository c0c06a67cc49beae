"""A series on a cluster: the parts of all checkpoints are computed there before the series is followed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from joma.checkpoints.adapters import open_weights
from joma.checkpoints.series.members import Member
from joma.checkpoints.series.sources.source import Series
from joma.core.errors import contain
from joma.core.progress import Progress
from joma.instruments.track import TrackSettings
from joma.instruments.track.measuring.reading import DETAILS, text_tables
from joma.instruments.track.measuring.weights import changes_table, weights_table

VALUES = "values"


def on_text(settings: TrackSettings, path: Path) -> dict[str, pd.DataFrame]:
    """What the checkpoint there does on the settings' text."""
    sections = tuple(name for name in settings.sections if name != "ranks")
    return text_tables(path, settings.reading, sections, settings.statistics, settings.layers)


def parts_of(
    settings: TrackSettings, found: Series, line: Sequence[Member], readers: Sequence[Member], words: str
) -> dict[str, Callable[[Progress], pd.DataFrame]]:
    """Name -> part of all that can be computed apart: weights, changes, and what is read of a text.

    A section with tables of its own is left to the process that follows the series: they are one computation.
    """
    calls: dict[str, Callable[[Progress], pd.DataFrame]] = {}
    for number, member in enumerate(line):
        path, key = found.bring(member, None, Path()).absolute(), found.content(member)[:16]
        calls[f"weights-{key}"] = partial(_weights, path, settings.layers)
        if settings.changes:
            earlier = [("previous", line[number - 1]), ("first", line[0])] if number else []
            names = [found.content(one)[:16] for _, one in earlier]
            paths = [(name, found.bring(one, None, Path()).absolute()) for name, one in earlier]
            calls["-".join(["changes", key, *names])] = partial(_changes, path, paths, settings)
        if settings.reads_text and member in readers and not set(settings.sections) & set(DETAILS):
            calls[f"text-{key}{words}"] = partial(_text, settings, path)
    return calls


def compute(progress: Progress, calls: dict[str, Callable[[Progress], pd.DataFrame]]) -> None:
    """Compute and keep the parts; what fails is tried again, and told, where the series is followed."""
    progress.attempts(calls)


def _weights(path: Path, layers: Sequence[int] | None, progress: Progress) -> pd.DataFrame:
    with contain(f"{path.name} cannot be measured"):
        return weights_table(open_weights(path), layers)


def _changes(
    path: Path, earlier: Sequence[tuple[str, Path]], settings: TrackSettings, progress: Progress
) -> pd.DataFrame:
    with contain(f"{path.name} cannot be measured"):
        others = [(name, open_weights(one)) for name, one in earlier]
        return changes_table(open_weights(path), others, settings.layers, heads=settings.heads)


def _text(settings: TrackSettings, path: Path, progress: Progress) -> pd.DataFrame:
    with contain(f"{path.name} cannot read the text"):
        return on_text(settings, path)[VALUES]
