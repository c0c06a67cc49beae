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
    parts: Floats, dots: Floats, known: Floats, outputs: Floats, lengths: Floats, added: Floats
) -> None:
    """Add what leaving each key out changes in a block of rows to (square, removal, removal's error).

    Args:
        parts: (``ROWS``, keys) 2^(x - top).
        dots: (``ROWS``, keys) -2 o . v.
        known: (``ROWS``, .) of the rows.
        outputs: (``ROWS``,) |o|^2.
        lengths: (2, keys) |k| and |v|^2.
        added: (3, keys)
    """
    squares, removal, doubt = added[0], added[1], added[2]
    for at in range(parts.shape[1]):
        square, change, sloped, floored = single(0.0), single(0.0), single(0.0), single(0.0)
        for row in range(ROWS):
            p = parts[row, at] * known[row, SHARE]
            size = outputs[row] + lengths[1, at]
            square += known[row, WEIGHT] * p * p
            ratio = p / (single(1.0) - p)
            ratio = known[row, SEVERAL] * ratio * ratio
            change += ratio * max(size + dots[row, at], single(0.0))
            sloped += known[row, SLOPE] * (ratio * size)
            floored += known[row, FLOOR] * (ratio * size)
        squares[at] += square
        removal[at] += change
        doubt[at] += sloped * lengths[0, at] + floored


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
