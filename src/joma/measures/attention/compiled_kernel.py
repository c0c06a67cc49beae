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
_ROWS = 6
"""Rows that one product takes: 6 x 2 vectors of sums leave room for their factors in 16 registers."""
_BLOCKS = 8
"""Blocks of rows that share a strip of keys while the cache holds it."""
_STRIP = 512
"""Keys of a strip, a multiple of ``PANEL``."""

# One version for all strides: compiled once, when this module is first imported, and cached on disk (numba
# compiles again when this file changes, not when ``torch_threads`` does).
_GIVEN = types.Array(types.float32, 4, "A", readonly=True)
_BOUNDS = types.Array(types.int64, 2, "A", readonly=True)
_PLACES = types.Array(types.int64, 1, "A", readonly=True)
_FLAGS = {"contract", "reassoc", "nsz", "arcp"}
_compiled = partial(njit, fastmath=_FLAGS, error_model="numpy", nogil=True, cache=True)
_single = np.float32
_Floats = NDArray[np.float32]
_Whole = NDArray[np.int64]


def _array(dimensions: int) -> types.Array:
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
    run_on_threads(_pack, key, panels, square)
    run_on_threads(_row_sums, query, panels, square, first, stop, positions, _single(factor), placed, sums)
    return sums


@intrinsic
def _as_float(typing: Context, bits: types.Type) -> Typed:
    """The float32 of these bits."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: list[ir.Value]
    ) -> ir.Value:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def _products(
    typing: Context,
    rows: types.Type,
    at: types.Type,
    panels: types.Type,
    panel: types.Type,
    width: types.Type,
    out: types.Type,
    to: types.Type,
) -> Typed:
    """out[to + _STRIP r + c] = sum_d rows[at + _ROWS d + r] panels[panel + PANEL d + c].

    Written out because its sums must stay in registers, which no loop over arrays is compiled to.
    """
    place = types.intp
    signature = types.void(rows, place, panels, place, place, out, place)

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: list[ir.Value]
    ) -> ir.Value:
        kinds = signature.args
        rows, at, panels, panel, width, out, to = arguments
        vector, word = ir.VectorType(ir.FloatType(), _LANES), ir.IntType(32)
        undefined, index = ir.Constant(vector, ir.Undefined), at.type
        everywhere = ir.Constant(ir.VectorType(word, _LANES), [0] * _LANES)

        def start(kind: types.Type, array: ir.Value, offset: ir.Value) -> ir.Value:
            return builder.gep(context.make_array(kind)(context, builder, array).data, [offset])

        def step(pointer: ir.Value, number: int) -> ir.Value:
            return builder.gep(pointer, [ir.Constant(index, number)])

        def vectors(pointer: ir.Value) -> list[ir.Value]:
            steps = (step(pointer, _LANES * v) for v in range(_VECTORS))
            return [builder.bitcast(one, vector.as_pointer()) for one in steps]

        row, column, result = (
            start(kinds[0], rows, at),
            start(kinds[2], panels, panel),
            start(kinds[5], out, to),
        )
        entry, loop, end = builder.block, *(builder.append_basic_block(name) for name in ("width", "end"))
        builder.branch(loop)
        builder.position_at_end(loop)
        direction = builder.phi(index)
        sums = [[builder.phi(vector) for _ in range(_VECTORS)] for _ in range(_ROWS)]
        column = builder.gep(column, [builder.mul(direction, ir.Constant(index, PANEL))])
        row = builder.gep(row, [builder.mul(direction, ir.Constant(index, _ROWS))])
        keys = [builder.load(pointer, align=4) for pointer in vectors(column)]
        contract = ("contract",)
        following = []
        for number in range(_ROWS):
            single = builder.insert_element(undefined, builder.load(step(row, number)), ir.Constant(word, 0))
            query = builder.shuffle_vector(single, undefined, everywhere)
            following.append(
                [
                    builder.fadd(builder.fmul(query, k, flags=contract), s, flags=contract)
                    for k, s in zip(keys, sums[number], strict=True)
                ]
            )
        onward = builder.add(direction, ir.Constant(index, 1))
        direction.add_incoming(ir.Constant(index, 0), entry)
        direction.add_incoming(onward, loop)
        for number in range(_ROWS):
            for before, after in zip(sums[number], following[number], strict=True):
                before.add_incoming(ir.Constant(vector, [0.0] * _LANES), entry)
                before.add_incoming(after, loop)
        builder.cbranch(builder.icmp_signed("<", onward, width), loop, end)
        builder.position_at_end(end)
        for number in range(_ROWS):
            for value, pointer in zip(following[number], vectors(step(result, _STRIP * number)), strict=True):
                builder.store(value, pointer, align=4)
        return context.get_dummy_value()

    return signature, generate


@njit(inline="always")
def _exp2(x: np.float32) -> np.float32:
    """2^x for x <= 0, to two units in the last place; 2^-126 below -126."""
    x = max(x, _single(-126.0))
    whole = np.floor(x + _single(0.5))
    rest = x - whole
    # The least-squares polynomial of Cephes' exp2f on [-1/2, 1/2].
    power = _single(1.535336188319500e-4)
    power = power * rest + _single(1.339887440266574e-3)
    power = power * rest + _single(9.618437357674640e-3)
    power = power * rest + _single(5.550332471162809e-2)
    power = power * rest + _single(2.402264791363012e-1)
    power = power * rest + _single(6.931472028550421e-1)
    power = power * rest + _single(1.0)
    result: np.float32 = power * _as_float(np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)))
    return result


@njit(fastmath=True)
def _largest(values: _Floats) -> np.float32:
    largest: np.float32 = values[0]
    for place in range(len(values)):
        largest = max(largest, values[place])
    return largest


@njit(inline="always")
def _add(
    scores: _Floats, square: _Floats, placed: bool, ramp: _Floats, away: np.float32, state: _Floats
) -> None:
    """Add the scores on some keys, the first so far away, to (top, total, mean, square, place) of a row."""
    # Loops over whole slices: from other ends, where an index might be negative, none is vectorised.
    top = _largest(scores)
    if state[1] > 0:
        top = max(top, state[0])
    total, mean, weighted, place = _single(0.0), _single(0.0), _single(0.0), _single(0.0)
    for at in range(len(scores)):
        x = scores[at] - top
        p = _exp2(x)
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
        kept = _exp2(lower)
        total += kept * state[1]
        mean += kept * (state[2] + lower * state[1])
        weighted += kept * state[3]
        place += kept * state[4]
    state[0], state[1], state[2], state[3], state[4] = top, total, mean, weighted, place


@_compiled([types.void(_GIVEN, _array(5), _array(3), TAKEN)])
def _pack(key: _Floats, panels: _Floats, square: _Floats, taken: _Whole) -> None:
    batch, heads, keys, width = key.shape
    number = panels.shape[2]
    task = next_task(taken)
    while task < batch * heads * number:
        sample, head, panel = task // (heads * number), task // number % heads, task % number
        for column in range(min(PANEL, keys - panel * PANEL)):
            length = _single(0.0)
            for direction in range(width):
                value = key[sample, head, panel * PANEL + column, direction]
                panels[sample, head, panel, direction, column] = value
                length += value * value
            square[sample, head, panel * PANEL + column] = length
        task = next_task(taken)


@_compiled(
    [
        types.void(
            _GIVEN,
            _array(5),
            _array(3),
            _BOUNDS,
            _BOUNDS,
            _PLACES,
            types.float32,
            types.boolean,
            _array(4),
            TAKEN,
        )
    ]
)
def _row_sums(
    query: _Floats,
    panels: _Floats,
    square: _Floats,
    first: _Whole,
    stop: _Whole,
    positions: _Whole,
    factor: np.float32,
    placed: bool,
    sums: _Floats,
    taken: _Whole,
) -> None:
    batch, heads, rows, width = query.shape
    key_heads, number = panels.shape[1], panels.shape[2]
    group = heads // key_heads
    # The rows of a group's heads share keys: member by member, row by row they stand in one file.
    most_rows = _ROWS * _BLOCKS
    tasks = (rows * group + most_rows - 1) // most_rows
    flat = panels.reshape(panels.size)
    ramp = np.arange(_STRIP).astype(np.float32)
    task = next_task(taken)
    while task < batch * key_heads * tasks:
        sample, head = task // (key_heads * tasks), task // tasks % key_heads
        # Later rows of causal attention see more: with these first, no thread waits long for the last.
        begin = most_rows * (tasks - 1 - task % tasks)
        size = min(most_rows, rows * group - begin)
        own = sample if len(first) > 1 else 0
        packed = np.zeros(_BLOCKS * width * _ROWS, np.float32)
        scores = np.empty(_ROWS * _STRIP, np.float32)
        lengths = np.empty(_STRIP, np.float32)
        low = np.empty(most_rows, np.int64)
        high = np.empty(most_rows, np.int64)
        state = np.zeros((most_rows, 5), np.float32)
        least, most = number * PANEL, 0
        for place in range(size):
            row, member = (begin + place) // group, (begin + place) % group
            low[place], high[place] = first[own, row], stop[own, row]
            if low[place] < high[place]:
                least, most = min(least, low[place]), max(most, high[place])
            at = place // _ROWS * width * _ROWS + place % _ROWS
            for direction in range(width):
                value = query[sample, head * group + member, row, direction]
                packed[at + direction * _ROWS] = value * factor
        for strip in range(least // _STRIP * _STRIP, most, _STRIP):
            # A copy: slices of what the threads share would have them count its references in turn.
            for column in range(min(_STRIP, most - strip)):
                lengths[column] = square[sample, head, strip + column]
            for block in range(0, size, _ROWS):
                last = min(block + _ROWS, size)
                left, right = strip + _STRIP, strip
                for place in range(block, last):
                    if low[place] < high[place]:
                        left, right = min(left, low[place]), max(right, high[place])
                left, right = max(left, strip), min(right, strip + _STRIP)
                for column in range((left - strip) // PANEL * PANEL, right - strip, PANEL):
                    panel = (sample * key_heads + head) * number + (strip + column) // PANEL
                    _products(packed, block * width, flat, panel * width * PANEL, width, scores, column)
                for place in range(block, last):
                    start, end = max(low[place] - strip, 0), min(high[place] - strip, _STRIP)
                    if start < end:
                        line = (place - block) * _STRIP
                        seen = scores[line + start : line + end]
                        away = _single(strip + start - positions[(begin + place) // group])
                        _add(seen, lengths[start:end], placed, ramp, away, state[place])
        for place in range(size):
            row, member = (begin + place) // group, (begin + place) % group
            for name in range(5):
                sums[name, sample, head * group + member, row] = state[place, name]
        task = next_task(taken)
