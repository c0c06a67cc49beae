"""Sums over the keys of each query row, compiled by numba: products, exponentials and sums in one pass.

Importing this module imports numba and compiles (seconds); later processes read what was compiled.

The scores of a few rows on a strip of keys are made by a register-blocked product, stay in the nearest
cache, and are summed there: Q K^T is the only product, half of what flash attention computes, and no row
is charged for keys that it does not see.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.base import BaseContext
from numba.core.typing import Context, Signature
from numba.extending import intrinsic
from numpy.typing import NDArray

from joma.measures.attention.torch_threads import TAKEN, Typed, next_task, run_on_threads

_LANES = 8
_VECTORS = 2
PANEL = _LANES * _VECTORS
"""Keys that one product takes; they lie beside each other, direction by direction."""
ROWS = 6
"""Rows that one product takes: 6 x 2 vectors of sums leave room for their factors in 16 registers."""
BLOCKS = 8
"""Blocks of rows that share a strip of keys while the cache holds it."""
STRIP = 512
"""Keys of a strip, a multiple of ``PANEL``."""

# One version for all strides: compiled once, when this module is first imported, and cached on disk (numba
# compiles again when this file changes, not when ``torch_threads`` does).
GIVEN = types.Array(types.float32, 4, "A", readonly=True)
BOUNDS = types.Array(types.int64, 2, "A", readonly=True)
PLACES = types.Array(types.int64, 1, "A", readonly=True)
FLAGS = {"contract", "reassoc", "nsz", "arcp"}
compiled = partial(njit, fastmath=FLAGS, error_model="numpy", nogil=True, cache=True)
single = np.float32
Floats = NDArray[np.float32]
Whole = NDArray[np.int64]


def array_type(dimensions: int) -> types.Array:
    """Type of an array of float32."""
    return types.Array(types.float32, dimensions, "C")


def row_sums(
    query: NDArray[np.float32],
    key: NDArray[np.float32],
    first: NDArray[np.int64],
    stop: NDArray[np.int64],
    positions: NDArray[np.int64],
    factor: float,
    *,
    placed: bool,
) -> NDArray[np.float32]:
    """Of the scores x_j = factor q . k_j of each row, first <= j < stop, in units of log 2:

    their maximum t, and the sums of 2^(x - t) times 1, x - t, |k_j|^2, and j - the row's position.

    Args:
        query: (batch, heads, rows, width), any strides.
        key: (batch, key heads, keys, width), any strides; heads a multiple of key heads.
        first: (batch or 1, rows) and
        stop: (batch or 1, rows), the keys that a row sees; where it sees none, the sums are 0.
        positions: (rows,) where each row stands among the keys.
        factor: of the products.
        placed: whether the last sum is wanted; it is 0 otherwise.

    Returns:
        (5, batch, heads, rows) float32. Computed on as many threads as torch uses.
    """
    batch, heads, rows, width = query.shape
    key_heads, keys = key.shape[1], key.shape[2]
    panels = np.zeros((batch, key_heads, -(-keys // PANEL), width, PANEL), np.float32)
    square = np.empty((batch, key_heads, keys), np.float32)
    sums = np.zeros((5, batch, heads, rows), np.float32)
    run_on_threads(pack, key, panels, square)
    run_on_threads(_row_sums, query, panels, square, first, stop, positions, single(factor), placed, sums)
    return sums


@intrinsic
def as_float(typing: Context, bits: types.Type) -> Typed:
    """The float32 of these bits."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: list[ir.Value]
    ) -> ir.Value:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def products(
    typing: Context,
    rows: types.Type,
    row: types.Type,
    columns: types.Type,
    column: types.Type,
    number: types.Type,
    out: types.Type,
    to: types.Type,
    more: types.Type,
) -> Typed:
    """out[to + out_step r + c] = sum_d rows[at + step d + row_step r] columns[from + column_step d + c].

    r below ``ROWS``, c below ``PANEL``, d below ``number``. ``row`` is (at, step, row_step), ``column`` is
    (from, column_step), ``to`` is (to, out_step); ``more`` adds to what stands there. Written out because
    its sums must stay in registers, which no loop over arrays is compiled to.
    """
    place = types.intp
    two, three = types.UniTuple(place, 2), types.UniTuple(place, 3)
    signature = types.void(rows, three, columns, two, place, out, two, types.boolean)

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: list[ir.Value]
    ) -> ir.Value:
        kinds = signature.args
        rows, row, columns, column, width, out, to, more = arguments
        vector, word = ir.VectorType(ir.FloatType(), _LANES), ir.IntType(32)
        undefined, index = ir.Constant(vector, ir.Undefined), width.type
        everywhere = ir.Constant(ir.VectorType(word, _LANES), [0] * _LANES)

        def start(kind: types.Type, array: ir.Value, offset: ir.Value) -> ir.Value:
            return builder.gep(context.make_array(kind)(context, builder, array).data, [offset])

        def steps(pointer: ir.Value, step: ir.Value) -> list[ir.Value]:
            numbers = (ir.Constant(index, number) for number in range(ROWS))
            return [builder.gep(pointer, [builder.mul(step, number)]) for number in numbers]

        def vectors(pointer: ir.Value) -> list[ir.Value]:
            parts = (builder.gep(pointer, [ir.Constant(index, _LANES * v)]) for v in range(_VECTORS))
            return [builder.bitcast(one, vector.as_pointer()) for one in parts]

        at, step, row_step = (builder.extract_value(row, number) for number in range(3))
        from_, column_step = (builder.extract_value(column, number) for number in range(2))
        first, out_step = (builder.extract_value(to, number) for number in range(2))
        origin, panel = start(kinds[0], rows, at), start(kinds[2], columns, from_)
        results = [vectors(pointer) for pointer in steps(start(kinds[5], out, first), out_step)]
        nothing = ir.Constant(vector, [0.0] * _LANES)
        before, begin, loop, end = builder.block, *map(builder.append_basic_block, ("add", "width", "end"))
        builder.cbranch(more, begin, loop)
        builder.position_at_end(begin)
        earlier = [[builder.load(pointer, align=4) for pointer in result] for result in results]
        builder.branch(loop)
        builder.position_at_end(loop)
        direction = builder.phi(index)
        sums = [[builder.phi(vector) for _ in range(_VECTORS)] for _ in range(ROWS)]
        keys = [
            builder.load(pointer, align=4)
            for pointer in vectors(builder.gep(panel, [builder.mul(direction, column_step)]))
        ]
        contract = ("contract",)
        following = []
        factors = steps(builder.gep(origin, [builder.mul(direction, step)]), row_step)
        for factor, mine in zip(factors, sums, strict=True):
            scalar = builder.insert_element(undefined, builder.load(factor), ir.Constant(word, 0))
            query = builder.shuffle_vector(scalar, undefined, everywhere)
            following.append(
                [
                    builder.fadd(builder.fmul(query, k, flags=contract), s, flags=contract)
                    for k, s in zip(keys, mine, strict=True)
                ]
            )
        onward = builder.add(direction, ir.Constant(index, 1))
        direction.add_incoming(onward, loop)
        for block in (before, begin):
            direction.add_incoming(ir.Constant(index, 0), block)
        for mine, old, new in zip(sums, earlier, following, strict=True):
            for one, loaded, after in zip(mine, old, new, strict=True):
                one.add_incoming(nothing, before)
                one.add_incoming(loaded, begin)
                one.add_incoming(after, loop)
        builder.cbranch(builder.icmp_signed("<", onward, width), loop, end)
        builder.position_at_end(end)
        for new, result in zip(following, results, strict=True):
            for value, pointer in zip(new, result, strict=True):
                builder.store(value, pointer, align=4)
        return context.get_dummy_value()

    return signature, generate


@njit(inline="always")
def exp2_from(least: np.float32, x: np.float32) -> np.float32:
    """2^x for x <= 0, to two units in the last place; below ``least`` 2^least, which is 0 at -127."""
    x = max(x, least)
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


@njit(fastmath=True)
def largest_of(values: Floats) -> np.float32:
    """The largest of some numbers, at least one."""
    largest: np.float32 = values[0]
    for place in range(len(values)):
        largest = max(largest, values[place])
    return largest


@njit(inline="always")
def _add(scores: Floats, square: Floats, placed: bool, ramp: Floats, away: np.float32, state: Floats) -> None:
    """Add the scores on some keys, the first so far away, to (top, total, mean, square, place) of a row."""
    # Loops over whole slices: from other ends, where an index might be negative, none is vectorised.
    top = largest_of(scores)
    if state[1] > 0:
        top = max(top, state[0])
    total, mean, weighted, place = single(0.0), single(0.0), single(0.0), single(0.0)
    for at in range(len(scores)):
        x = scores[at] - top
        p = exp2_from(single(-126.0), x)
        scores[at] = p
        total += p
        mean += p * x
    for at in range(len(scores)):
        weighted += scores[at] * square[at]
    if placed:
        for at in range(len(scores)):
            place += scores[at] * ramp[at]
        place += away * total
    if state[1] > 0:
        lower = state[0] - top
        kept = exp2_from(single(-126.0), lower)
        total += kept * state[1]
        mean += kept * (state[2] + lower * state[1])
        weighted += kept * state[3]
        place += kept * state[4]
    state[0], state[1], state[2], state[3], state[4] = top, total, mean, weighted, place


@compiled([types.void(GIVEN, array_type(5), array_type(3), TAKEN)])
def pack(key: Floats, panels: Floats, square: Floats, taken: Whole) -> None:
    """Lay keys out by panels, direction by direction, and square their lengths."""
    batch, heads, keys, width = key.shape
    number = panels.shape[2]
    task = next_task(taken)
    while task < batch * heads * number:
        sample, head, panel = task // (heads * number), task // number % heads, task % number
        for column in range(min(PANEL, keys - panel * PANEL)):
            length = single(0.0)
            for direction in range(width):
                value = key[sample, head, panel * PANEL + column, direction]
                panels[sample, head, panel, direction, column] = value
                length += value * value
            square[sample, head, panel * PANEL + column] = length
        task = next_task(taken)


@compiled(
    [
        types.void(
            GIVEN,
            array_type(5),
            array_type(3),
            BOUNDS,
            BOUNDS,
            PLACES,
            types.float32,
            types.boolean,
            array_type(4),
            TAKEN,
        )
    ]
)
def _row_sums(
    query: Floats,
    panels: Floats,
    square: Floats,
    first: Whole,
    stop: Whole,
    positions: Whole,
    factor: np.float32,
    placed: bool,
    sums: Floats,
    taken: Whole,
) -> None:
    batch, heads, rows, width = query.shape
    key_heads, number = panels.shape[1], panels.shape[2]
    group = heads // key_heads
    # The rows of a group's heads share keys: member by member, row by row they stand in one file.
    most_rows = ROWS * BLOCKS
    tasks = (rows * group + most_rows - 1) // most_rows
    flat = panels.reshape(panels.size)
    ramp = np.arange(STRIP).astype(np.float32)
    task = next_task(taken)
    while task < batch * key_heads * tasks:
        sample, head = task // (key_heads * tasks), task // tasks % key_heads
        # Later rows of causal attention see more: with these first, no thread waits long for the last.
        begin = most_rows * (tasks - 1 - task % tasks)
        size = min(most_rows, rows * group - begin)
        own = sample if len(first) > 1 else 0
        packed = np.zeros(BLOCKS * width * ROWS, np.float32)
        scores = np.empty(ROWS * STRIP, np.float32)
        lengths = np.empty(STRIP, np.float32)
        low = np.empty(most_rows, np.int64)
        high = np.empty(most_rows, np.int64)
        state = np.zeros((most_rows, 5), np.float32)
        least, most = number * PANEL, 0
        for place in range(size):
            row, member = (begin + place) // group, (begin + place) % group
            low[place], high[place] = first[own, row], stop[own, row]
            if low[place] < high[place]:
                least, most = min(least, low[place]), max(most, high[place])
            at = place // ROWS * width * ROWS + place % ROWS
            for direction in range(width):
                value = query[sample, head * group + member, row, direction]
                packed[at + direction * ROWS] = value * factor
        for strip in range(least // STRIP * STRIP, most, STRIP):
            # A copy: slices of what the threads share would have them count its references in turn.
            for column in range(min(STRIP, most - strip)):
                lengths[column] = square[sample, head, strip + column]
            for block in range(0, size, ROWS):
                last = min(block + ROWS, size)
                left, right = strip + STRIP, strip
                for place in range(block, last):
                    if low[place] < high[place]:
                        left, right = min(left, low[place]), max(right, high[place])
                left, right = max(left, strip), min(right, strip + STRIP)
                for column in range((left - strip) // PANEL * PANEL, right - strip, PANEL):
                    panel = (sample * key_heads + head) * number + (strip + column) // PANEL
                    products(
                        packed,
                        (block * width, ROWS, 1),
                        flat,
                        (panel * width * PANEL, PANEL),
                        width,
                        scores,
                        (column, STRIP),
                        False,
                    )
                for place in range(block, last):
                    start, end = max(low[place] - strip, 0), min(high[place] - strip, STRIP)
                    if start < end:
                        line = (place - block) * STRIP
                        seen = scores[line + start : line + end]
                        away = single(strip + start - positions[(begin + place) // group])
                        _add(seen, lengths[start:end], placed, ramp, away, state[place])
        for place in range(size):
            row, member = (begin + place) // group, (begin + place) % group
            for name in range(5):
                sums[name, sample, head * group + member, row] = state[place, name]
        task = next_task(taken)
