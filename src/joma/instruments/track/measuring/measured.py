"""One series measured: each content once, each checkpoint against its neighbour and the first."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from joma.checkpoints.checkpoint import Checkpoint
from joma.checkpoints.formats.shard import Rooms
from joma.checkpoints.omissions import OMITTED
from joma.checkpoints.series.alike import are_mostly_shared, shapes_by_key
from joma.checkpoints.series.members import Member, Note, lines, notes_on, select
from joma.checkpoints.series.sources.find import find_series
from joma.checkpoints.series.sources.source import Series
from joma.core.errors import DiskFullError, InputError, JomaError, RunDirectoryError, contain
from joma.core.files import Json, is_there, user_path
from joma.core.memory import hand_back
from joma.instruments.track import TrackSettings
from joma.instruments.track.measuring.budget import within_budget
from joma.instruments.track.measuring.elsewhere import compute, on_text, parts_of
from joma.instruments.track.measuring.faulty import FaultyMembers, find_faulty, notes_of_faults
from joma.instruments.track.measuring.fetching import Fetcher
from joma.instruments.track.measuring.one import wanted_by
from joma.instruments.track.measuring.parts import KeptCheckpoint, Parts
from joma.instruments.track.measuring.placing import Piece, notes_of_omissions, place_rows, same_stacks
from joma.instruments.track.measuring.reading import DETAILS
from joma.instruments.track.measuring.weights import changes_table, weights_table

_TWICE = "same step"
_NO_TEXT = "no text was given, so only weights were measured; --text adds attention entropy and loss"


def _date(seconds: float) -> str:
    """In ISO format; empty where no clock tells of it, or where it is no year of a calendar."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return ""


@dataclass
class MeasuredSeries:
    """One series, measured."""

    settings: TrackSettings
    series: str
    """``A``, or ``B`` for the one laid beside it."""
    named: tuple[str, ...]
    parts: Parts
    notes: list[Note] = field(default_factory=list)
    values: list[Piece] = field(default_factory=list)
    details: dict[str, list[Piece]] = field(default_factory=dict)
    """Of a probe's sections, the tables themselves."""
    same_as: dict[str, str] = field(default_factory=dict)
    rooms: Rooms = field(default_factory=Rooms)
    faulty: FaultyMembers = field(default_factory=FaultyMembers)

    def tables(self) -> dict[str, pd.DataFrame]:
        """``checkpoints``, ``notes``, ``values``, and of a probe's sections their own tables."""
        settings = self.settings
        revisions = settings.revisions if self.series == "A" else ("all",)
        found = find_series(self.named, revisions)
        chosen = select(found.members, revisions, found.lost)
        tables: dict[str, pd.DataFrame] = {}
        told: list[Note] = []
        if settings.budget and self.series == "A":
            chosen, tables["choice"], told = within_budget(settings, found, chosen, self.parts)
        # Which of two of one step is followed is decided among those that can be read.
        self.notes = [*found.notes, *told, *(note for note in notes_on(chosen) if note.kind != _TWICE)]
        if settings.audit:
            label = "audit" if self.series == "A" else f"audit {self.series}"
            self.faulty = find_faulty(found, chosen, self.parts, label)
        contents = self._contents(found, chosen)
        self.notes += notes_of_faults(self.faulty, contents)
        self.faulty.place(found, contents, settings.layers)
        if len(contents) == 1:
            self.notes.append(
                Note("alone", contents[0].name, f"{contents[0].name} is the only checkpoint: no curve")
            )
        if not (settings.reading.reads or settings.weights):
            self.notes.append(Note("weights alone", "", _NO_TEXT))
        gone = self._gone(found)
        if self.parts.progress.elsewhere and found.distant:
            raise InputError(
                "track: a series of the hub is fetched and measured by one machine; leave --executor out."
            )
        if self.parts.progress.elsewhere:
            for line in lines(contents):
                readers = [one for one in line if self.faulty.has_whole(one)]
                compute(self.parts.progress, parts_of(settings, found, line, readers, self._words))
        with self._fetch(found) as fetched:
            for line in lines([*contents, *gone]):
                self._follow(found, line, fetched, gone)
        tables |= {name: place_rows(self.series, kept) for name, kept in self.details.items()}
        values = place_rows(self.series, self.faulty.without(self.values))
        if len(values):
            self.notes += notes_of_omissions(values)
            values = same_stacks(values[values["metric"] != OMITTED].drop(columns=["tensor", "reason"]))
        tables["values"] = values.reset_index(drop=True)
        rows = [self._row(member) for line in lines([*chosen, *gone]) for member in line]
        named = {"notes": self._notes(), "faults": self.faulty.table(self.series)}
        return {"checkpoints": pd.DataFrame(rows), **named, **tables}

    def _gone(self, found: Series) -> list[Member]:
        """Checkpoints that were measured while the series was followed, and have been removed since."""
        if not self.settings.follow:
            return []
        listed = {member.name for member in found.members}
        kept = [one for (series, _), one in self.parts.checkpoints.items() if series == self.series]
        gone = [one.values[0] for one in kept if one.values[0].name not in listed]
        self.notes += [
            Note("gone", one.name, f"{one.name} was measured and is gone since; its numbers stay")
            for one in gone
        ]
        return gone

    def _contents(self, found: Series, chosen: Sequence[Member]) -> list[Member]:
        """Each content once, without steps that occur twice, and without what cannot be read as it lies."""
        readable = []
        signatures = {}
        for member in chosen:
            with self._contain_errors(member):
                found.content(member)
                signatures[member.name] = self._shapes(found, member)
                readable.append(member)
        known = [one for one in signatures.values() if one]
        usual = max(known, key=known.count, default="")
        lasting = self._find_lasting(found, readable, signatures, usual)
        gone = {one.name for one in readable if self.faulty.leave_out(found, one, self.settings.layers)}
        for member in list(readable):
            partly = member.name in self.faulty.left_out and member.name not in gone
            if signatures[member.name] in ("", usual) or partly or member.name in lasting:
                continue
            text = f"{member.name} has other matrices, or matrices of other shapes, than most"
            self.notes.append(Note("shapes", member.name, text, lost=True))
            readable.remove(member)
        same_step = [note for note in notes_on(readable) if note.kind == _TWICE]
        self.notes += same_step
        twice = {note.member for note in same_step}
        readable = [one for one in readable if one.name not in twice]
        for group in found.identical(readable):
            kept = {name: one.name for name, one in self.faulty.kept_of(group, readable).items()}
            self.same_as |= {name: one for name, one in kept.items() if name != one}
            once = list(dict.fromkeys(kept.values()))
            count = f"as {once[0]}" if len(once) == 1 else f"in each line: as {', '.join(once)}"
            text = f"{', '.join(one.name for one in group)} are the same bytes; they count once, {count}"
            self.notes.append(Note("identical", once[0], text))
        kept_members = [member for member in readable if member.name not in self.same_as]
        return self._without_faulty_ones(kept_members, gone)

    def _find_lasting(
        self, found: Series, members: Sequence[Member], signatures: Mapping[str, str], usual: str
    ) -> set[str]:
        """Members of a model that has changed and stayed so, two in turn at least: layers were added, say."""
        kept: set[str] = set()
        example = next((one for one in members if signatures[one.name] == usual), None)
        for line in lines(members):
            for told, group in groupby(line, key=lambda one: signatures[one.name]):
                run = list(group)
                if len(run) < 2 or told in ("", usual) or example is None:
                    continue
                if are_mostly_shared(*(shapes_by_key(*found.weights(one)) for one in (run[0], example))):
                    kept |= {one.name for one in run}
                    text = f"{run[0].name} to {run[-1].name} have other matrices than most; all are measured"
                    self.notes.append(Note("structure", run[0].name, text))
        return kept

    def _without_faulty_ones(self, members: Sequence[Member], gone: Collection[str]) -> list[Member]:
        """The members without those of which the audit leaves no matrix."""
        for member in members:
            if member.name in gone:
                said = " and ".join(one.sentence().rstrip(".") for one in self.faulty.of(member)[:2])
                text = f"{said}; nothing of it is left that could be measured"
                self.notes.append(Note("faulty", member.name, text, lost=True))
        return [member for member in members if member.name not in gone]

    @contextmanager
    def _contain_errors(self, member: Member, kind: str = "unreadable", words: str = "") -> Iterator[None]:
        """Whatever goes wrong around one checkpoint is noted, and costs that checkpoint alone.

        What goes wrong where the results are written concerns all of them, and is raised.
        """
        try:
            with contain(f"{member.name} cannot be measured"):
                yield
        except (DiskFullError, RunDirectoryError):
            raise
        except JomaError as error:
            text = str(error)
            if words or member.name not in text:
                text = f"{member.name}{words}: {text}"
            self.notes.append(Note(kind, member.name, text, lost=True))

    def _shapes(self, found: Series, member: Member) -> str:
        """Names and shapes; where looking costs a transfer, it is looked once."""
        if not found.distant:
            return found.shapes(member)
        table = self.parts.part(
            f"shapes-{found.content(member)[:16]}", lambda: pd.DataFrame({"shapes": [found.shapes(member)]})
        )
        return str(table["shapes"].iloc[0])

    @contextmanager
    def _fetch(self, found: Series) -> Iterator[Fetcher]:
        wanted = wanted_by(self.settings)
        keep = self.settings.keep_downloads
        kept = self.parts.progress.checkpoint_folder("fetched")
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(keep).expanduser() if keep else kept or Path(temporary)
            fetched = Fetcher(found, wanted, folder, keep=bool(keep))
            try:
                yield fetched
            finally:
                fetched.close()

    def _follow(
        self, found: Series, line: Sequence[Member], fetched: Fetcher, gone: Sequence[Member]
    ) -> None:
        """The checkpoints of one line, each against its neighbour and against the first."""
        before: list[Member] = []
        pairs = [*pairwise(line), (line[-1], None)]
        label = f"checkpoints {self.series}" if self.settings.against else "checkpoints"
        for member, following in self.parts.progress.track(pairs, label, total=len(pairs)):
            last = before[-1] if before else None
            measured: list[KeptCheckpoint] = []
            with self._contain_errors(member):
                new = self._find_kept(found, member, last, gone)
                if new is None:
                    earlier = [("previous", before[-1]), ("first", before[0])] if before else []
                    earlier = [(name, one) for name, one in earlier if one not in gone]
                    new = self._measure(found, member, last, earlier, following, fetched)
                    if len(before) > 1:
                        fetched.done(before[-1])
                measured.append(new)
            if measured:
                self._take(measured[0])
                before.append(member)
            else:
                fetched.done(member)
        for member in before[:1] + before[-1:]:
            fetched.done(member)

    def _measure(
        self,
        found: Series,
        member: Member,
        last: Member | None,
        earlier: Sequence[tuple[str, Member]],
        following: Member | None,
        fetched: Fetcher,
    ) -> KeptCheckpoint:
        tables = self._weights(found, member, earlier, following, fetched)
        reads = self.settings.reads_text and self.faulty.has_whole(member)
        details = self._text(found, member, fetched) if reads else {}
        tables += [table for name, table in details.items() if name == "values"]
        pieces = {name: (member, last, [table]) for name, table in details.items() if name != "values"}
        hand_back()
        return KeptCheckpoint(found.content(member), (member, last, tables), pieces)

    def _find_kept(
        self, found: Series, member: Member, last: Member | None, gone: Sequence[Member]
    ) -> KeptCheckpoint | None:
        """What was measured of it before, if it is gone, or stands where and as it did."""
        kept = self.parts.checkpoints.get((self.series, member.name))
        if kept is None or member in gone:
            return kept
        return kept if kept.values[1] == last and kept.content == found.content(member) else None

    def _weights(
        self,
        found: Series,
        member: Member,
        earlier: Sequence[tuple[str, Member]],
        following: Member | None,
        fetched: Fetcher,
    ) -> list[pd.DataFrame]:
        layers, key = self.settings.layers, found.content(member)[:16]

        def here() -> Checkpoint:
            opened = fetched.checkpoint(member)
            if following is not None:
                fetched.ahead(following)
            return opened

        def measure_changes() -> pd.DataFrame:
            now = here()
            others = [(name, fetched.checkpoint(one)) for name, one in earlier]
            return changes_table(now, others, layers, self.rooms, self.settings.heads)

        tables = [self.parts.part(f"weights-{key}", lambda: weights_table(here(), layers, self.rooms))]
        if self.settings.changes:
            # A trainer that keeps the last few may have removed one meanwhile.
            earlier = [(name, one) for name, one in earlier if fetched.is_there(one)]
            others = [found.content(one)[:16] for _, one in earlier]
            with self._contain_errors(member, "changes", ": its changes cannot be measured"):
                tables.append(self.parts.part("-".join(["changes", key, *others]), measure_changes))
        return tables

    def _take(self, kept: KeptCheckpoint) -> None:
        member, *_ = kept.values
        self.parts.checkpoints[self.series, member.name] = kept
        self.values.append(kept.values)
        for name, piece in kept.details.items():
            self.details.setdefault(name, []).append(piece)

    def _text(self, found: Series, member: Member, fetched: Fetcher) -> dict[str, pd.DataFrame]:
        """What it does on the text, ``values`` and details; its weights count even where it cannot read."""
        key = found.content(member)[:16] + self._words
        details = [name for name in self.settings.sections if name in DETAILS]
        names = {name: f"text-{key}{'' if name == 'values' else f'-{name}'}" for name in ("values", *details)}
        tables: dict[str, pd.DataFrame] = {}
        with self._contain_errors(member, "text", " cannot read the text"):
            tables = self.parts.several(names, lambda: on_text(self.settings, fetched.path(member)))
        return tables  # noqa: RET504 (empty where the error was noted)

    @cached_property
    def _words(self) -> str:
        """Tells the text and the tokenizer from others under their names; empty where these are not here."""
        reading = self.settings.reading
        digest, read = hashlib.sha256(), False
        for path in (user_path(name) for name in (reading.text, reading.tokenizer) if name):
            inside = sorted(path.rglob("*")) if is_there(path) and path.is_dir() else [path]
            for file in filter(os.path.isfile, inside):  # a pipe would be waited for
                # Who reads the text says why it cannot be read.
                with contextlib.suppress(OSError), open(file, "rb") as opened:
                    digest.update(str(file.relative_to(path)).encode())
                    digest.update(hashlib.file_digest(opened, "sha256").digest())
                    read = True
        return f"-{digest.hexdigest()[:8]}" if read else ""

    def _row(self, member: Member) -> dict[str, Json]:
        measured = {one.name for one, *_ in self.values}
        return {
            "series": self.series,
            "checkpoint": member.name,
            "line": member.place.line_name,
            "step": member.place.step,
            "unit": member.place.unit,
            "tokens": np.nan if member.place.tokens is None else member.place.tokens,
            "date": _date(member.date),
            "bytes": member.size,
            "same_as": self.same_as.get(member.name, ""),
            "measured": member.name in measured,
        }

    def _notes(self) -> pd.DataFrame:
        rows = [(self.series, note.kind, note.member, note.text, note.lost) for note in self.notes]
        return pd.DataFrame(rows, columns=["series", "kind", "checkpoint", "text", "lost"]).astype(
            {"lost": bool}
        )
