"""What the kernel adds to the sums of each key, row by row: loops that are compiled into it.

Numba compiles the kernel again when its own file changes, not when this one does.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from joma.measures.attention.compiled_kernel import Floats, as_float, single

TOP, SHARE, WEIGHT, SLOPE, FLOOR, BESIDE, SEVERAL = range(7)
"""Places of what is known of each row; see ``key_sums``."""


@njit(inline="always")
def _exp2(x: np.float32) -> np.float32:
    """2^x for x <= 0, to two units in the last place; 0 below -126.5."""
    x = max(x, single(-127.0))
    whole = np.floor(x + single(0.5))
    rest = x - whole
    # The least-squares polynomial of Cephes' exp2f on [-1/2, 1/2].
    power = single(1.535336188319500e-4)
    power = power * rest + single(1.339887440266574e-3)
    power = power * rest + single(9.618437357674640e-3)
    power = power * rest + single(5.550332471162809e-2)
    power = power * rest + single(2.402264791363012e-1)
    power = power * rest + single(6.931472028550421e-1)
    power = power * rest + single(1.0)
    result: np.float32 = power * as_float(np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)))
    return result


@njit(inline="always")
def add_mass(scores: Floats, row: Floats, length: Floats, mass: Floats, doubt: Floats, most: Floats) -> None:
    """Make probabilities of the scores of a row, and add them."""
    top, share, weight, slope, floor = row[TOP], row[SHARE], row[WEIGHT], row[SLOPE], row[FLOOR]
    for at in range(len(scores)):
        # Read before anything is written, and chosen without a jump: else no vector is made of the maximum.
        largest = most[at]
        p = _exp2(scores[at] - top) * share
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
