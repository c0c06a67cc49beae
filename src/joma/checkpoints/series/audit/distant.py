"""The audit of a series on a hub: by its hashes, and by samples where two percent suffice for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from joma.checkpoints.series.audit.content import MemberContent
from joma.checkpoints.series.audit.faults import Fault
from joma.checkpoints.series.audit.remote import SHARE, Purse, Track, names_in, read_contents
from joma.checkpoints.series.members import Member, lines
from joma.checkpoints.series.sources.source import DistantSeries


def read_distant(
    found: DistantSeries, chosen: Sequence[Member], progress: Track
) -> tuple[dict[str, MemberContent] | None, list[Fault], list[str]]:
    """The members' contents, or None and what hashes alone tell; the members that cannot be read; notes."""
    total = sum(one.size for one in chosen)
    purse = Purse(int(SHARE * total))
    safe = all(file.endswith(".safetensors") for one in chosen for file in found.files(one))
    told = read_contents(found, chosen, purse, progress) if safe and len(chosen) > 1 else None
    if told is not None:
        contents, errors = told
        faults = [
            Fault(one.name, one.place.step, "unreadable", (), "", str(errors[one.name]).rstrip("."))
            for one in chosen
            if one.name in errors
        ]
        sizes = [len(t.sample) for one in contents.values() for t in one.tensors.values()]
        note = (
            f"compared by the hub's hashes of files and by up to {max(sizes, default=0):,} entries of each "
            f"tensor: {purse.spent:,} of {total:,} bytes travelled"
        )
        return contents, faults, [note]
    faults = []
    notes: list[str] = []
    for line in lines(chosen):
        more, said = faults_by_hashes(found, line, purse)
        faults += more
        notes += said
    why = f"samples would take more than {SHARE:.0%} of the bytes"
    if not safe:
        why = "a file that is not of safetensors sends no single tensors"
    return None, faults, [*notes, f"compared by the hub's hashes of files alone: {why}"]


def faults_by_hashes(
    found: DistantSeries, line: Sequence[Member], purse: Purse
) -> tuple[list[Fault], list[str]]:
    """Members of a line that share files with another, of which one is right.

    Hashes do not tell which: it is the line's last if it is among them (final weights under the names of
    earlier steps are a common error of publishing), else the earliest. A file that is the same in all
    members, or in three or more in turn, holds what is frozen there.
    """
    holders: dict[str, list[int]] = defaultdict(list)
    for place, member in enumerate(line):
        for listed in found.files(member).values():
            if place not in holders[listed.content_hash]:
                holders[listed.content_hash].append(place)
    copies = {tuple(group) for group in _whole_groups(found, line)}
    shared: dict[tuple[int, int], set[str]] = defaultdict(set)
    notes: list[str] = []
    for digest, group in holders.items():
        in_turn = group[-1] - group[0] == len(group) - 1
        if len(group) < 2:
            continue
        if len(group) > 2 and in_turn and tuple(group) not in copies:
            notes.append(
                f"a file of {line[group[0]].name} is the same up to {line[group[-1]].name}: frozen there"
            )
            continue
        right = group[-1] if group[-1] == len(line) - 1 else group[0]
        for place in group:
            if place != right:
                shared[place, right].add(digest)
    faults = []
    for (place, right), digests in sorted(shared.items()):
        member, files = line[place], found.files(line[place])
        named = {file for file, listed in files.items() if listed.content_hash in digests}
        tensors = tuple(name for name, file in names_in(found, member, purse) if file in named)
        word = "copy" if len(named) == len(files) else "stale tensors"
        reason = "" if tensors else f"the files {', '.join(sorted(named))}"
        faults.append(Fault(member.name, member.place.step, word, tensors, line[right].name, reason))
    return faults, notes


def _whole_groups(found: DistantSeries, line: Sequence[Member]) -> list[list[int]]:
    place = {member.name: number for number, member in enumerate(line)}
    return [sorted(place[one.name] for one in group) for group in found.identical(line)]
