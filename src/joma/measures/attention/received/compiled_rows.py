"""What the kernel does with the scores of a block of rows: loops that are compiled into it.

Numba compiles the kernel again when its own file changes, not when this one does.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from joma.measures.attention.compiled_kernel import FLAGS, ROWS, Floats, exp2_from, single

SINK, WEIGHT, SLOPE, TOP, TOTAL, TYPICAL, SHARE, FLOOR, SEVERAL = range(9)
"""Places of what is known of each row: the first three are given, see ``key_sums``; the others are found.

The largest score, with the sink's; the sums of 2^(x - top), with the sink's, and of that times |k|^2; the
reciprocal of the first; what p_ij is off, relatively, beside slope_i |k_j|; the weight where the row sees two
keys, else 0.
"""


@njit(fastmath=FLAGS, error_model="numpy")
def exponentiate(scores: Floats, square: Floats, top: np.float32) -> tuple[np.float32, np.float32]:
    """Write 2^(x - top) in place of the scores x of a row; its sum, and its sum times |k|^2."""
    total, weighted = single(0.0), single(0.0)
    for at in range(len(scores)):
        part = exp2_from(single(-127.0), scores[at] - top)
        scores[at] = part
        total += part
        weighted += part * square[at]
    return total, weighted


@njit(fastmath=FLAGS, error_model="numpy")
def add_mass(parts: Floats, known: Floats, length: Floats, added: Floats) -> None:
    """Add the probabilities of a block of rows to (mass, mass's error, maximum) of the keys.

    Args:
        parts: (``ROWS``, keys) 2^(x - top).
        known: (``ROWS``, .) of the rows.
        length: (keys,)
        added: (3, keys)
    """
    mass, doubt, most = added[0], added[1], added[2]
    for at in range(parts.shape[1]):
        # Read before anything is written, and chosen without a jump: else no vector is made of the maximum.
        largest, total, sloped, floored = most[at], single(0.0), single(0.0), single(0.0)
        for row in range(ROWS):  # written out by the compiler: its sums stay in registers
            p = parts[row, at] * known[row, SHARE]
            largest = p if p > largest else largest
            p *= known[row, WEIGHT]
            total += p
            sloped += known[row, SLOPE] * p
            floored += known[row, FLOOR] * p
        mass[at] += total
        doubt[at] += sloped * length[at] + floored
        most[at] = largest


@njit(fastmath=FLAGS, error_model="numpy")
def add_removal(
    parts: Floats, dots: Floats, known: Floats, output: np.float32, lengths: Floats, added: Floats
) -> None:
    """Add what leaving each key out changes in a row to (square, removal, removal's error).

    Row by row: of a block together no vectors are made, as too many arrays might overlap.

    Args:
        parts: (keys,) 2^(x - top).
        dots: (keys,) -2 o . v.
        known: of the row.
        output: |o|^2.
        lengths: (2, keys) |k| and |v|^2.
        added: (3, keys)
    """
    share, weight, several = known[SHARE], known[WEIGHT], known[SEVERAL]
    slope, floor = known[SLOPE], known[FLOOR]
    length, values = lengths[0], lengths[1]
    square, removal, doubt = added[0], added[1], added[2]
    for at in range(len(parts)):
        p = parts[at] * share
        size = output + values[at]
        square[at] += weight * p * p
        ratio = p / (single(1.0) - p)
        ratio = several * ratio * ratio
        removal[at] += ratio * max(size + dots[at], single(0.0))
        doubt[at] += ratio * size * (slope * length[at] + floor)


@njit(fastmath=FLAGS, error_model="numpy")
def take_largest(parts: Floats, half: np.float32) -> tuple[int, np.float32, np.float32]:
    """Where more than ``half`` is, which then is set to 0, and the sum of the others; -1 where nowhere."""
    place, largest, rest = -1, single(0.0), single(0.0)
    for at in range(len(parts)):
        if parts[at] > half:
            place, largest = at, parts[at]
    if place >= 0:
        parts[place] = single(0.0)
    for at in range(len(parts)):
        rest += parts[at]
    return place, largest, rest
