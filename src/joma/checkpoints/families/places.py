"""Where the tensors of one checkpoint stand, read beside each other: what a single name leaves open.

Of two numbers in a name the inner one is the layer's if what it numbers are whole layers, attention and MLP
together, and counts the parts of one layer if each of them is one thing alone. Layers of one number are told
apart by what their names do not share.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from joma.checkpoints.families.names import Place, canonical, locate, readings
from joma.checkpoints.families.roles import role_at

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_OF_MLP = ("lower", "gate", "upper", "gate_and_lower")
_Unit = tuple[str, str, str]


def places_of(names: Iterable[str]) -> tuple[dict[str, Place], dict[str, str]]:
    """The place of every tensor, and why it cannot be told of those of which it cannot."""
    names = list(names)
    places = {name: locate(name) for name in names}
    unclear: dict[str, str] = {}
    nested = {name: readings(name) for name in names if len(readings(name)) > 1}
    units = {name: _unit(name, found) for name, found in nested.items()}
    decided = _numbers(units, {name: found[0] for name, found in nested.items()})
    for name, (inner, outer) in nested.items():
        verdict = decided[units[name][0]]
        if verdict is None and inner.part in ("attention", "mlp"):
            unclear[name] = (
                f"whether it stands in layer {outer.layer} or in layer {inner.layer} of its stack cannot be "
                "told by the tensors beside it"
            )
        places[name] = outer if verdict == "parts" else inner
    return _told_from_others(places), unclear


def _unit(name: str, found: Sequence[Place]) -> _Unit:
    """The containers of both numbers without them, the outer number, and the inner one."""
    inner, outer = found
    around, _, at = canonical(inner.block).rpartition(".")
    return _NUMBER.sub("*", around), str(outer.layer) + around, at


def _numbers(units: Mapping[str, _Unit], places: Mapping[str, Place]) -> dict[str, str | None]:
    """Of each pair of containers whether the inner number counts ``layers`` or ``parts``; None: not told."""
    kinds: dict[str, dict[tuple[str, str], set[tuple[str, bool]]]] = defaultdict(lambda: defaultdict(set))
    for name, (containers, outer, inner) in units.items():
        if (kind := _kind(places[name])) is not None:
            kinds[containers][outer, inner].add((kind, places[name].cross))
        else:
            kinds[containers][outer, inner].update()
    return {containers: _count_layers(found) for containers, found in kinds.items()}


def _kind(place: Place) -> str | None:
    """Whether a matrix is attention's or an MLP's; right in its layer, its role tells (ALBERT's ``ffn``)."""
    if place.part in ("attention", "mlp"):
        return place.part
    role = role_at(place) if place.part == "block" else None
    return None if role is None else "mlp" if role in _OF_MLP else "attention"


def _count_layers(found: Mapping[tuple[str, str], set[tuple[str, bool]]]) -> str | None:
    held = {unit: kinds for unit, kinds in found.items() if kinds}
    if any({"attention", "mlp"} <= {part for part, _ in kinds} for kinds in held.values()):
        return "layers"
    by_outer: dict[str, list[frozenset[tuple[str, bool]]]] = defaultdict(list)
    for (outer, _), kinds in held.items():
        by_outer[outer].append(frozenset(kinds))
    if any(len(set(kinds)) < len(kinds) for kinds in by_outer.values()):
        return "layers"  # the same thing again: a mixer's blocks
    if any(len(kinds) > 1 for kinds in by_outer.values()):
        return "parts"
    # One of each: a list of layers begins at 0.
    return "parts" if held and all(inner != "0" for _, inner in held) else None


def _told_from_others(places: Mapping[str, Place]) -> dict[str, Place]:
    """Layers of one stack and number that are two: their stacks get what their names do not share."""
    layers: dict[str, dict[str, set[int | None]]] = defaultdict(lambda: defaultdict(set))
    for place in places.values():
        if place.layer is not None:
            layers[place.stack][_container(place)].add(place.layer)
    added: dict[tuple[str, str], str] = {}
    for stack, containers in layers.items():
        held = list(containers.values())
        if len(held) > 1 and any(a & b for i, a in enumerate(held) for b in held[:i]):
            added |= {(stack, one): more for one, more in differences(containers).items()}
    return {
        name: replace(place, stack=".".join(filter(None, [place.stack, more])))
        if (more := added.get((place.stack, _container(place)), ""))
        else place
        for name, place in places.items()
    }


def _container(place: Place) -> str:
    return canonical(f"{place.block}.x").removesuffix(".x").rpartition(".")[0]


def differences(names: Iterable[str]) -> dict[str, str]:
    """Of each name the parts that not all of them share; a number with the part before it."""
    split = {name: name.split(".") for name in names}
    shortest = min(map(len, split.values()))
    lists = list(split.values())
    before = next((i for i in range(shortest) if len({parts[i] for parts in lists}) > 1), shortest)
    if before and any(parts[before].isdigit() for parts in lists if before < len(parts)):
        before -= 1
    left = shortest - before
    behind = next((i for i in range(left) if len({parts[-1 - i] for parts in lists}) > 1), left)
    return {name: ".".join(parts[before : len(parts) - behind]) for name, parts in split.items()}
