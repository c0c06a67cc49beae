"""The combinatorial hierarchy behind JoMA Table 1: classes are sets of latents, latents sets of tokens.

Read from the paper's numbers and its authors' setting: a class is a set of ``N_ch`` latents of the top
level (s = 1), each of those a set of ``N_ch`` latents of the level below (s = 0), each of those a set of
``N_ch`` tokens. The sets of one level are drawn without repetition. Given the class, the sequence is
fixed: its tokens in the order of the tree, with padding in front. So there are at most C sequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from joma.core.errors import InputError

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """A drawn hierarchy; build it with ``draw_hierarchy``."""

    sets: tuple[Integers, ...]
    """From the bottom up: ``sets[s]`` (N_s, children) of members one level below; the classes come last."""
    vocabulary_size: int
    """M, the number of tokens without the padding, which is token M."""
    length: int
    """L, the positions of a padded sequence."""

    @property
    def classes(self) -> int:
        """C."""
        return len(self.sets[-1])

    @property
    def padding(self) -> int:
        """The padding token: M, the first number that is no token."""
        return self.vocabulary_size

    def sequences(self) -> Integers:
        """The sequence of every class, (C, L) of int64, padded in front: one row per class.

        Two classes may share a row (their latents overlap); then no network tells them apart.
        """
        expanded = self.sets[-1]
        for members in reversed(self.sets[:-1]):
            expanded = members[expanded].reshape(self.classes, -1)
        return pad_in_front(expanded, self.length, self.padding)

    def latents(self) -> tuple[Booleans, ...]:
        """Which latents each class uses: for s = 0, 1, ... an array (C, N_s)."""
        used, active = [], self.sets[-1]
        for level in range(len(self.sets) - 2, -1, -1):
            indicator = np.zeros((self.classes, len(self.sets[level])), dtype=bool)
            np.put_along_axis(indicator, active, True, axis=1)
            used.append(indicator)
            active = self.sets[level][active].reshape(self.classes, -1)
        return tuple(reversed(used))


def draw_hierarchy(
    *,
    classes: int,
    latents: Sequence[int],
    children: int,
    vocabulary_size: int = 100,
    length: int = 30,
    random: np.random.Generator,
) -> Hierarchy:
    """Draw the hierarchy of Table 1.

    Args:
        classes: C. latents: (N_0, N_1, ...), from the level above the tokens upwards.
        children: N_ch, the members of every set.
        vocabulary_size: M. length: L, which must hold N_ch^(levels + 1) tokens.
        random: where the sets come from.

    Raises:
        InputError: a size below 1, more sets than there are combinations, sequences longer than L.
    """
    where = "draw_hierarchy"
    sizes = (vocabulary_size, *latents, classes)
    if not latents or min(*sizes, children, length) < 1:
        raise InputError(
            f"{where}: classes = {classes}, latents = {tuple(latents)}, children = {children}, "
            f"vocabulary_size = {vocabulary_size}, length = {length}; give whole numbers of at least 1."
        )
    tokens = children ** (len(latents) + 1)
    if tokens > length:
        raise InputError(
            f"{where}: {children} children on {len(latents) + 1} levels make sequences of {tokens} tokens, "
            f"longer than length L = {length}; raise length or take fewer children."
        )
    names = ("tokens", *(f"latents of level {s}" for s in range(len(latents))))
    sets = []
    for below, above, name in zip(sizes, sizes[1:], names, strict=False):
        sets.append(_distinct_sets(below, above, children, f"{where}: {name}", random))
    return Hierarchy(tuple(sets), vocabulary_size, length)


def _distinct_sets(members: int, count: int, size: int, where: str, random: np.random.Generator) -> Integers:
    """``count`` different subsets of ``range(members)``, each of ``size``, (count, size), ascending."""
    available = math.comb(members, size)
    if count > available:
        raise InputError(
            f"{where}: {count} different combinations of {size} out of {members} were asked for, but only "
            f"{available} exist; ask for fewer, or give more members to choose from."
        )
    if count > available // 2:
        # Nearly all of them: list and choose, since drawing until new would hardly end.

        everything = np.array(list(combinations(range(members), size)), dtype=np.int64)
        return everything[random.choice(available, size=count, replace=False)]
    chosen: dict[tuple[int, ...], None] = {}
    while len(chosen) < count:
        chosen[tuple(sorted(random.choice(members, size=size, replace=False).tolist()))] = None
    return np.array(list(chosen), dtype=np.int64)


def pad_in_front(tokens: Integers, length: int, padding: int) -> Integers:
    """Sequences (rows, tokens) brought to ``length`` with ``padding`` before them.

    Raises:
        InputError: sequences longer than ``length``.
    """
    missing = length - tokens.shape[1]
    if missing < 0:
        raise InputError(
            f"pad_in_front: sequences of {tokens.shape[1]} tokens are longer than length L = {length}; "
            "raise the length."
        )
    return np.pad(tokens, ((0, 0), (missing, 0)), constant_values=padding)
