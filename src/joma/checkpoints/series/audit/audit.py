"""A series audited: every member read once, each line examined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from joma.checkpoints.adapters import is_adapter, open_weights
from joma.checkpoints.checkpoint import Checkpoint
from joma.checkpoints.series.audit.content import MemberContent, align_names, read_content
from joma.checkpoints.series.audit.damage import damage_of
from joma.checkpoints.series.audit.distant import read_distant
from joma.checkpoints.series.audit.examination import examine_line
from joma.checkpoints.series.audit.faults import Fault, join_faults
from joma.checkpoints.series.audit.folding import sums_for
from joma.checkpoints.series.members import Member, lines
from joma.checkpoints.series.names import place_of
from joma.checkpoints.series.sources.source import DistantSeries, Series
from joma.core.errors import JomaError, contain

Track = Callable[[Iterable[Member]], Iterable[Member]]
_NONE = Path()


@dataclass(frozen=True)
class Audit:
    """What an audit found."""

    faults: list[Fault]
    notes: list[str]
    members: list[Member]
    """All that were looked at, those that cannot be read included where they tell a step."""


def audit_series(
    found: Series,
    chosen: Sequence[Member],
    progress: Track = iter,
    known: dict[str, MemberContent] | None = None,
) -> Audit:
    """Audit the chosen members of a series; on a hub by its hashes and samples.

    Args:
        found: the series.
        chosen: its members that are looked at.
        progress: shows how far the reading is.
        known: what was read of members before, for the next call to use again.
    """
    faults = [
        _lost_member(note.member, note.text, found) for note in found.notes if note.lost and note.member
    ]
    notes: list[str] = []
    if isinstance(found, DistantSeries):
        read, more, notes = read_distant(found, chosen, progress)
        faults += more
        if read is None:
            return Audit(join_faults(faults), notes, list(chosen))
        contents = read
    else:
        contents = _read_all(found, chosen, progress, faults, {} if known is None else known)
    for line in lines(chosen):
        own = [contents[one.name] for one in line if one.name in contents]
        if len(own) > 1:
            more, words = examine_line(align_names(own))
            faults += more
            notes += [word for word in words if word not in notes]
    if len(contents) < 2:
        notes.append("the series has one member that can be read: nothing can be compared")
    return Audit(join_faults(faults), notes, list(chosen))


def _read_all(
    found: Series,
    chosen: Sequence[Member],
    progress: Track,
    faults: list[Fault],
    known: dict[str, MemberContent],
) -> dict[str, MemberContent]:
    """The members that can be read by name; the others are added to the faults."""
    contents: dict[str, MemberContent] = {}
    opened = _open_all(found, chosen, faults)
    samples = sums_for(len(opened), max((len(one.entries) for one in opened.values()), default=1))
    for member in progress(chosen):
        if member.name not in opened:
            continue
        path = found.bring(member, None, _NONE)
        try:
            with contain(f"{member.name} cannot be read"):
                key = f"{member.name} {found.content(member)} {samples}"
                if key not in known:
                    known[key] = read_content(member, path, opened[member.name], samples)
                contents[member.name] = replace(known[key], member=member)
        except JomaError as error:
            faults.append(damage_of(member, path, error))
    return contents


def _open_all(found: Series, chosen: Sequence[Member], faults: list[Fault]) -> dict[str, Checkpoint]:
    """The members that can be opened; the others are added to the faults."""
    opened = {}
    for member in chosen:
        path = found.bring(member, None, _NONE)
        if path.is_dir() and is_adapter(path):
            continue
        try:
            with contain(f"{member.name} cannot be read"):
                opened[member.name] = open_weights(path)
        except JomaError as error:
            faults.append(damage_of(member, path, error))
    return opened


def _lost_member(name: str, text: str, found: Series) -> Fault:
    place = place_of(name)
    return Fault(name, place.step if place is not None else 0, "unreadable", (), "", text.rstrip("."))
