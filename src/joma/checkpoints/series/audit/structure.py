"""Names, shapes, types and digits: what a member has that most members of its series do not have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from joma.checkpoints.series.audit.content import MemberContent, TensorContent
from joma.checkpoints.series.audit.faults import Fault
from joma.core.printing import some_names

_Key = Callable[[TensorContent], Hashable]
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")


def structure_faults(members: Sequence[MemberContent]) -> list[Fault]:
    """Faults of names, shapes, types, digits, NaN and zeros; ``members`` were all read."""
    found: list[Fault] = []
    names = Counter(name for one in members for name in one.tensors)
    usual = {name for name, count in names.items() if 2 * count > len(members)}
    if len(members) == 2:
        usual = set(names)
    for number, one in enumerate(members):
        found += _names(one, usual, members)
        found += _shapes(one, members)
        found += _values(one, number, members)
    found += _isolated_faults(members, "other type", lambda tensor: tensor.dtype)
    for word in ("rounded", "quantised"):
        faults = _isolated_faults(members, word, partial(_is_coarse, word), usual=False)
        found += [_with_short_ones(one, members) if word == "rounded" else one for one in faults]
    return found


def _fault(one: MemberContent, word: str, names: Sequence[str], reason: str = "") -> Fault:
    return Fault(one.member.name, one.member.place.step, word, one.stored_names(list(names)), "", reason)


def _names(one: MemberContent, usual: set[str], members: Sequence[MemberContent]) -> list[Fault]:
    missing = sorted(usual - set(one.tensors))
    further = sorted(set(one.tensors) - usual)
    place = next(k for k, other in enumerate(members) if other is one)
    known = {name: other.tensors[name] for other in members for name in missing if name in other.tensors}
    if missing and further and _are_renumbered(missing, further):
        shapes = (
            sorted(known[name].shape for name in missing),
            sorted(one.tensors[name].shape for name in further),
        )
        if shapes[0] == shapes[1]:
            pattern = {_LAYER.sub("*", name) for name in further}
            moved = sorted(name for name in one.tensors if _LAYER.sub("*", name) in pattern)
            return [_fault(one, "renumbered layers", moved)]
    missing, further = (
        [name for name in names if not _lasts([name in other.tensors for other in members], place)]
        for names in (missing, further)
    )
    found = []
    if missing:
        stored = [known[name].name for name in missing]
        found.append(Fault(one.member.name, one.member.place.step, "missing tensors", tuple(stored)))
    if further and len(members) > 2:
        found.append(_fault(one, "further tensors", further))
    return found


def _with_short_ones(fault: Fault, members: Sequence[MemberContent]) -> Fault:
    """With the tensors too short to tell by themselves, where most of the member is rounded."""
    one = next(one for one in members if one.member.name == fault.member)
    if 2 * len(fault.tensors) < len(one.tensors):
        return fault
    short = [t.name for t in one.tensors.values() if t.name not in fault.tensors and t.short]
    return replace(fault, tensors=(*fault.tensors, *short))


def _are_renumbered(missing: Sequence[str], further: Sequence[str]) -> bool:
    """Whether the names differ in numbers alone."""
    patterns = [Counter(_LAYER.sub("*", name) for name in names) for names in (missing, further)]
    return patterns[0] == patterns[1] and any(_LAYER.search(name) for name in missing)


def _shapes(one: MemberContent, members: Sequence[MemberContent]) -> list[Fault]:
    other: list[str] = []
    turned: list[str] = []
    for name, tensor in one.tensors.items():
        shapes = Counter(m.tensors[name].shape for m in members if name in m.tensors)
        (usual, times), *_ = shapes.most_common()
        tie = times == shapes[tensor.shape] and one is not members[-1]
        held = [m for m in members if name in m.tensors]
        place = next(k for k, m in enumerate(held) if m is one)
        if tensor.shape != usual and not tie and not _lasts([m.tensors[name].shape for m in held], place):
            (turned if tensor.shape == usual[::-1] else other).append(name)
        elif (
            len(shapes) > 1
            and times == shapes[tensor.shape] == 1
            and one is members[-1]
            and len(members) == 2
        ):
            other.append(name)
    found = [_fault(one, "other shape", other)] if other else []
    return found + ([_fault(one, "transposed", turned)] if turned else [])


def _values(one: MemberContent, number: int, members: Sequence[MemberContent]) -> list[Fault]:
    broken = [name for name, tensor in one.tensors.items() if not tensor.finite]
    empty = []
    for name, tensor in one.tensors.items():
        # Zeros before the first step are initial values; those after numbers are none.
        around = [m.tensors[name] for m in members[max(0, number - 1) : number + 2] if name in m.tensors]
        before = [m.tensors[name] for m in members[:number] if name in m.tensors]
        if (
            tensor.zero
            and before
            and not before[-1].zero
            and not any(t.zero for t in around if t is not tensor)
        ):
            empty.append(name)
    found = [_fault(one, "not finite", broken)] if broken else []
    found += [_fault(one, "zeroed", empty)] if empty else []
    for name, tensor in one.tensors.items():
        beside = [m.tensors.get(name) for m in members[max(0, number - 1) : number + 2] if m is not one]
        rows = tensor.zero_rows - max((other.zero_rows for other in beside if other is not None), default=0)
        if rows > 0 and not tensor.zero and len(beside) == 2 and None not in beside:
            found.append(_fault(one, "zeroed", [name], f"{rows} of {tensor.shape[0]} rows of {name}"))
    return found


def _is_coarse(word: str, tensor: TensorContent) -> bool:
    return tensor.coarse == word


def structure_notes(members: Sequence[MemberContent]) -> list[str]:
    """What changes once and stays: a padded vocabulary, a head that is written out, layers that are added."""
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for one in members for name in one.tensors):
        shapes = [one.tensors[name].shape if name in one.tensors else () for one in members]
        changes = [k for k in range(1, len(members)) if shapes[k] != shapes[k - 1]]
        if len(changes) == 1 and 1 < changes[0] < len(members) - 1:
            before, after = shapes[changes[0] - 1], shapes[changes[0]]
            change = (
                "there"
                if not before
                else "no longer there"
                if not after
                else f"of shape {after}, not {before},"
            )
            found.setdefault(f"{change} from {members[changes[0]].member.name} on", []).append(name)
    return [f"{some_names(names)}: {change}" for change, names in found.items()]


def _lasts(values: Sequence[Hashable], place: int) -> bool:
    """Whether the value at a place is that of two or more members in turn up to an end of the series.

    Such a change is the writer's own (a resumed run, another version of a library); one member alone is not.
    """
    runs = [list(run) for _, run in groupby(range(len(values)), key=values.__getitem__)]
    return any(place in run and len(run) > 1 for run in (runs[0], runs[-1]))


def _isolated_faults(
    members: Sequence[MemberContent], word: str, key: _Key, usual: Hashable = None
) -> list[Fault]:
    """The members that alone are so: a change that lasts to an end of the series is the writer's own."""
    named: dict[int, list[str]] = {}
    for name in dict.fromkeys(name for one in members for name in one.tensors):
        told = [(k, key(one.tensors[name])) for k, one in enumerate(members) if name in one.tensors]
        counts = Counter(value for _, value in told)
        most = usual if usual is not None else counts.most_common(1)[0][0]
        if usual is not None and 2 * counts[usual] < len(told):
            continue
        values = [value for _, value in told]
        for place, (k, value) in enumerate(told):
            if value != most and not _lasts(values, place):
                named.setdefault(k, []).append(name)
    return [_fault(members[k], word, names) for k, names in sorted(named.items())]
