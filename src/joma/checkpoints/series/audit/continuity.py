"""Does a tensor lie between what it was before and after? Distances along a line of members.

Of one tensor x_i is known its squared distance to every other member. Between its neighbours l and u the
nearest point of the straight line from x_l to x_u is p, and the error of the interpolation is |x_i - p| over
the way that the tensor moves here, the largest of |x_l - x_u| and the changes beyond either neighbour. A
random walk has at most 1/2, noise about one point sqrt(3)/2, a straight line 0, at whatever speed: warm-up,
decay and a learning rate that rises again change the speed alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from scipy.stats import norm

from joma.core.arguments import Array

ALWAYS = 3.0
"""An error beyond which a tensor is named whatever the others do."""
_LEAST = 1.15
_CHANCE = 1e-3
"""Chance that a clean series of independent errors holds one that is named: of a hundred none should."""
_SPREAD = 0.12
"""The least spread of log errors that is reckoned with: that of clean series is larger."""
_FEWEST = 6
"""Errors of one tensor of which a spread can be told."""
_END = 10.0
_UNRELATED = 0.9
_GAIN, _GAIN_AT_END, _GAIN_OF_FEW = 0.08, 0.15, 0.2
_GROWTH = 1.45
_SPIKE = 4.0
"""How many times as far away a member is that does not belong there: in a walk, less than twice."""
_FAR, _LITTLE = 1.4, 0.3
_SUSPECTS = 12
"""Members among which three are looked for that went round."""
_AGREE = 0.85
_BREAK = 3.0
"""How many times faster than anywhere else a line moves where another run begins."""


def squared_distances(samples: Array) -> Array:
    """(members, samples) -> (members, members).

    They are reckoned from the median of the members: one that is far off takes no digits from the others.
    """
    centred = samples - np.median(samples, axis=0)
    gram = centred @ centred.T
    own = np.diag(gram)
    squares: Array = np.maximum(own[:, None] + own[None] - 2.0 * gram, 0.0)
    squares[squares < 1e-13 * np.maximum(np.maximum(own[:, None], own[None]), 1e-300)] = 0.0
    return squares


def cosines(samples: Array) -> Array:
    """(members, samples) -> (members, members)."""
    sizes = np.linalg.norm(samples, axis=1)
    unit = samples / np.where(sizes > 0, sizes, 1.0)[:, None]
    return unit @ unit.T


def error_at(squares: Array, order: Sequence[int], place: int) -> float:
    """The interpolation error of the member at an inner ``place`` of ``order``.

    Args:
        squares: (members, members), squared distances.
        order: members in the order of training.
        place: from 1 to ``len(order) - 2``.
    """
    low, own, up = order[place - 1], order[place], order[place + 1]
    a, b, c = (float(squares[pair]) for pair in ((low, own), (own, up), (low, up)))
    share = min(1.0, max(0.0, (a + c - b) / (2.0 * c))) if c > 0 else 0.0
    residual = max(0.0, a - share * (a + c - b) + share**2 * c)
    around = [c]
    if place > 1:
        around.append(float(squares[low, order[place - 2]]))
    if place < len(order) - 2:
        around.append(float(squares[up, order[place + 2]]))
    scale = max(around)
    if residual == 0.0:
        return 0.0
    return float(np.sqrt(residual / scale)) if scale > 0 else float("inf")


def errors_along(squares: Array, order: Sequence[int]) -> dict[int, float]:
    """Inner member -> its error."""
    return {order[place]: error_at(squares, order, place) for place in range(1, len(order) - 1)}


def unusual(errors: dict[int, float], tests: int) -> dict[int, float]:
    """The members whose error is beyond its own spread along the line, corrected for the number of ``tests``.

    One that lies far off makes the errors of the two members on either side of it small, and so the spread of
    a short line large: beyond ``ALWAYS`` the spread is not asked.

    Returns:
        Member -> its error.
    """
    if not errors:
        return {}
    values = np.array(list(errors.values()))
    if len(values) < _FEWEST:
        return {one: error for one, error in errors.items() if error > ALWAYS}
    logs = np.log(np.maximum(values, 0.05))
    middle = float(np.median(logs))
    spread = max(_SPREAD, 1.4826 * float(np.median(np.abs(logs - middle))))
    limit = norm.isf(_CHANCE / max(1, tests))
    return {
        one: error
        for one, error, log in zip(errors, values, logs, strict=True)
        if error > ALWAYS or (error > _LEAST and (log - middle) / spread > limit)
    }


def end_moves(squares: Array, order: Sequence[int], first: bool) -> float:
    """How far the end of a line lies from its neighbour, over the largest change beyond that.

    0 where there is none: what was frozen there, or from there on, tells nothing of the end.
    """
    line = list(order if first else reversed(order))
    if len(line) < 4:
        return 0.0
    beyond = max(float(squares[line[i], line[i + 1]]) for i in range(1, min(4, len(line) - 1)))
    step = float(squares[line[0], line[1]])
    return float(np.sqrt(step / beyond)) if beyond > 0 else 0.0


@dataclass(frozen=True)
class EndLook:
    """One tensor at the end of a line."""

    moves: float
    """See ``end_moves``."""
    cosine: float
    """With its neighbour."""
    beyond: float
    """Of the neighbour with the next one."""
    samples: int


def ends_apart(looks: dict[str, EndLook]) -> set[str]:
    """The tensors that do not belong to the line's end while the others do, or all that are unrelated.

    A first interval may be longer than all others put together, so that a distance alone tells nothing: a
    tensor is named where it moves far more than the other tensors of its member do, or where it has nothing
    in common with its neighbour, which is hardly apart from the next.
    """
    usual = float(np.median([min(one.moves, 1e9) for one in looks.values()])) if looks else 0.0
    return {
        name
        for name, one in looks.items()
        if one.moves > _END * max(1.0, usual)
        or (
            one.samples >= 256
            and one.beyond > _UNRELATED
            and abs(one.cosine) < 0.02 + 3.0 / np.sqrt(one.samples)
        )
        or (one.cosine < -0.5 and one.beyond > _UNRELATED)
    }


def strangers(tensors: Sequence[Array], angles: Sequence[Array], order: Sequence[int]) -> set[int]:
    """Members that are near to none and have little in common with any: no exchange brings them home.

    Args:
        tensors: of each tensor (members, members), squared distances.
        angles: of each matrix (members of ``order``, the same), cosines.
        order: members in the order of training.
    """
    found: set[int] = set()
    if len(order) < 4 or not tensors:
        return found
    for place, own in enumerate(order):
        others = [one for one in order if one != own]
        far = [
            float(one[own, others].min()) / max(1e-300, *(float(one[a, b]) for a, b in pairwise(others)))
            for one in tensors
        ]
        alike = [float(np.delete(one[place], place).max()) for one in angles]
        if np.median(far) > _FAR and (not alike or np.median(alike) < _LITTLE):
            found.add(own)
    return found


def foreign_members(tensors: Sequence[Array], angles: Array, steps: Sequence[float]) -> set[int]:
    """Two and more members in turn that have nothing in common with those before or after them.

    The line breaks where most tensors move faster than anywhere else by far and have little in common on the
    two sides. The parts that resemble the longest one belong together, and what is left is of another run.

    Args:
        tensors: of each tensor (members, members), squared distances.
        angles: (matrices, members, members), cosines.
        steps: of each member.

    Returns:
        Places along the line. A member that is alone is judged by ``errors_along`` and ``ends_apart``.
    """
    count = len(steps)
    if count < 4 or not tensors or not len(angles):
        return set()
    alike = np.median(angles, axis=0)
    ways = np.sqrt(np.stack([[one[k, k + 1] for k in range(count - 1)] for one in tensors]))
    speeds = np.median(ways / np.maximum(np.diff(np.asarray(steps, dtype=float)), 1e-9), axis=0)
    breaks = [k for k in range(count - 1) if alike[k, k + 1] < _LITTLE]
    usual = max((speeds[k] for k in range(count - 1) if k not in breaks), default=0.0)
    breaks = [k for k in breaks if speeds[k] > _BREAK * usual > 0.0]
    edges = [0, *(k + 1 for k in breaks), count]
    parts = [list(range(a, b)) for a, b in pairwise(edges)]
    if not breaks or len(parts) > 3 or any(len(part) < 2 for part in parts):
        return set()
    longest = max(parts, key=lambda part: (len(part), part[0]))
    return {k for part in parts if not (alike[np.ix_(part, longest)] > _LITTLE).any() for k in part}


def find_swap(tensors: Sequence[Array], order: Sequence[int]) -> tuple[int, int] | None:
    """The two members that have each other's place, by nearly all tensors; None where there are none.

    Args:
        tensors: of each tensor (members, members), squared distances.
        order: members in the order of training.

    The way along the line becomes shorter where they are exchanged. At an end it may also become shorter
    because noise dies out when the learning rate falls; there the distances of the other members must grow
    with the steps between them, as noise does not.
    """
    if len(order) < 3 or not tensors:
        return None
    ways = np.sqrt(np.stack(list(tensors)))
    best, found = 0.0, None
    for i, j in combinations(range(len(order)), 2):
        gains = _swap_gains(ways, order, i, j)
        at_end = i == 0 or j == len(order) - 1
        gain = float(np.median(gains))
        if gain < (_GAIN_AT_END if at_end else _GAIN) or (gains > 0.02).mean() < _AGREE or gain <= best:
            continue
        others = [one for k, one in enumerate(order) if k not in (i, j)]
        if at_end and not (gain > _GAIN_OF_FEW if len(others) < 3 else _grows(ways, others)):
            continue
        if len(others) == 1 and _is_spike(ways, order):
            continue
        best, found = gain, (order[i], order[j])
    return found


def find_cycle(
    tensors: Sequence[Array], order: Sequence[int], pair: tuple[int, int]
) -> tuple[int, int, int] | None:
    """Three members inside of the line that went round, where that explains more than exchanging ``pair``.

    Args:
        tensors: as of ``find_swap``.
        order: as of ``find_swap``.
        pair: what ``find_swap`` found.

    Returns:
        (a, b, c): what a holds belongs to b, what b holds to c, what c holds to a.
    """
    ways = np.sqrt(np.stack(list(tensors)))
    inner = range(1, len(order) - 1)
    detours = {k: float(np.median(_detours(ways, order, k))) for k in inner}
    suspects = sorted(sorted(inner, key=lambda k: -detours[k])[:_SUSPECTS])
    exchanged = [pair[pair[0] == one] if one in pair else one for one in order]
    least = _length(ways, exchanged)
    best, found = 0.0, None
    for three in combinations(suspects, 3):
        edges = {e for k in three for e in (k - 1, k)}
        for a, b, c in (three, three[::-1]):
            turned = list(order)
            turned[b], turned[c], turned[a] = order[a], order[b], order[c]
            shorter = least - _length(ways, turned)
            gains = shorter / np.maximum(_length(ways, exchanged, edges), 1e-300)
            gain = float(np.median(gains))
            if gain > max(best, _GAIN) and (gains > 0.02).mean() >= _AGREE:
                best, found = gain, (order[a], order[b], order[c])
    return found


def _length(ways: Array, line: Sequence[int], edges: Collection[int] | None = None) -> Array:
    """(tensors,): the length of the way along a line, or of these edges of it."""
    chosen = range(len(line) - 1) if edges is None else sorted(edges)
    return np.asarray(sum(ways[:, line[k], line[k + 1]] for k in chosen))


def _detours(ways: Array, order: Sequence[int], k: int) -> Array:
    """(tensors,): how much longer the way becomes by passing a member, of what it is with it."""
    low, own, up = order[k - 1 : k + 2]
    through = ways[:, low, own] + ways[:, own, up]
    return np.asarray((through - ways[:, low, up]) / np.maximum(through, 1e-300))


def _is_spike(ways: Array, order: Sequence[int]) -> bool:
    """Whether the middle one of three members is far from the two others, which are near to each other."""
    low, middle, up = order
    return bool(np.median(ways[:, low, middle] / np.maximum(ways[:, low, up], 1e-300)) > _SPIKE)


def _swap_gains(ways: Array, order: Sequence[int], i: int, j: int) -> Array:
    """(tensors,): by which part the changed part of the way becomes shorter."""
    changed = list(order)
    changed[i], changed[j] = changed[j], changed[i]
    edges = sorted({k for k in (i - 1, i, j - 1, j) if 0 <= k < len(order) - 1})
    before, after = (sum(ways[:, line[k], line[k + 1]] for k in edges) for line in (order, changed))
    return np.asarray((before - after) / np.where(before > 0, before, 1.0))


def _grows(ways: Array, order: Sequence[int]) -> bool:
    """Whether squared distances grow with the number of members between."""
    one, two = (
        np.median([ways[:, order[k], order[k + gap]] ** 2 for k in range(len(order) - gap)], axis=0)
        for gap in (1, 2)
    )
    return float(np.median(two / np.where(one > 0, one, 1.0))) > _GROWTH
