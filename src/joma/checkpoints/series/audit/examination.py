"""The members of one line examined: structure, identity, order, continuity, in this order.

What one of them has named is left out of the next, so that a tensor is named once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from joma.checkpoints.series.audit.averages import averages_among
from joma.checkpoints.series.audit.content import MemberContent
from joma.checkpoints.series.audit.continuity import (
    EndLook,
    cosines,
    end_moves,
    ends_apart,
    errors_along,
    find_cycle,
    find_swap,
    foreign_members,
    squared_distances,
    strangers,
    unusual,
)
from joma.checkpoints.series.audit.faults import OF_ALL, Fault, join_faults
from joma.checkpoints.series.audit.identity import shared_rows, shared_tensors
from joma.checkpoints.series.audit.reasons import reason_for
from joma.checkpoints.series.audit.structure import structure_faults, structure_notes
from joma.core.arguments import Array
from joma.core.errors import JomaError

_NEARLY_ALL = 0.6
_SUSPECT = 0.75
"""An error from which a reason is looked for, if it stands out among those of its member and its tensor."""
_STANDS_OUT = 1.5
_EXPLAINED = {"transposed", "negated", "permuted", "shifted", "swapped tensors", "merged adapter", "scaled"}
_NATURAL = {"merged adapter", "scaled"}
"""What training does by itself: the steps of small batches are of low rank, and vectors grow."""
_MOST_LOOKS = 400
_AT_REST = 1e-4
"""Share of the usual tensor's largest move below which a tensor has moved by rounding alone."""
_FOLLOWS = {"zeroed", "discontinuity", "scaled"}
_LAYER = re.compile(r".*?\.\d+\.")
_MOST_OF_LAYER = 0.7
_VALUES = {"not finite", "zeroed", "rounded", "quantised", "other shape", "transposed", "other type"}


@dataclass
class Line:
    """The members of a line, and what is already named."""

    members: list[MemberContent]
    squares: dict[str, Array] = field(default_factory=dict)
    """Tensor -> squared distances of all members; NaN where a member cannot be compared."""
    named: set[tuple[int, str]] = field(default_factory=set)

    @cached_property
    def averages(self) -> set[int]:
        """The members that say that they are averages of others."""
        return averages_among(self.members)

    def order(self, name: str) -> list[int]:
        """The members whose tensor of this name is not yet named."""
        usual = [one.tensors[name].sample.size for one in self.members if name in one.tensors]
        size = max(set(usual), key=usual.count)
        return [
            k
            for k, one in enumerate(self.members)
            if name in one.tensors
            and one.tensors[name].sample.size == size > 0
            and (k, name) not in self.named
        ]

    def distances(self, name: str) -> Array:
        """Squared, (members, members); read only at members of ``order``."""
        if name not in self.squares:
            order = self.order(name)
            whole = np.full((len(self.members), len(self.members)), np.nan)
            whole[np.ix_(order, order)] = squared_distances(self.samples(name, order))
            self.squares[name] = whole
        return self.squares[name]

    def samples(self, name: str, order: Sequence[int]) -> Array:
        """(members of ``order``, samples)."""
        return np.stack([self.members[k].tensors[name].sample for k in order])


def examine_line(members: Sequence[MemberContent]) -> tuple[list[Fault], list[str]]:
    """The faults of one line, ``members`` all read and in the order of training; and notes."""
    line = Line(list(members))
    found = structure_faults(members)
    for fault in found:
        if fault.fault in _VALUES - {"other type", "rounded", "quantised"}:
            line.named |= _places(members, fault)
        if fault.fault == "renumbered layers":
            place = _place(members, fault.member)
            line.named |= {(place, name) for name in members[place].tensors}
    whole = [one for one in members if one.tensors]
    shared = shared_tensors(whole)
    found += shared.faults
    line.named |= {(_place(members, whole[k].member.name), name) for k, name in shared.named}
    rows = shared_rows(whole, shared.named)
    line.named |= {told for fault in rows for told in _places(members, fault)}
    found += rows
    names = _compared_tensors(line)
    found += _foreign_faults(line, names)
    found += _swap_faults(line, names)
    found += _inner_faults(line, names)
    found += _at_ends(line, names)
    return _without_consequences(line, join_faults(found)), [*structure_notes(members), *shared.notes]


def _places(members: Sequence[MemberContent], fault: Fault) -> set[tuple[int, str]]:
    """Of a fault its member's place and its tensors."""
    place, stored = _place(members, fault.member), set(fault.tensors)
    return {(place, name) for name, tensor in members[place].tensors.items() if tensor.name in stored}


def _without_consequences(line: Line, found: Sequence[Fault]) -> list[Fault]:
    """The faults without what follows from another one of the same member."""
    whole = {one.member for one in found if one.fault in OF_ALL}
    stale = {(one.member, name) for one in found if one.fault == "stale tensors" for name in one.tensors}
    kept = []
    for one in sorted(found, key=lambda fault: fault.fault in _FOLLOWS):
        if one.fault in _FOLLOWS:
            left = tuple(name for name in one.tensors if (one.member, name) not in stale)
            if one.member in whole or not left:
                continue
            one = replace(one, tensors=left)
        if one.fault in ("swapped tensors", "discontinuity") and not one.matches:
            place = _place(line.members, one.member)
            others = {
                name
                for fault in found
                if fault.member == one.member and fault is not one and fault.fault not in _FOLLOWS
                for name in fault.tensors
            }
            one = replace(one, tensors=tuple(_with_layers(line.members[place], one.tensors, others)))
            stale |= {(one.member, name) for name in one.tensors}
        kept.append(one)
    return kept


def _with_layers(one: MemberContent, named: Sequence[str], others: set[str]) -> list[str]:
    """The tensors, and the rest of every layer most of which is named: gains alone tell layers not apart."""
    layers: dict[str, list[str]] = {}
    for tensor in one.tensors.values():
        if match := _LAYER.match(tensor.name):
            layers.setdefault(match[0], []).append(tensor.name)
    whole = [own for own in layers.values() if len(set(own) & set(named)) >= _MOST_OF_LAYER * len(own)]
    return [*named, *(n for own in whole for n in own if n not in named and n not in others)]


def _place(members: Sequence[MemberContent], name: str) -> int:
    return next(k for k, one in enumerate(members) if one.member.name == name)


def _compared_tensors(line: Line) -> list[str]:
    """The tensors that change along the line by more than rounding.

    A key's bias has no gradient but that of rounding, since softmax does not see it: it goes where it will.
    """
    names = dict.fromkeys(name for one in line.members for name in one.tensors)
    changing = [
        name
        for name in names
        if len(order := line.order(name)) > 2
        and len({line.members[k].tensors[name].digest for k in order}) > 1
    ]
    moves = {name: _largest_move(line, name) for name in changing}
    usual = float(np.median(list(moves.values()))) if moves else 0.0
    return [name for name in changing if moves[name] > _AT_REST * usual]


def _largest_move(line: Line, name: str) -> float:
    """The largest root mean square change of an entry from one member to the next."""
    order, squares = line.order(name), line.distances(name)
    size = line.members[order[0]].tensors[name].sample.size
    return float(np.sqrt(max(squares[a, b] for a, b in pairwise(order)) / size))


def _foreign_faults(line: Line, names: Sequence[str]) -> list[Fault]:
    """Two and more members in turn of another run."""
    order = [k for k, one in enumerate(line.members) if one.tensors and k not in line.averages]
    clean = [name for name in names if set(order) <= set(line.order(name))]
    matrices = [name for name in clean if len(line.members[order[0]].tensors[name].shape) > 1]
    if len(order) < 4 or 2 * len(clean) < len(names):
        return []
    angles = np.stack([cosines(line.samples(name, order)) for name in matrices]) if matrices else np.zeros(0)
    squares = [line.distances(name)[np.ix_(order, order)] for name in clean]
    steps = [float(line.members[k].member.place.step) for k in order]
    return [_whole(line, order[place]) for place in sorted(foreign_members(squares, angles, steps))]


def _swap_faults(line: Line, names: Sequence[str]) -> list[Fault]:
    """Members that have each other's place; found anew until there are none."""
    found: list[Fault] = []
    used: set[int] = set()
    while len(used) < len(line.members):
        full = [k for k, one in enumerate(line.members) if one.tensors and k not in used]
        full = [k for k in full if k not in line.averages]
        clean = [
            n for n in names if all((k, n) not in line.named and n in line.members[k].tensors for k in full)
        ]
        clean = [n for n in clean if set(full) <= set(line.order(n))]
        if len(clean) < 0.5 * len(names):
            full = [k for k in full if sum((k, n) in line.named for n in names) < 0.3 * len(names)]
            clean = [n for n in names if set(full) <= set(line.order(n))]
        full = [k for k in full if k not in _strangers(line, clean, full)]
        pair = find_swap([line.distances(name) for name in clean], full) if clean else None
        if pair is None:
            return found
        if own := {k for k in pair if 0 < full.index(k) < len(full) - 1 and _have_reasons(line, k, clean)}:
            used |= own  # it is in its place, and something was done to it
            continue
        cycle = find_cycle([line.distances(name) for name in clean], full, pair)
        moved = tuple(pair) if cycle is None else cycle
        for k, other in zip(moved, (*moved[1:], moved[0]), strict=True):
            one = line.members[k]
            changing = one.stored_names([name for name in names if name in one.tensors])
            match = line.members[other].member.name
            found.append(Fault(one.member.name, one.member.place.step, "swapped members", changing, match))
            line.named |= {(k, name) for name in one.tensors}
        used |= set(moved)
    return found


def _strangers(line: Line, names: Sequence[str], order: Sequence[int]) -> set[int]:
    matrices = (
        [name for name in names if len(line.members[order[0]].tensors[name].shape) > 1] if order else []
    )
    angles = [cosines(line.samples(name, order)) for name in matrices]
    return strangers([line.distances(name) for name in names], angles, order)


def _inner_faults(line: Line, names: Sequence[str]) -> list[Fault]:
    """Members between two others that do not lie between them."""
    errors: dict[str, dict[int, float]] = {}
    tests = 0
    for name in names:
        order = line.order(name)
        kept = errors_along(line.distances(name), order) if len(order) > 2 else {}
        errors[name] = {k: e for k, e in kept.items() if k not in line.averages}
        tests += len(kept)
    apart: dict[int, dict[str, float]] = {}
    for name, own in errors.items():
        for k, error in unusual(own, tests).items():
            apart.setdefault(k, {})[name] = error
    suspects = _suspects(errors)
    found: list[Fault] = []
    for k in sorted(set(apart) | set(suspects)):
        judged = [name for name, own in errors.items() if k in own]
        named = apart.get(k, {})
        if (
            len(named) >= _NEARLY_ALL * len(judged)
            and len(named) > 2
            and _are_matrices(line, k, named, judged)
        ):
            found.append(_whole(line, k))
            continue
        looks = sorted({*named, *suspects.get(k, ())}, key=lambda n: -errors[n][k])[:_MOST_LOOKS]
        found += _reasons(line, k, looks, set(named))
    return found


def _are_matrices(line: Line, k: int, named: dict[str, float], judged: Sequence[str]) -> bool:
    matrices = [name for name in judged if len(line.members[k].tensors[name].shape) > 1]
    return sum(name in named for name in matrices) >= _NEARLY_ALL * len(matrices)


def _suspects(errors: dict[str, dict[int, float]]) -> dict[int, set[str]]:
    """Member -> tensors whose error stands out among those of the tensor and of the member."""
    by_member: dict[int, list[float]] = {}
    for own in errors.values():
        for k, error in own.items():
            by_member.setdefault(k, []).append(error)
    usual = {k: float(np.median(values)) for k, values in by_member.items()}
    found: dict[int, set[str]] = {}
    for name, own in errors.items():
        middle = float(np.median(list(own.values()))) if len(own) > 2 else 0.0
        for k, error in own.items():
            if error > max(_SUSPECT, _STANDS_OUT * middle, _STANDS_OUT * usual[k]):
                found.setdefault(k, set()).add(name)
    return found


def _whole(line: Line, k: int) -> Fault:
    one = line.members[k]
    line.named |= {(k, name) for name in one.tensors}
    return Fault(one.member.name, one.member.place.step, "other run", one.stored_names(one.tensors))


def _have_reasons(line: Line, k: int, names: Sequence[str]) -> bool:
    """Whether most of a few matrices are what they are for a reason of their own, and not of another run."""
    few = [name for name in names if len(line.members[k].tensors[name].shape) > 1][:5]
    words = [_reason(line, k, name)[0] for name in few]
    return 2 * sum(word in _EXPLAINED for word in words) > len(words)


def _reason(line: Line, k: int, name: str) -> tuple[str, str]:
    order = line.order(name)
    at = order.index(k)
    low = line.members[order[at - 1]] if at > 0 else None
    up = line.members[order[at + 1]] if at + 1 < len(order) else None
    try:
        return reason_for(name, line.members[k], low, up)
    except JomaError:
        return "discontinuity", ""


def _reasons(line: Line, k: int, names: Sequence[str], sure: set[str]) -> list[Fault]:
    found = []
    one = line.members[k]
    for name in names:
        word, reason = _reason(line, k, name)
        if name in sure or word in _EXPLAINED - _NATURAL:
            match = _likeness(line, k, name) if word == "discontinuity" else ""
            found.append(
                Fault(one.member.name, one.member.place.step, word, one.stored_names([name]), match, reason)
            )
            line.named.add((k, name))
    return found


def _likeness(line: Line, k: int, name: str) -> str:
    """The member at which the tensor would be in its place, if there is one."""
    squares, order = line.distances(name), line.order(name)
    at = order.index(k)
    others = [m for m in order if m != k]
    ways = [squares[a, b] for a, b in pairwise(others)]
    near = min(others, key=lambda m: squares[k, m])
    beside = order[max(0, at - 1) : at + 2]
    return line.members[near].member.name if near not in beside and squares[k, near] < max(ways) else ""


def _at_ends(line: Line, names: Sequence[str]) -> list[Fault]:
    """The first and the last member, which lie between no others."""
    found: list[Fault] = []
    for first in (True, False):
        places = [k for k, one in enumerate(line.members) if one.tensors]
        if len(places) < 4:
            continue
        end = places[0] if first else places[-1]
        if end in line.averages:
            continue
        looks: dict[str, EndLook] = {}
        nearest = {name: tuple(line.order(name)[:3] if first else line.order(name)[:-4:-1]) for name in names}
        usual_ones = Counter(nearest.values()).most_common(1)
        for name, near in nearest.items():
            order = line.order(name)
            # Where a neighbour is left out, a tensor moves farther than the others do.
            if len(order) < 4 or end not in order or near != usual_ones[0][0]:
                continue
            samples = line.samples(name, near)
            angles = cosines(samples)
            angles[~samples.any(axis=1)] = np.nan  # all zero, as biases begin: related to nothing, and to all
            looks[name] = EndLook(
                end_moves(line.distances(name), order, first),
                float(angles[0, 1]),
                float(angles[1, 2]),
                line.members[end].tensors[name].sample.size,
            )
        apart = ends_apart(looks)
        matrices = [name for name in looks if len(line.members[end].tensors[name].shape) > 1]
        all_apart = sum(name in apart for name in matrices) >= _NEARLY_ALL * len(matrices) > 1
        if all_apart and not _have_reasons(line, end, sorted(apart)):
            found.append(_whole(line, end))
        elif apart:
            usual = float(np.median([one.moves for one in looks.values()]))
            more = {name for name, one in looks.items() if one.moves > _STANDS_OUT * usual}
            found += _reasons(line, end, sorted(apart | more), apart)
    return found
