"""Measure a series checkpoint by checkpoint, each a resumable part, and look along its curves."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from joma.errors import JomaError, UnfinishedError
from joma.instruments.track import TrackRun
from joma.instruments.track.fetching import Fetched
from joma.instruments.track.orders import orders
from joma.probes.series.curves import bounces, early_warnings, side_by_side
from joma.probes.series.find import find_series
from joma.probes.series.measuring import COLUMNS, changes_table, text_table, wanted_tensors, weights_table
from joma.probes.series.members import Member, Note, lines, notes_on, select
from joma.probes.series.source import Series, kept_of
from joma.progress import Progress

_JUDGED = ("entropy", "stable_rank", "spectral_entropy", "loss")
_POLL_SECONDS = 2.0
_NO_TEXT = "no text was given, so weights alone were measured: --text adds attention entropy and loss"


def run(settings: TrackRun, progress: Progress) -> dict[str, pd.DataFrame]:
    """What the settings ask for; with ``follow``, until no checkpoint has come for so long."""
    settings.check_complete()
    parts = _Parts(progress)
    last, since = "", time.monotonic()
    while True:
        tables = _all_tables(settings, parts)
        now = tables["checkpoints"].to_json() if settings.follow else ""
        if now != last:
            last, since = now, time.monotonic()
        if time.monotonic() - since >= settings.follow:
            return tables
        time.sleep(min(_POLL_SECONDS, settings.follow))


@dataclass
class _Parts:
    """Finished parts, kept by the run's directory and found again without reading it anew."""

    progress: Progress
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)

    def part(self, name: str, compute: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """The table of this name, computed once."""
        if name not in self.tables:
            self.tables[name] = self.progress.part(name, compute)
        return self.tables[name]


def _all_tables(settings: TrackRun, parts: _Parts) -> dict[str, pd.DataFrame]:
    found = [_Measured(settings, "A", settings.series, parts).tables()]
    if settings.against:
        found.append(_Measured(settings, "B", (settings.against,), parts).tables())
    tables = {name: pd.concat([one[name] for one in found], ignore_index=True) for name in found[0]}
    values = tables["values"]
    if values.empty:
        lost = tables["notes"][tables["notes"]["lost"]]["text"]
        raise UnfinishedError(
            f"no checkpoint of {settings.reading.model} could be measured: {'; '.join(lost[:3])}"
        )
    level = values[values["metric"].isin(_JUDGED) & (values["against"] == "")]
    tables["bounces"] = bounces(level, seed=settings.seed)
    tables["orders"] = orders(values, seed=settings.seed)
    tables["warnings"] = early_warnings(level[level["head"].isna()], settings.window)
    if settings.against:
        tables["beside"] = side_by_side(values, settings.align)
    return tables


def measure_one(settings: TrackRun, path: Path) -> pd.DataFrame:
    """One checkpoint alone, as it is measured in its series but for the changes since the first."""
    tables = [weights_table(path, settings.layers)]
    if settings.changes:
        tables.append(changes_table(path, [("previous", path)], settings.layers))
    if settings.reads_text:
        tables.append(_on_text(settings, path))
    return pd.concat(tables, ignore_index=True)


def _on_text(settings: TrackRun, path: Path) -> pd.DataFrame:
    sections = tuple(name for name in settings.sections if name != "ranks")
    return text_table(path, settings.reading, sections, settings.statistics, settings.layers)


@dataclass
class _Measured:
    """One series, measured."""

    settings: TrackRun
    series: str
    """``A``, or ``B`` for the one laid beside it."""
    named: tuple[str, ...]
    parts: _Parts
    notes: list[Note] = field(default_factory=list)
    values: list[pd.DataFrame] = field(default_factory=list)
    same_as: dict[str, str] = field(default_factory=dict)

    def tables(self) -> dict[str, pd.DataFrame]:
        """``checkpoints``, ``notes`` and ``values``."""
        found = find_series(self.named, self.settings.revisions if self.series == "A" else ("all",))
        chosen = select(found.members, self.settings.revisions if self.series == "A" else ("all",))
        names = {one.name for one in chosen}
        self.notes = [*found.notes, *notes_on(chosen)]
        contents = self._contents(found, chosen)
        if len(contents) == 1:
            self.notes.append(
                Note("alone", contents[0].name, f"{contents[0].name} is the only checkpoint: no curve")
            )
        if not self.settings.reading.text:
            self.notes.append(Note("weights alone", "", _NO_TEXT))
        with self._fetched(found) as fetched:
            for line in lines(contents):
                self._follow(found, line, fetched)
        values = pd.concat(self.values, ignore_index=True) if self.values else pd.DataFrame()
        rows = [self._row(found, member) for member in found.members if member.name in names]
        return {"checkpoints": pd.DataFrame(rows), "notes": self._notes(), "values": values}

    def _contents(self, found: Series, chosen: Sequence[Member]) -> list[Member]:
        """Each content once, without steps that occur twice, and without what cannot be read as it lies."""
        twice = {note.member for note in self.notes if note.kind == "same step"}
        readable = []
        signatures = {}
        for member in chosen:
            try:
                signatures[member.name] = found.shapes(member)
                readable.append(member)
            except JomaError as error:
                self.notes.append(Note("unreadable", member.name, f"{member.name}: {error}", lost=True))
        known = [one for one in signatures.values() if one]
        usual = max(known, key=known.count, default="")
        for member in readable:
            if signatures[member.name] not in ("", usual):
                text = f"{member.name} has tensors of other names or shapes (or another vocabulary) than most"
                self.notes.append(Note("shapes", member.name, text, lost=True))
        readable = [one for one in readable if signatures[one.name] in ("", usual) and one.name not in twice]
        for group in found.identical(readable):
            kept = kept_of(group, readable)
            others = [one.name for one in group if one is not kept]
            self.same_as |= dict.fromkeys(others, kept.name)
            text = (
                f"{', '.join(one.name for one in group)} are the same bytes; they count once, as {kept.name}"
            )
            self.notes.append(Note("identical", kept.name, text))
        return [member for member in readable if member.name not in self.same_as]

    @contextmanager
    def _fetched(self, found: Series) -> Iterator[Fetched]:
        wanted = None if self.settings.reads_text else wanted_tensors(self.settings.layers)
        keep = self.settings.keep_downloads
        kept = self.parts.progress.checkpoint_folder("fetched")
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(keep).expanduser() if keep else kept or Path(temporary)
            fetched = Fetched(found, wanted, folder, keep=bool(keep))
            try:
                yield fetched
            finally:
                fetched.close()

    def _follow(self, found: Series, line: Sequence[Member], fetched: Fetched) -> None:
        """The checkpoints of one line, each against its neighbour and against the first."""
        before: list[Member] = []
        pairs = [*pairwise(line), (line[-1], None)]
        label = f"checkpoints {self.series}" if self.settings.against else "checkpoints"
        for member, following in self.parts.progress.track(pairs, label, total=len(pairs)):
            earlier = [("previous", before[-1]), ("first", before[0])] if before else []
            try:
                table = self._measure(found, member, earlier, following, fetched)
            except JomaError as error:
                self.notes.append(Note("unreadable", member.name, f"{member.name}: {error}", lost=True))
                fetched.done(member)
                continue
            self.values.append(self._placed(member, before, table))
            if len(before) > 1:
                fetched.done(before[-1])
            before.append(member)
        for member in before[:1] + before[-1:]:
            fetched.done(member)

    def _measure(
        self,
        found: Series,
        member: Member,
        earlier: Sequence[tuple[str, Member]],
        following: Member | None,
        fetched: Fetched,
    ) -> pd.DataFrame:
        settings, key = self.settings, found.content(member)[:16]

        def here() -> Path:
            path = fetched.path(member)
            if following is not None:
                fetched.ahead(following)
            return path

        tables = [self.parts.part(f"weights-{key}", lambda: weights_table(here(), settings.layers))]
        if settings.changes:
            others = [found.content(one)[:16] for _, one in earlier]
            tables.append(
                self.parts.part(
                    "-".join(["changes", key, *others]),
                    lambda: changes_table(
                        here(), [(name, fetched.path(one)) for name, one in earlier], settings.layers
                    ),
                )
            )
        if settings.reads_text:
            tables.append(self.parts.part(f"text-{key}", lambda: _on_text(settings, here())))
        return pd.concat(tables, ignore_index=True)

    def _placed(self, member: Member, before: Sequence[Member], table: pd.DataFrame) -> pd.DataFrame:
        """The measurements with their place in the training, and the speed of the weights."""
        moved = table[(table["metric"] == "change_norm") & (table["against"] == "previous")]
        if len(moved):
            steps = member.place.step - before[-1].place.step
            speed = moved.assign(metric="speed", value=moved["value"] / steps, unit=f"1/{member.place.unit}")
            table = pd.concat([table, speed], ignore_index=True)
        loss = table[table["metric"] == "loss"]["value"]
        place = {
            "series": self.series,
            "checkpoint": member.name,
            "line": member.place.line_name,
            "step": member.place.step,
            "tokens": np.nan if member.place.tokens is None else member.place.tokens,
            "loss": float(loss.iloc[0]) if len(loss) else np.nan,
        }
        return table.assign(**place)[[*place, *COLUMNS]]

    def _row(self, found: Series, member: Member) -> dict[str, object]:
        lost = {note.member for note in self.notes if note.lost}
        dated = datetime.fromtimestamp(member.date, UTC).isoformat() if np.isfinite(member.date) else ""
        return {
            "series": self.series,
            "checkpoint": member.name,
            "line": member.place.line_name,
            "step": member.place.step,
            "unit": member.place.unit,
            "tokens": np.nan if member.place.tokens is None else member.place.tokens,
            "date": dated,
            "bytes": member.size,
            "same_as": self.same_as.get(member.name, ""),
            "measured": member.name not in lost and member.name not in self.same_as,
        }

    def _notes(self) -> pd.DataFrame:
        rows = [(self.series, note.kind, note.member, note.text, note.lost) for note in self.notes]
        return pd.DataFrame(rows, columns=["series", "kind", "checkpoint", "text", "lost"]).astype(
            {"lost": bool}
        )
