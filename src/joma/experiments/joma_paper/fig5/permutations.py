"""Every way to deal values to places that can be told apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence


def distinct_permutations(values: Sequence[int]) -> Iterator[list[int]]:
    """The permutations of ``values`` that differ, in lexical order: n! / (product of the counts!)."""
    counts = Counter(values)
    kinds = sorted(counts)

    def extend(prefix: list[int]) -> Iterator[list[int]]:
        if len(prefix) == len(values):
            yield list(prefix)
            return
        for kind in kinds:
            if counts[kind]:
                counts[kind] -= 1
                yield from extend([*prefix, kind])
                counts[kind] += 1

    yield from extend([])
