"""The members that an audit names, for who measures them: which of their matrices are left out, and why."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from joma.checkpoints.series.alike import Key, matrices_by_key
from joma.checkpoints.series.audit.audit import audit_series
from joma.checkpoints.series.audit.faults import OF_ALL, OF_DIGITS, UNREADABLE, Fault
from joma.checkpoints.series.members import Member, Note
from joma.checkpoints.series.sources.source import Series, kept_of
from joma.core.errors import DiskFullError, JomaError, RunDirectoryError, contain
from joma.instruments.track.measuring.parts import Parts
from joma.instruments.track.measuring.placing import Piece

COLUMNS = ["series", "checkpoint", "step", "fault", "tensors", "matches"]
"""Of the table ``faults``."""
_HARMLESS_TO_TEXTS = OF_DIGITS | {"further tensors"}
_PAIR = {"query_key": ("query", "key")}
_NOTHING: frozenset[Key] = frozenset()
_Place = tuple[int | None, str, str, str]


@dataclass
class FaultyMembers:
    """What an audit said of a series."""

    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problem: str = ""
    """Why there was no audit."""
    left_out: dict[str, frozenset[Key]] = field(default_factory=dict)
    """Member -> its matrices that are left out."""
    places: dict[str, dict[_Place, Key]] = field(default_factory=dict)
    """Of those members the keys of all matrices, by how rows name them."""

    def of(self, member: Member) -> list[Fault]:
        """The faults of one member that was read."""
        return [one for one in self.faults if one.member == member.name and one.fault not in UNREADABLE]

    def has_whole(self, member: Member) -> bool:
        """Whether the member can read a text as what its name says: all of its tensors take part in that."""
        return all(one.fault in _HARMLESS_TO_TEXTS for one in self.of(member))

    def leave_out(self, found: Series, member: Member, layers: Sequence[int] | None) -> bool:
        """Note which matrices of the member are left out; True where none is left that could be measured."""
        named = {name for one in self.of(member) if one.fault not in OF_DIGITS for name in one.tensors}
        if all(one.fault in OF_DIGITS for one in self.of(member)):
            return False
        if any(one.fault in OF_ALL for one in self.of(member)):
            return True
        try:
            weights, config = found.weights(member)
        except JomaError:  # a file that tells its tensors only when it has come whole
            return True
        keys = matrices_by_key(weights, config, layers=layers)
        out = {key for key, matrix in keys.items() if named & {matrix.tensor, *weights[matrix.tensor].parts}}
        self.left_out[member.name] = frozenset(out)
        self.places[member.name] = {
            (one.layer, one.stack, one.expert, one.role): key for key, one in keys.items()
        }
        return len(out) == len(keys)

    def kept_of(self, group: Sequence[Member], members: Sequence[Member]) -> dict[str, Member]:
        """Which of identical members stands for each: the one that is no other's copy, if the audit tells."""
        rightful = [one for one in group if not any(fault.fault == "copy" for fault in self.of(one))]
        lines = {one.place.line for one in group}
        if self.faults and len(rightful) == len(lines) == 1:
            return {one.name: rightful[0] for one in group}
        return kept_of(group, members)

    def without(self, pieces: Sequence[Piece]) -> list[Piece]:
        """The measurements without what is left out of them, and without changes since what is left out."""
        kept: list[Piece] = []
        first: Member | None = None
        for member, last, tables in pieces:
            first = member if last is None or first is None else first
            own = self.left_out.get(member.name, _NOTHING)
            since = {
                "": own,
                "previous": own | (_NOTHING if last is None else self.left_out.get(last.name, _NOTHING)),
                "first": own | self.left_out.get(first.name, _NOTHING),
            }
            if any(since.values()):
                places = self.places.get(member.name, {})
                tables = [_without(table, places, since) for table in tables]
            kept.append((member, last, tables))
        return kept

    def place(self, found: Series, members: Sequence[Member], layers: Sequence[int] | None) -> None:
        """Note the matrices of the members too whose neighbours or first are named."""
        if not any(self.left_out.values()):
            return
        for member in members:
            if member.name not in self.places:
                try:
                    weights, config = found.weights(member)
                except JomaError:
                    continue
                self.places[member.name] = {
                    (one.layer, one.stack, one.expert, one.role): key
                    for key, one in matrices_by_key(weights, config, layers=layers).items()
                }

    def table(self, series: str) -> pd.DataFrame:
        """The table ``faults``."""
        rows = [
            (series, one.member, one.step, one.fault, list(one.tensors), one.matches) for one in self.faults
        ]
        return pd.DataFrame(rows, columns=COLUMNS)


def _without(
    table: pd.DataFrame, places: Mapping[_Place, Key], since: Mapping[str, frozenset[Key]]
) -> pd.DataFrame:
    if not {"layer", "stack", "expert", "matrix", "against"} <= set(table.columns):
        return table
    named = table[["layer", "stack", "expert", "matrix", "against"]].itertuples(index=False, name=None)
    good = [
        not any(
            places.get((None if pd.isna(layer) else int(layer), stack, expert, role)) in since[against]
            for role in _PAIR.get(matrix, (matrix,))
        )
        for layer, stack, expert, matrix, against in named
    ]
    return table[good].reset_index(drop=True)


def find_faulty(
    found: Series,
    chosen: Sequence[Member],
    parts: Parts,
    label: str,
) -> FaultyMembers:
    """Audit the members; what was found is a part, which is found again without reading them anew.

    The seconds that it took are noted as the run's cost ``label``, apart from the measuring.
    """
    progress = parts.progress

    def compute() -> pd.DataFrame:
        started = time.monotonic()
        with contain("its members cannot be compared"):
            audited = audit_series(
                found, chosen, lambda some: progress.track(some, label, total=len(chosen)), parts.contents
            )
        rows: list[tuple[object, ...]] = [
            ("fault", one.member, one.step, one.fault, list(one.tensors), one.matches, one.reason)
            for one in audited.faults
        ]
        rows += [("note", "", 0, "", [], "", text) for text in audited.notes]
        progress.note_cost(label, time.monotonic() - started)
        return pd.DataFrame(rows, columns=["kind", "member", "step", "fault", "tensors", "matches", "text"])

    try:
        table = parts.part(f"audit-{_key_of(found, chosen)}", compute)
    except (DiskFullError, RunDirectoryError):
        raise
    except JomaError as error:
        return FaultyMembers(problem=str(error))
    result = FaultyMembers()
    for row in table.itertuples():
        if row.kind == "fault":
            result.faults.append(
                Fault(row.member, int(row.step), row.fault, tuple(row.tensors), row.matches, row.text)
            )
        else:
            result.notes.append(row.text)
    return result


def _key_of(found: Series, chosen: Sequence[Member]) -> str:
    """Tells these members with these contents from any others."""
    digest = hashlib.sha256()
    for member in chosen:
        try:
            told = found.content(member)
        except JomaError:  # who reads it says why it cannot be read
            told = ""
        digest.update(f"{member.name} {member.place} {told}\n".encode())
    digest.update(repr([(note.member, note.text) for note in found.notes if note.lost]).encode())
    return digest.hexdigest()[:16]


def notes_of_faults(faulty: FaultyMembers, measured: Sequence[Member]) -> list[Note]:
    """A note for each fault of the members that are measured, and of what the audit noticed beside."""
    notes = []
    for member in measured:
        for fault in faulty.of(member):
            text = fault.sentence().rstrip(".")
            if fault.fault in OF_DIGITS:
                notes.append(Note("digits", member.name, f"{text}; it is measured as it is"))
            else:
                left = "these tensors are left out of the curves, and so are the changes since them"
                notes.append(Note("faulty", member.name, f"{text}; {left}", lost=True))
    notes += [Note("audit", "", text) for text in faulty.notes]
    if faulty.problem:
        notes.append(Note("audit", "", f"the series could not be audited: {faulty.problem}"))
    return notes
