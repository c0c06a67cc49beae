"""Sums over the queries of each key, compiled by numba: the products of a chunk of rows are made once.

Importing this module imports numba and compiles (seconds); later processes read what was compiled.

A task takes the rows of one head, 48 at a time, and keeps their scores on all keys, 192 bytes a key: first
each row's largest, then the exponentials and their sum, then what each key receives. With values it needs
the same numbers twice more: for the outputs, and for how far each output is from each value.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from joma.measures.attention.compiled_kernel import (
    BLOCKS,
    BOUNDS,
    FLAGS,
    GIVEN,
    PANEL,
    ROWS,
    STRIP,
    Floats,
    Whole,
    array_type,
    compiled,
    exp2_from,
    largest_of,
    pack,
    products,
    single,
)
from joma.measures.attention.received.compiled_rows import (
    FLOOR,
    SEVERAL,
    SHARE,
    SINK,
    SLOPE,
    TOP,
    TOTAL,
    TYPICAL,
    WEIGHT,
    add_mass,
    add_removal,
    exponentiate,
    take_largest,
)
from joma.measures.attention.scores import BITS
from joma.measures.attention.torch_threads import TAKEN, next_task, run_on_threads

SUMS = ("mass", "mass_error", "maximum", "square", "removal", "removal_error")
"""What ``key_sums`` returns, in this order."""
MASS_SUMS = 3
"""How many of them need no values."""

_CHUNK = ROWS * BLOCKS
_TASKS = 32
"""Parts of the work at least, where there are as many blocks of rows: enough for the threads of a machine."""
_NATS = single(1 / BITS)
_LOST = single(2.0**-90)
"""Where the other keys of a row have less, too many of their probabilities are below what float32 holds."""


def key_sums(
    query: NDArray[np.float32],
    key: NDArray[np.float32],
    value: NDArray[np.float32] | None,
    first: NDArray[np.int64],
    stop: NDArray[np.int64],
    per_row: NDArray[np.float32],
    factor: float,
    doubt: tuple[float, float],
) -> NDArray[np.float64]:
    """Sums over the rows of p_ij = 2^(x_ij) / sum_j 2^(x_ij), x_ij = factor q_i . k_j, first_i <= j < stop_i.

    Args:
        query: (batch, heads, rows, width), any strides.
        key: (batch, key heads, keys, width), any strides; heads a multiple of key heads.
        value: (batch, heads or key heads, keys, value width), any strides.
        first: (batch or 1, rows) and
        stop: (batch or 1, rows), the keys that a row sees.
        per_row: (3, batch, heads, rows): the sink's x, which joins the sum, or -infinity; weight, how often
            the row counts; slope, see ``Rounding``.
        factor: of the products.
        doubt: unit and extra, see ``Rounding``.

    Returns:
        (6, batch, heads, keys): ``SUMS``; without values the first three are right and the others 0. The
        error of a removal is infinite where a row's other keys have too little for float32.
        Computed on as many threads as torch uses; their number changes no bit.
    """
    batch, heads, rows, width = query.shape
    key_heads, keys = key.shape[1], key.shape[2]
    number = -(-keys // PANEL)
    panels = np.zeros((batch, key_heads, number, width, PANEL), np.float32)
    square = np.empty((batch, key_heads, keys), np.float32)
    run_on_threads(pack, key, panels, square)
    if value is None:
        value = np.zeros((1, 1, 0, 0), np.float32)
    samples, value_heads, _, value_width = value.shape
    padded = value
    if value.shape[2] % PANEL or value_width % PANEL or not value.flags.c_contiguous:
        room = (samples, value_heads, number * PANEL, -(-value_width // PANEL) * PANEL)
        padded = np.zeros(room, np.float32)
        padded[:, :, : value.shape[2], :value_width] = value
    value_panels = np.zeros((samples, value_heads, number, value_width, PANEL), np.float32)
    value_square = np.empty((samples, value_heads, value.shape[2]), np.float32)
    run_on_threads(pack, value, value_panels, value_square)
    lanes = min(-(-_TASKS // (batch * heads)), -(-rows // _CHUNK))
    sums = np.zeros((lanes, batch, heads, len(SUMS) if value_width else MASS_SUMS, keys), np.float64)
    run_on_threads(
        _key_sums, query, panels, np.sqrt(square), padded, value_panels, value_square, first, stop, per_row,
        single(factor), single(doubt[0]), single(doubt[1]), sums,
    )  # fmt: skip
    total = np.zeros((len(SUMS), batch, heads, keys))
    np.sum(sums, axis=0, out=np.moveaxis(total[: sums.shape[3]], 0, 2))
    total[SUMS.index("maximum")] = sums[:, :, :, SUMS.index("maximum")].max(0)
    return total


@njit
def _columns(low: Whole, high: Whole, block: int, strip: int) -> tuple[int, int]:
    """The columns of a strip that some row of a block sees, widened to panels; none where equal."""
    left, right = strip + STRIP, strip
    for place in range(block, block + ROWS):
        if low[place] < high[place]:
            left, right = min(left, low[place]), max(right, high[place])
    left, right = max(left, strip) - strip, min(right, strip + STRIP) - strip
    if left >= right:
        return 0, 0
    return left // PANEL * PANEL, (right + PANEL - 1) // PANEL * PANEL


@njit(fastmath=FLAGS, error_model="numpy")
def _normalise(known: Floats, bounds: tuple[Whole, Whole], unit: np.float32, extra: np.float32) -> None:
    """Find what follows for each row from its top and its sums; nothing where it counts nowhere."""
    for place in range(len(known)):
        row = known[place]
        row[SHARE], row[FLOOR], row[SEVERAL] = single(0.0), single(0.0), single(0.0)
        seen = bounds[1][place] - bounds[0][place]
        if seen <= 0:
            row[SLOPE] = single(0.0)
            continue
        row[TOTAL] += exp2_from(single(-127.0), row[SINK] - row[TOP])
        row[SHARE] = single(1.0) / row[TOTAL]
        typical = np.sqrt(row[TYPICAL] * row[SHARE])
        row[FLOOR] = row[SLOPE] * typical + unit * (np.abs(row[TOP]) * _NATS + extra)
        if seen > 1:
            row[SEVERAL] = row[WEIGHT]


@njit(fastmath=FLAGS, error_model="numpy")
def _outputs(
    outputs: Floats,
    values: Floats,
    known: Floats,
    bounds: tuple[Whole, Whole],
    kept: tuple[Whole, Floats],
    length: Floats,
    turned: Floats,
    squares: Floats,
    sums: NDArray[np.float64],
) -> None:
    """Finish the outputs of a chunk's rows, and leave out the key that has more than half of its row.

    Without that key, the output is the others' own sum: no difference of nearly equal numbers is taken.
    """
    places, alone = kept
    width = turned.shape[1]
    for place in range(len(squares)):
        squares[place] = single(0.0)
        if bounds[0][place] >= bounds[1][place]:
            continue
        row, at = known[place], places[place]
        if at >= 0:
            beside = exp2_from(single(-127.0), row[SINK] - row[TOP])
            p, others = alone[place, 0] * row[SHARE], alone[place, 1] + beside
            sums[3, at] += row[WEIGHT] * p * p
            if row[SEVERAL] > 0:
                change, whole = single(0.0), single(0.0)
                for d in range(width):
                    without, value = outputs[place, d] / others, values[at, d]
                    change += (without - value) * (without - value)
                    whole += without * without + value * value
                if others * row[SHARE] >= _LOST:
                    weight = row[SEVERAL] * p * p
                    sums[4, at] += weight * change
                    sums[5, at] += weight * whole * (row[SLOPE] * length[at] + row[FLOOR])
                else:
                    sums[5, at] = np.inf
            for d in range(width):
                outputs[place, d] += alone[place, 0] * values[at, d]
        for d in range(width):
            output = outputs[place, d] * row[SHARE]
            squares[place] += output * output
            turned[place // ROWS, d, place % ROWS] = single(-2.0) * output


@compiled(
    [
        types.void(
            GIVEN, array_type(5), array_type(3), array_type(4), array_type(5), array_type(3), BOUNDS, BOUNDS,
            GIVEN, types.float32, types.float32, types.float32, types.Array(types.float64, 5, "C"), TAKEN,
        )
    ]
)  # fmt: skip
def _key_sums(
    query: Floats,
    panels: Floats,
    length: Floats,
    values: Floats,
    value_panels: Floats,
    value_square: Floats,
    first: Whole,
    stop: Whole,
    per_row: Floats,
    factor: np.float32,
    unit: np.float32,
    extra: np.float32,
    sums: NDArray[np.float64],
    taken: Whole,
) -> None:
    batch, heads, rows, width = query.shape
    key_heads, number, keys = panels.shape[1], panels.shape[2], length.shape[2]
    valued = sums.shape[3] > MASS_SUMS
    lanes, strips = len(sums), (keys + STRIP - 1) // STRIP
    value_heads, padded, value_width = values.shape[1], values.shape[3], value_panels.shape[3]
    flat, flat_values = panels.reshape(panels.size), values.reshape(values.size)
    flat_panels = value_panels.reshape(value_panels.size)
    packed = np.zeros((BLOCKS, width, ROWS), np.float32)
    flat_packed = packed.reshape(packed.size)
    turned = np.zeros((BLOCKS, value_width, ROWS), np.float32)
    flat_turned = turned.reshape(turned.size)
    outputs = np.zeros((_CHUNK, padded), np.float32)
    flat_outputs = outputs.reshape(outputs.size)
    parts = np.zeros((strips, _CHUNK, STRIP), np.float32)
    flat_parts = parts.reshape(parts.size)
    dots = np.empty((ROWS, STRIP), np.float32)
    flat_dots = dots.reshape(dots.size)
    low, high = np.zeros(_CHUNK, np.int64), np.zeros(_CHUNK, np.int64)
    bounds = (low, high)
    known, alone = np.zeros((_CHUNK, 9), np.float32), np.zeros((_CHUNK, 2), np.float32)
    places, squares = np.zeros(_CHUNK, np.int64), np.zeros(_CHUNK, np.float32)
    kept = (places, alone)
    task = next_task(taken)
    while task < lanes * batch * heads:
        lane, sample, head = task % lanes, task // lanes // heads, task // lanes % heads
        key_head, own = head // (heads // key_heads), sample if len(first) > 1 else 0
        value_head = head // (heads // value_heads)
        here = sample * key_heads + key_head
        there = sample * value_heads + value_head
        # |k|, |v|^2, |k|^2. A copy: slices of what threads share would have them count its references.
        lengths = np.zeros((3, number * PANEL), np.float32)
        for at in range(keys):
            lengths[0, at] = length[sample, key_head, at]
            lengths[2, at] = lengths[0, at] * lengths[0, at]
            if valued:
                lengths[1, at] = value_square[sample, value_head, at]
        for begin in range(lane * _CHUNK, rows, lanes * _CHUNK):
            least, most = keys, 0
            for place in range(_CHUNK):
                low[place], high[place], places[place] = 0, 0, -1
                row = begin + place
                if row >= rows:
                    continue
                for name in range(3):
                    known[place, name] = per_row[name, sample, head, row]
                known[place, TOP] = known[place, SINK]
                known[place, TOTAL], known[place, TYPICAL] = single(0.0), single(0.0)
                if known[place, WEIGHT] > 0 and first[own, row] < stop[own, row]:
                    low[place], high[place] = first[own, row], stop[own, row]
                    least, most = min(least, low[place]), max(most, high[place])
                for direction in range(width):
                    packed[place // ROWS, direction, place % ROWS] = (
                        query[sample, head, row, direction] * factor
                    )
            start = least // STRIP * STRIP
            for strip in range(start, most, STRIP):
                for block in range(0, _CHUNK, ROWS):
                    seen = _columns(low, high, block, strip)
                    base = (strip // STRIP * _CHUNK + block) * STRIP
                    for column in range(seen[0], seen[1], PANEL):
                        panel = here * number + (strip + column) // PANEL
                        products(
                            flat_packed, (block * width, ROWS, 1), flat, (panel * width * PANEL, PANEL),
                            width, flat_parts, (base + column, STRIP), False,
                        )  # fmt: skip
                    for place in range(block, block + ROWS):
                        left, right = max(low[place] - strip, 0), min(high[place] - strip, STRIP)
                        if left < right:
                            largest = largest_of(parts[strip // STRIP, place, left:right])
                            known[place, TOP] = max(known[place, TOP], largest)
            for strip in range(start, most, STRIP):
                for place in range(_CHUNK):
                    seen = _columns(low, high, place // ROWS * ROWS, strip)
                    line = parts[strip // STRIP, place]
                    left, right = max(low[place] - strip, 0), min(high[place] - strip, STRIP)
                    if left >= right:
                        line[seen[0] : seen[1]] = single(0.0)
                        continue
                    square = lengths[2, strip + left : strip + right]
                    total, typical = exponentiate(line[left:right], square, known[place, TOP])
                    known[place, TOTAL] += total
                    known[place, TYPICAL] += typical
                    line[seen[0] : left] = single(0.0)
                    line[right : seen[1]] = single(0.0)
            _normalise(known, bounds, unit, extra)
            outputs[:] = single(0.0)
            alone[:] = single(0.0)
            for strip in range(start, most, STRIP):
                added = np.zeros((3, STRIP), np.float32)
                for block in range(0, _CHUNK, ROWS):
                    left, right = _columns(low, high, block, strip)
                    if left == right:
                        continue
                    mine = known[block : block + ROWS]
                    seen_parts = parts[strip // STRIP, block : block + ROWS, left:right]
                    add_mass(seen_parts, mine, lengths[0, strip + left : strip + right], added[:, left:right])
                    if not valued:
                        continue
                    for place in range(block, block + ROWS):
                        if known[place, SHARE] > single(0.5):
                            line = parts[strip // STRIP, place, left:right]
                            at, largest, rest = take_largest(line, single(0.5) * known[place, TOTAL])
                            alone[place, 1] += rest
                            if at >= 0:
                                places[place], alone[place, 0] = strip + left + at, largest
                    row = there * number * PANEL + strip + left
                    base = (strip // STRIP * _CHUNK + block) * STRIP + left
                    for direction in range(0, padded, PANEL):
                        products(
                            flat_parts, (base, 1, STRIP), flat_values, (row * padded + direction, padded),
                            right - left, flat_outputs, (block * padded + direction, padded), True,
                        )  # fmt: skip
                for column in range(min(STRIP, keys - strip)):
                    at = strip + column
                    sums[lane, sample, head, 0, at] += added[0, column]
                    sums[lane, sample, head, 1, at] += added[1, column]
                    sums[lane, sample, head, 2, at] = max(sums[lane, sample, head, 2, at], added[2, column])
            if not valued:
                continue
            _outputs(
                outputs, values[sample, value_head], known, bounds, kept, lengths[0], turned,
                squares, sums[lane, sample, head],
            )  # fmt: skip
            for strip in range(start, most, STRIP):
                added = np.zeros((3, STRIP), np.float32)
                for block in range(0, _CHUNK, ROWS):
                    left, right = _columns(low, high, block, strip)
                    if left == right:
                        continue
                    for column in range(left, right, PANEL):
                        panel = there * number + (strip + column) // PANEL
                        products(
                            flat_turned, (block * value_width, ROWS, 1), flat_panels,
                            (panel * value_width * PANEL, PANEL), value_width, flat_dots, (column, STRIP),
                            False,
                        )  # fmt: skip
                    for place in range(block, block + ROWS):
                        if known[place, SHARE] > 0:
                            add_removal(
                                parts[strip // STRIP, place, left:right],
                                dots[place - block, left:right],
                                known[place],
                                squares[place],
                                lengths[:2, strip + left : strip + right],
                                added[:, left:right],
                            )
                for column in range(min(STRIP, keys - strip)):
                    for name in range(3):
                        sums[lane, sample, head, 3 + name, strip + column] += added[name, column]
        task = next_task(taken)
