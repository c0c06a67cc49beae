"""The members of a series in their order, and what is wrong with the series as such."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np

from joma.checkpoints.series.names import Place
from joma.core.errors import InputError

_A_REGULAR_SHARE = 0.5


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


@dataclass(frozen=True)
class Note:
    """Something that was noticed about a series; ``lost`` if it keeps a checkpoint from being measured."""

    kind: str
    """``identical``, ``gap``, ``stale``, ``same step``, ``no member``, ``unreadable``, ``shapes``, ..."""
    member: str
    text: str
    lost: bool = False


def lines(members: Iterable[Member]) -> list[list[Member]]:
    """The members by stage and branch, each in the order of training."""
    found: dict[tuple[int, tuple[str, int], str], list[Member]] = {}
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
    return [
        Note(
            "stale",
            b.name,
            f"{b.name} is older by its date than {a.name} before it: perhaps left over from a run that was "
            "restarted",
        )
        for a, b in zip(newest, line[1:], strict=False)
        if b.date < a.date
    ]
