"""What the kernel adds to the sums of each key, row by row: loops that are compiled into it.

Numba compiles the kernel again when its own file changes, not when this one does.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from joma.measures.attention.compiled_kernel import Floats, exp2_from, single

TOP, SHARE, WEIGHT, SLOPE, FLOOR, BESIDE, SEVERAL = range(7)
"""Places of what is known of each row; see ``key_sums``."""


@njit(inline="always")
def add_mass(scores: Floats, row: Floats, length: Floats, mass: Floats, doubt: Floats, most: Floats) -> None:
    """Make probabilities of the scores of a row, and add them."""
    top, share, weight, slope, floor = row[TOP], row[SHARE], row[WEIGHT], row[SLOPE], row[FLOOR]
    for at in range(len(scores)):
        # Read before anything is written, and chosen without a jump: else no vector is made of the maximum.
        largest = most[at]
        p = exp2_from(single(-127.0), scores[at] - top) * share
        scores[at] = p
        mass[at] += weight * p
        doubt[at] += p * (slope * length[at] + floor)
        most[at] = p if p > largest else largest


@njit(inline="always")
def add_removal(
    p: Floats,
    products: Floats,
    lengths: tuple[Floats, Floats],
    output: np.float32,
    row: Floats,
    square: Floats,
    removal: Floats,
    doubt: Floats,
) -> None:
    """Add what leaving each key out changes in a row with |o|^2 = ``output`` and -2 o . v = ``products``."""
    weight, slope, floor, several = row[WEIGHT], row[SLOPE], row[FLOOR], row[SEVERAL]
    length, values = lengths
    for at in range(len(p)):
        ratio = p[at] / (single(1.0) - p[at])
        size = output + values[at]
        square[at] += weight * p[at] * p[at]
        ratio = several * ratio * ratio
        removal[at] += weight * ratio * max(size + products[at], single(0.0))
        doubt[at] += ratio * size * (slope * length[at] + floor)


@njit(inline="always")
def take_largest(p: Floats) -> tuple[int, np.float32, np.float32]:
    """Where more than half is, which then is set to 0, and the sum of the others; -1 where nowhere."""
    place, largest, rest = -1, single(0.0), single(0.0)
    for at in range(len(p)):
        if p[at] > single(0.5):
            place, largest = at, p[at]
    if place >= 0:
        p[place] = single(0.0)
    for at in range(len(p)):
        rest += p[at]
    return place, largest, rest
