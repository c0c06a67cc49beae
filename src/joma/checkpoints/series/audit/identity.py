"""Which members share tensors or rows bit for bit, and which of two is the one that they belong to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from joma.checkpoints.series.audit.content import MemberContent
from joma.checkpoints.series.audit.continuity import error_at, squared_distances
from joma.checkpoints.series.audit.faults import Fault
from joma.core.arguments import Array
from joma.core.printing import some_names

_EVIDENCE = 16
"""Entries that other intervals change: fewer may stay as they are by chance."""
_WHOLE = 0.999
_TWICE = 1.5
"""Times the usual squared change, where an interval holds two: noise adds to 2, a drift to 4."""
_FEW = 4
"""A tensor that differs in one of so many members at most rests in the others."""
_FEWEST_BLOCKS, _OTHERS = 2, 4
"""Blocks of rows that two members share, and by which factor these are more than those of any other two."""


@dataclass
class SharedTensors:
    """What identity found."""

    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    named: set[tuple[int, str]] = field(default_factory=set)
    """(place of a member, tensor) that belong to another member."""


def shared_tensors(members: Sequence[MemberContent]) -> SharedTensors:
    """Copies and stale tensors of one line, ``members`` in the order of training."""
    found = SharedTensors()
    names = [n for n in members[0].tensors if all(n in one.tensors for one in members)] if members else []
    digests = {name: [one.tensors[name].digest for one in members] for name in names}
    still = [name for name in names if len(set(digests[name])) == 1] if len(members) > 1 else []
    alive = [n for n in names if n not in set(still) and not all(one.tensors[n].constant for one in members)]
    if still and alive:
        found.notes.append(f"{some_names(still)}: the same in all members (frozen, or never written)")
    if names and tied_tensors(members, names):
        found.notes.append(
            f"{some_names(tied_tensors(members, names))}: the same bytes as another tensor (tied)"
        )
    if not alive and len(members) > 1:
        alive = [name for name in names if not members[0].tensors[name].constant]
    pairs, jumped = _sharing_pairs(members, alive, digests)
    counted = {pair: len(own) for pair, own in pairs.items()}
    for (stale, fitting), own in sorted(pairs.items()):
        if len(own) == 1 and ".experts." in own[0] and abs(stale - fitting) == 1:
            found.notes.append(f"{own[0]} did not change from one member to the next (an expert at rest)")
            continue
        own += [n for n in names if n not in own and len(own) > 1 and _came_along(members, n, stale, fitting)]
        same = [name for name in alive if digests[name][stale] == digests[name][fitting]]
        whole = len(same) >= _WHOLE * len(alive) and 2 * len(own) >= len(alive)
        if whole and any(counted[pair] > counted[stale, fitting] for pair in counted if pair[0] == stale):
            continue  # of several members with the same contents one is named
        own += [name for name in same if whole and name not in own]
        beside = not whole and abs(stale - fitting) == 1 and stale not in jumped
        if beside:
            sides = [(stale, fitting), (fitting, stale)]
            jumps = [side for side in sides if _moved_twice(members, own, alive, *side)]
            stale, fitting = (jumps or sides)[0]
        if beside and not jumps:
            names_of_two = " and ".join(members[k].member.name for k in sorted((stale, fitting)))
            found.notes.append(f"{some_names(own)}: the same in {names_of_two} (frozen between them)")
            continue
        if {members[k].member.place.step for k in (stale, fitting)} == {0, 1}:
            found.notes.append(
                f"{some_names(own)}: the same in step 1 as in step 0 (a first step of rate zero)"
            )
            continue
        tied_names = [name for name in names if name not in alive and whole]
        member = members[stale].member
        found.faults.append(
            Fault(
                member.name,
                member.place.step,
                "copy" if whole else "stale tensors",
                members[stale].stored_names([*own, *tied_names]),
                members[fitting].member.name,
            )
        )
        found.named |= {(stale, name) for name in own}
    return found


def _sharing_pairs(
    members: Sequence[MemberContent], alive: Sequence[str], digests: Mapping[str, Sequence[bytes]]
) -> tuple[dict[tuple[int, int], list[str]], set[int]]:
    """(stale, fitting) -> the tensors that they share, and the members where a line's end jumps to rest."""
    sharing: dict[tuple[int, ...], list[str]] = defaultdict(list)
    resting: dict[tuple[int, ...], list[str]] = defaultdict(list)
    jumped: set[int] = set()
    for name in alive:
        groups: dict[bytes, list[int]] = defaultdict(list)
        for place, digest in enumerate(digests[name]):
            groups[digest].append(place)
        for group in groups.values():
            if len(group) > 1:
                (sharing if _is_evidence(members, name, group) else resting)[tuple(group)].append(name)
    for shared, own in resting.items():
        if _jumps_to_rest(members, own, alive, shared):
            sharing[shared] += own
            jumped |= set(shared)
    pairs: dict[tuple[int, int], list[str]] = defaultdict(list)
    for shared, own in sharing.items():
        # What the same members share belongs to one of them: to that which most of its tensors fit.
        votes = Counter(_owner_of(members, name, shared) for name in own)
        fitting = max(shared, key=lambda k: (votes[k], k))
        for stale in shared:
            if stale != fitting:
                pairs[stale, fitting] += own
    _settle_sides(members, alive, pairs)
    return pairs, jumped


def _moved_twice(
    members: Sequence[MemberContent], own: Sequence[str], alive: Sequence[str], stale: int, fitting: int
) -> bool:
    """Whether tensors that a member shares with its neighbour changed by two intervals' worth beside it.

    Where ``stale`` holds what its neighbour has, its own change is seen in the interval on its other side,
    with that interval's. Tensors that were frozen between the two move there as they do elsewhere, in
    comparison with the tensors that went on. At the end of a line there is no such interval.
    """
    beyond = 2 * stale - fitting
    if not 0 <= beyond < len(members):
        return False
    interval = min(stale, beyond)
    usual = _median_share(members, [n for n in alive if n not in own], interval, min(stale, fitting))
    own_share = _median_share(members, own, interval, min(stale, fitting))
    return usual > 0 and own_share > _TWICE * usual  # where the others rest there, parts rest in turn


def _jumps_to_rest(
    members: Sequence[MemberContent], own: Sequence[str], alive: Sequence[str], group: Sequence[int]
) -> bool:
    """Whether tensors that are the same in the last three members or more came there by a jump.

    Tensors that were frozen from there on moved before as they did elsewhere.
    """
    before, last = group[0] - 1, len(members) - 1
    if len(group) < 3 or before < 0 or list(group) != list(range(group[0], last + 1)) or len(own) < 3:
        return False
    usual = _median_share(members, [name for name in alive if name not in own], before, group[0])
    return 0.0 < _TWICE * usual < _median_share(members, own, before, group[0])


def _median_share(members: Sequence[MemberContent], names: Sequence[str], interval: int, rest: int) -> float:
    """The squared change in an interval over the median where there is some; the median tensor's.

    The interval ``rest`` is left out; 0 where no tensor changes in two others.
    """
    shares = []
    for name in names:
        samples = [one.tensors[name].sample for one in members]
        if len({sample.size for sample in samples}) != 1 or not samples[0].size:
            continue
        squares = [float(np.square(after - before).sum()) for before, after in pairwise(samples)]
        others = [x for k, x in enumerate(squares) if k not in (interval, rest) and x > 0]
        if others:
            shares.append(squares[interval] / float(np.median(others)))
    return float(np.median(shares)) if shares else 0.0


def shared_rows(members: Sequence[MemberContent], named: Collection[tuple[int, str]]) -> list[Fault]:
    """Tensors part of whose rows or columns are another member's, as where a file of one rank is left over.

    Rows count that are what they were two members before or earlier, and were not between: rows at rest,
    whose word or expert did not occur, stay and do not come back. Where many pairs of members share some,
    the rows move by no more than the rounding of their type, and nothing is told.
    """
    pairs: dict[tuple[int, int], dict[str, str]] = defaultdict(dict)
    for name in members[0].tensors if members else ():
        if not all(name in one.tensors for one in members):
            continue
        order = [k for k in range(len(members)) if (k, name) not in named]
        contents = Counter(members[k].tensors[name].digest for k in order)
        if contents and _in_nearly_all(contents.most_common(1)[0][1], len(order)):
            continue  # at rest, and something else where it is not
        sizes = {members[k].tensors[name].sample.size for k in order}
        for kind in ("rows", "columns"):
            blocks = [members[k].tensors[name].blocks_of(kind) for k in order]
            if len({len(own) for own in blocks}) != 1 or len(sizes) != 1 or sizes == {0}:
                continue
            if shared := _largest_share(blocks):
                pair, part = shared
                pairs[order[pair[0]], order[pair[1]]][name] = f"{100 * part:.0f} % of the {kind} of {name}"
    found = []
    for pair, reasons in sorted(pairs.items()):
        sides = [_owner_of(members, name, pair) for name in reasons]
        fitting = max(sorted(set(sides), reverse=True), key=sides.count)
        stale = pair[pair[0] == fitting]
        one, names = members[stale], list(reasons)
        reason = f"{reasons[names[0]]} are the same"
        place, match = one.member.place.step, members[fitting].member.name
        found.append(Fault(one.member.name, place, "stale tensors", one.stored_names(names), match, reason))
    return found


def _largest_share(blocks: Sequence[tuple[bytes, ...]]) -> tuple[tuple[int, int], float] | None:
    """The two members that share blocks as no other two do, and the part of the blocks that they share."""
    votes = _votes(blocks)
    if not votes:
        return None
    (pair, most), *others = votes.most_common()
    rivals = [count for other, count in others if not set(other) & set(pair)]
    if most < _FEWEST_BLOCKS or most < _OTHERS * max(rivals, default=0):
        return None
    return pair, most / len(blocks[0])


def _votes(blocks: Sequence[tuple[bytes, ...]]) -> Counter[tuple[int, int]]:
    """(earlier, later) -> blocks of rows that are the same in both and others in every member between."""
    votes = Counter[tuple[int, int]]()
    repeated = {digest for own in blocks for digest, times in Counter(own).items() if times > 1}
    for line in zip(*blocks, strict=True):
        last: dict[bytes, int] = {}
        for place, digest in enumerate(line):
            if digest in last and last[digest] < place - 1 and digest not in repeated:
                votes[last[digest], place] += 1
            last[digest] = place
    return votes


def _came_along(members: Sequence[MemberContent], name: str, stale: int, fitting: int) -> bool:
    """Whether a tensor without evidence of its own (of one number, say) left its neighbours with the rest."""
    digests = [one.tensors[name].digest for one in members]
    beside = [digests[k] for k in (stale - 1, stale + 1) if 0 <= k < len(digests) and k != fitting]
    return digests[stale] == digests[fitting] and bool(beside) and digests[stale] not in beside


def tied_tensors(members: Sequence[MemberContent], names: Sequence[str]) -> list[str]:
    """Tensors that are another one's bytes in every member."""
    seen: dict[tuple[bytes, ...], str] = {}
    twice = []
    for name in names:
        first = members[0].tensors[name]
        if first.constant or len(first.shape) < 2:
            continue
        key = tuple(one.tensors[name].digest for one in members)
        if key in seen:
            twice.append(name)
        seen.setdefault(key, name)
    return twice


def _is_evidence(members: Sequence[MemberContent], name: str, group: Sequence[int]) -> bool:
    """Whether the tensor's equality says anything: elsewhere it changes in many entries, and not by rest.

    A tensor that stays for three members or more in turn is frozen there, and where it is the same in all but
    a few members, these are the ones that differ.
    """
    tensors = [one.tensors[name] for one in members]
    if tensors[group[0]].constant or not tensors[group[0]].sample.size:
        return False
    run = group[-1] - group[0] == len(group) - 1
    if len(group) > 2 and (run or _in_nearly_all(len(group), len(members))):
        # Whole members that are copies of one are told by all of their tensors together.
        return all(
            members[group[0]].tensors[n].digest == members[k].tensors[n].digest
            for k in group
            for n in members[group[0]].tensors
            if n in members[k].tensors
        ) and len(group) < len(members)
    changed = [
        int(np.count_nonzero(a.sample != b.sample))
        for a, b in pairwise(tensors)
        if a.digest != b.digest and a.sample.shape == b.sample.shape
    ]
    if not changed:
        return len(members) == 2 or len(group) < len(members)
    return min(changed) >= min(_EVIDENCE, tensors[0].sample.size // 2)


def _in_nearly_all(count: int, members: int) -> bool:
    return _FEW * (members - count) <= members


def _owner_of(members: Sequence[MemberContent], name: str, group: Sequence[int]) -> int:
    """Which of a group lies best between its neighbours, the group left out.

    Of two at the end of a line nothing tells which: the last one counts, since final weights under the names
    of earlier steps are a common error of publishing, and the reverse is not.
    """
    size = members[group[0]].tensors[name].sample.size
    usable = [k for k, one in enumerate(members) if one.tensors[name].sample.size == size]
    squares = squared_distances(np.stack([members[k].tensors[name].sample for k in usable]))
    inside = [usable.index(k) for k in group]
    errors = {k: _misfit(squares, [members[m] for m in usable], usable.index(k), inside) for k in group}
    last = len(members) - 1
    return min(group, key=lambda k: (errors[k], k != last))


def _misfit(squares: Array, members: Sequence[MemberContent], place: int, group: Sequence[int]) -> float:
    """How badly the content stands here. Neighbours are those outside of the group."""
    order = [k for k in range(len(members)) if k == place or k not in group]
    at = order.index(place)
    if len(order) < 3:
        return 0.0 if place == group[-1] else 1.0  # the final weights under an earlier name
    steps = np.array([float(members[k].member.place.step) for k in order])
    apart = group[-1] - group[0] >= len(group)  # in a row all have the same neighbours: the steps decide
    if 0 < at < len(order) - 1:
        low, up = squares[order[at - 1], place], squares[place, order[at + 1]]
        if apart:
            return error_at(squares, order, at)
        before, after = steps[at] - steps[at - 1], steps[at + 1] - steps[at]
        if min(low, up, before, after) <= 0:
            return 1.0
        return abs(float(np.log(low / up) - np.log(before / after)))
    near, far = (order[1], order[2]) if at == 0 else (order[-2], order[-3])
    if apart:
        step, beyond = squares[place, near], squares[near, far]
        return float(np.sqrt(step / beyond)) / 2.0 if beyond > 0 else 1.0
    return 1.0


def _settle_sides(
    members: Sequence[MemberContent], alive: Sequence[str], pairs: dict[tuple[int, int], list[str]]
) -> None:
    """All tensors that two members share belong to one of them: to that which most of them fit."""
    for stale, fitting in sorted(pairs):
        own, other = pairs.get((stale, fitting), []), pairs.get((fitting, stale), [])
        if not own or not other or stale > fitting:
            continue
        keep, drop = (stale, fitting), (fitting, stale)
        if len(other) > len(own):
            keep, drop = drop, keep
        pairs[keep] = [name for name in alive if name in {*own, *other}]
        del pairs[drop]
