"""The members of a series in their order, and what is wrong with the series as such."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np

from joma.checkpoints.series.names import Place, pattern_of, shared_beginning
from joma.core.errors import InputError, one_line

LARGEST = 2**53
"""Steps and bytes: whole numbers up to here are exact as floats."""
_A_REGULAR_SHARE = 0.5
_CHANGING = re.compile(r"(?<![0-9a-z])[0-9a-f]{7,}(?![0-9a-z])|\d+")
"""Numbers and hashes."""


@dataclass(frozen=True)
class Member:
    """A checkpoint of a series, before anything of it is read."""

    name: str
    """As the user sees it: revision, folder or file."""
    place: Place
    size: int
    """Bytes of its weights; 0 where there are none to be read."""
    date: float
    """When it was written, seconds since 1970; NaN where nothing tells."""

    def __post_init__(self) -> None:
        """Raises InputError where a step or a size is more than tables hold."""
        for what, number in (("step", self.place.step), ("size in bytes", self.size)):
            if not 0 <= number <= LARGEST:
                raise InputError(f"{self.name} has the {what} {number:.3g}, which none has.")


@dataclass(frozen=True)
class Note:
    """Something that was noticed about a series; ``lost`` if it keeps a checkpoint from being measured."""

    kind: str
    """``identical``, ``gap``, ``stale``, ``same step``, ``no member``, ``unreadable``, ``shapes``, ..."""
    member: str
    text: str
    lost: bool = False

    def __post_init__(self) -> None:
        """A name may hold line feeds, which would forge lines where notes are listed."""
        object.__setattr__(self, "text", one_line(self.text))


def counted_alike(names: Sequence[str]) -> dict[str, Place]:
    """Places of names that are one pattern in which one number differs: that number counts them.

    Nothing where they are not.
    """
    patterns = [found for name in names if (found := pattern_of(name)) is not None]
    if len(patterns) < max(2, len(names)) or len({pattern for pattern, _ in patterns}) > 1:
        return {}
    columns = list(zip(*(numbers for _, numbers in patterns), strict=False))
    varying = [column for column in columns if len(set(column)) > 1]
    if len(varying) != 1 or len(set(varying[0])) < len(names) or any(n != int(n) for n in varying[0]):
        return {}
    return {name: Place(step=int(step), unit="number") for name, step in zip(names, varying[0], strict=True)}


def in_lines(members: Sequence[Member]) -> list[Member]:
    """The members in the order of their lines, with places that say what the whole series tells.

    Of what their names say beside a step only that stays which tells lines apart: what all share does not,
    nor do numbers that are others in most names (losses, dates) where the steps tell all apart. Epochs are
    lines of their own only where their steps start over. Tokens that do not grow with the steps are none:
    they are the model's size.
    """
    members = _epochs_in_one(_rests_apart(list(members)))
    return [member for line in lines(members) for member in _with_growing_tokens(line)]


def _rests_apart(members: list[Member]) -> list[Member]:
    rests = list(dict.fromkeys(member.place.rest for member in members))
    patterns = {_CHANGING.sub("*", rest) for rest in rests}
    merged = [(one.place.stage, one.place.branch, one.place.unit, one.place.step) for one in members]
    noise = len(patterns) == 1 and 2 * len(rests) > len(members) and len(set(merged)) == len(merged)
    if len(rests) < 2 or noise:
        return [replace(one, place=replace(one.place, rest="")) for one in members]
    words = {rest: re.split(r"([ /])", rest) for rest in rests}
    shared = shared_beginning(words.values())
    apart = {rest: "".join(own[shared:]).strip(" /") for rest, own in words.items()}
    return [replace(one, place=replace(one.place, rest=apart[one.place.rest])) for one in members]


def _epochs_in_one(members: list[Member]) -> list[Member]:
    """Without epochs where the steps go on from one to the next."""

    def without(member: Member) -> Member:
        return replace(member, place=replace(member.place, epoch=None))

    placed: list[Member] = []
    for line in lines(map(without, members)):
        names = {one.name for one in line}
        own = sorted(
            (one for one in members if one.name in names),
            key=lambda one: (-1 if one.place.epoch is None else one.place.epoch, one.place.step),
        )
        grows = all(a.place.step < b.place.step for a, b in pairwise(own))
        placed += [without(one) for one in own] if grows else own
    return placed


def _with_growing_tokens(line: Sequence[Member]) -> Sequence[Member]:
    tokens = [member.place.tokens for member in line if member.place.tokens is not None]
    if all(a < b for a, b in pairwise(tokens)):
        return line
    return [replace(member, place=replace(member.place, tokens=None)) for member in line]


def lines(members: Iterable[Member]) -> list[list[Member]]:
    """The members by stage and branch, each in the order of training."""
    found: dict[object, list[Member]] = {}
    for member in sorted(members, key=lambda one: (one.place.line, one.place.step, one.name)):
        found.setdefault(member.place.line, []).append(member)
    return list(found.values())


def select(members: Sequence[Member], revisions: Sequence[str], lost: Collection[str] = ()) -> list[Member]:
    """The members asked for: ``all``, names, ``every:10`` (each tenth), ``log:20`` (20, closer at first).

    The first and the last of every line are always among ``every`` and ``log``. Names that are known to be
    ``lost`` are passed over.

    Raises:
        InputError: a name that is none of the members' nor lost, or a rule that is none.
    """
    if tuple(revisions) == ("all",):
        return list(members)
    rule, colon, count = revisions[0].partition(":")
    if len(revisions) == 1 and colon and rule in ("every", "log"):
        if not count.isdigit() or int(count) < 1:
            raise InputError(f"revisions = {revisions[0]!r}: give a whole number, as in {rule}:10.")
        pick = _every if rule == "every" else _logarithmic
        return [line[i] for line in lines(members) for i in pick(line, int(count))]
    known = {member.name: member for member in members}
    missing = [name for name in revisions if name not in known and name not in lost]
    if missing:
        some = ", ".join(list(known)[:5]) + ", ..." * (len(known) > 5)
        raise InputError(f"the series has no member {missing[0]!r}; it has {len(known)}: {some}")
    return [known[name] for name in revisions if name in known]


def _every(line: Sequence[Member], count: int) -> list[int]:
    return sorted({*range(0, len(line), count), len(line) - 1})


def _logarithmic(line: Sequence[Member], count: int) -> list[int]:
    steps = np.array([member.place.step for member in line], dtype=float)
    times = np.log1p(steps - steps[0])
    wanted = np.linspace(0.0, times[-1], count) if count > 1 else times[-1:]
    return sorted({int(np.argmin(np.abs(times - time))) for time in wanted} | {0, len(line) - 1})


def notes_on(members: Sequence[Member]) -> list[Note]:
    """Gaps, steps that occur twice, checkpoints older than their predecessor."""
    return [note for line in lines(members) for note in (*_gaps(line), *_same_steps(line), *_stale(line))]


def _gaps(line: Sequence[Member]) -> list[Note]:
    steps = sorted({member.place.step for member in line})
    spacings = Counter(np.diff(steps).tolist())
    if len(steps) < 4:
        return []
    usual, times = spacings.most_common(1)[0]
    if times < _A_REGULAR_SHARE * (len(steps) - 1):
        return []
    where = f" of {line[0].place.line_name}" if line[0].place.line_name else ""
    return [
        Note(
            "gap",
            "",
            f"{line[0].place.unit}s {a + usual:g} to {b - usual:g}{where} are missing: "
            f"{-(-(b - a) // usual) - 1:g} of the usual distance {usual:g}",
        )
        for a, b in pairwise(steps)
        if b - a > usual
    ]


def _same_steps(line: Sequence[Member]) -> list[Note]:
    return [
        Note(
            "same step",
            b.name,
            f"{b.name} has the {b.place.unit} {b.place.step} of {a.name}; the latter is followed",
            lost=True,
        )
        for _, (a, *others) in groupby(line, key=lambda one: one.place.step)
        for b in others
    ]


def _stale(line: Sequence[Member]) -> list[Note]:
    dates = np.array([member.date for member in line])
    latest = np.fmax.accumulate(dates)
    newest = [
        line[int(np.flatnonzero(dates == date)[0])] if np.isfinite(date) else line[0] for date in latest
    ]
    older: dict[str, list[str]] = {}
    for a, b in zip(newest, line[1:], strict=False):
        if b.date < a.date:
            older.setdefault(a.name, []).append(b.name)
    return [
        Note(
            "stale",
            names[0],
            f"{', '.join(names)} {'are' if len(names) > 1 else 'is'} older by date than {newer}, which "
            "comes before: perhaps left over from a run that was restarted",
        )
        for newer, names in older.items()
    ]
