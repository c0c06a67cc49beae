"""Pattern superposition: does one neuron answer to unrelated patterns (JoMA Fig. 10, App. on Eq. 58)?

A neuron's patterns are read off the contexts that activate it most: what the query token attends to in
each of them is a bag of tokens, bags are compared by cosine, and contexts with like bags are one
pattern. ``superposition`` scores how clearly a neuron has two patterns or more; what a score means is
told by ``matched_draws``, the same contexts' windows with what other neurons answered to there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joma.core.errors import InputError

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

RELATED = 2.0
"""Clusters that are alike to each other by one part in this of what each is within are one pattern."""

_AT_ONCE = 1024
"""Neurons whose similarity matrices are held at once."""


def rarity(tokens: ArrayLike, weights: ArrayLike, *, vocabulary_size: int) -> Array:
    """Inverse document frequency of attended tokens: log(contexts / contexts that attend to the token).

    A token that every context attends to (punctuation, often) tells nothing and weighs 0.

    Args:
        tokens: (contexts, attended) token ids.
        weights: (contexts, attended), 0 where nothing was attended to.
        vocabulary_size: number of token ids.

    Returns:
        (vocabulary_size,) in nats, 0 for tokens that no context attends to.

    Raises:
        InputError: shapes that do not match, weights that are negative or not finite, ids outside the
            vocabulary.
    """
    ids, w = _bags(tokens, weights, "rarity", 2)
    if ids.size and not (ids.min() >= 0 and ids.max() < vocabulary_size):
        raise InputError(
            f"rarity: token ids from {ids.min()} to {ids.max()} with vocabulary_size = {vocabulary_size}; "
            "give the size of the vocabulary they come from."
        )
    order = np.argsort(ids, axis=1, kind="stable")
    ids, w = np.take_along_axis(ids, order, axis=1), np.take_along_axis(w, order, axis=1)
    # A token at two positions of one context counts once.
    first = np.ones(ids.shape, dtype=bool)
    used = w > 0
    for column in range(1, ids.shape[1]):
        earlier = (ids[:, :column] == ids[:, column : column + 1]) & used[:, :column]
        first[:, column] = ~earlier.any(axis=1)
    counts = np.bincount(ids[used & first], minlength=vocabulary_size)
    contexts = int(used.any(axis=1).sum())
    result = np.zeros(vocabulary_size)
    seen = counts > 0
    result[seen] = np.log(contexts / counts[seen])
    return result


def attended_similarity(tokens: ArrayLike, weights: ArrayLike) -> Array:
    """Cosine of the bags of attended tokens, context by context.

    Args:
        tokens: (..., contexts, attended) token ids; one id may stand at several positions.
        weights: (..., contexts, attended) at least 0: attention times ``rarity``.

    Returns:
        (..., contexts, contexts) in [0, 1]; 0, on the diagonal too, for a context whose bag is empty.

    Raises:
        InputError: shapes that do not match, weights that are negative or not finite.
    """
    ids, w = _bags(tokens, weights, "attended_similarity")
    flat_ids, flat_w = ids.reshape(-1, *ids.shape[-2:]), w.reshape(-1, *w.shape[-2:])
    contexts = ids.shape[-2]
    result = np.empty((len(flat_ids), contexts, contexts))
    for begin in range(0, len(flat_ids), _AT_ONCE):
        part = slice(begin, begin + _AT_ONCE)
        result[part] = _cosines(flat_ids[part], flat_w[part])
    return result.reshape(*ids.shape[:-1], contexts)


def _cosines(ids: Integers, w: Array) -> Array:
    # Ids to columns that are dense within each neuron, so that bags become rows of a small matrix.
    neurons, contexts, attended = ids.shape
    flat = ids.reshape(neurons, -1)
    order = np.argsort(flat, axis=1, kind="stable")
    ordered = np.take_along_axis(flat, order, axis=1)
    ranks = np.zeros_like(flat)
    ranks[:, 1:] = np.cumsum(ordered[:, 1:] != ordered[:, :-1], axis=1)
    column = np.empty_like(flat)
    np.put_along_axis(column, order, ranks, axis=1)
    columns = int(ranks[:, -1].max()) + 1 if flat.size else 0
    bags = np.zeros((neurons * contexts, columns))
    row = np.repeat(np.arange(neurons * contexts), attended)
    np.add.at(bags, (row, column.reshape(-1)), w.reshape(-1))
    bags = bags.reshape(neurons, contexts, columns)
    norm = np.linalg.norm(bags, axis=-1, keepdims=True)
    bags /= np.where(norm > 0, norm, 1.0)
    cosines: Array = np.clip(bags @ bags.transpose(0, 2, 1), 0.0, 1.0)
    return cosines


@dataclass(frozen=True, eq=False)
class Superposition:
    """What ``superposition`` found, neuron by neuron."""

    score: Array
    """(neurons,) in [0, 1]; 0 where no two patterns stand apart; NaN with fewer contexts than two patterns
    take."""
    patterns: Integers
    """(neurons,): number of patterns in the best partition; 0 where no two stand apart."""
    pattern: Integers
    """(neurons, contexts): each context's pattern, numbered by their first context; -1 for none."""
    cohesion: Array
    """(neurons,): mean similarity within the weakest pattern; NaN without patterns."""
    between: Array
    """(neurons,): mean similarity between the patterns; NaN without patterns."""
    overall: Array
    """(neurons,): mean similarity of all pairs of contexts: high for a neuron with one pattern."""


def superposition(
    similarity: ArrayLike, *, valid: ArrayLike | None = None, smallest: int = 3
) -> Superposition:
    """How clearly a neuron's contexts fall into patterns that are unrelated to each other.

    Contexts are merged by average linkage. Of each partition on the way, the clusters of at least
    ``smallest`` contexts are taken in the order of their cohesion (mean similarity of their pairs); the
    first two, three, ... of them are patterns with

        score = coverage * (cohesion of the weakest pattern - 2 * mean similarity between patterns),

    coverage being the share of contexts in these patterns. The neuron's score is the largest over
    partitions and numbers of patterns, or 0. It is near 1 for two tight and unrelated patterns and near
    0 for a neuron without any (alike neither within nor between). The factor 2 makes it 0 for clusters
    that are more than half as alike as their own contexts: a neuron with one pattern always falls into
    such halves, some tighter than chance. Being a maximum, the score is above 0 on random contexts too,
    hence the null.

    Args:
        similarity: (neurons, contexts, contexts), symmetric, at most 1 (``attended_similarity``).
        valid: (neurons, contexts), False where a neuron has no such context.
        smallest: contexts that make a pattern, at least 2.

    Raises:
        InputError: a shape that is not (neurons, contexts, contexts), values that are not finite, or
            ``smallest`` below 2.
    """
    s = np.asarray(similarity, dtype=np.float64)
    if s.ndim != 3 or s.shape[1] != s.shape[2] or not s.shape[1]:
        raise InputError(
            f"superposition: similarity has shape {s.shape}; give (neurons, contexts, contexts), at least "
            "one context."
        )
    if not np.isfinite(s).all():
        raise InputError("superposition: similarity holds NaN or infinity; leave those contexts out (valid).")
    if smallest < 2:
        raise InputError(f"superposition: smallest = {smallest} contexts are no pattern; give at least 2.")
    there = np.ones(s.shape[:2], dtype=bool) if valid is None else np.asarray(valid, dtype=bool)
    if there.shape != s.shape[:2]:
        raise InputError(
            f"superposition: valid has shape {there.shape} for similarity of shape {s.shape}; give "
            "(neurons, contexts)."
        )
    parts = [
        _best_partition(s[begin : begin + _AT_ONCE], there[begin : begin + _AT_ONCE], smallest)
        for begin in range(0, max(len(s), 1), _AT_ONCE)
    ]
    return Superposition(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _best_partition(s: Array, valid: NDArray[np.bool_], smallest: int) -> tuple[Array | Integers, ...]:
    neurons, contexts = valid.shape
    each = np.arange(neurons)
    both = valid[:, :, None] & valid[:, None, :]
    total = np.where(both, s, 0.0)  # sums of similarities between clusters; clusters are single contexts
    own = np.einsum("nii->ni", total).copy()  # of which each context with itself
    size = valid.astype(np.float64)
    held = size.sum(axis=1)
    label = np.where(valid, np.arange(contexts), -1)
    upper = np.triu(np.ones((contexts, contexts), dtype=bool), 1)

    pairs = held * (held - 1)
    overall = _ratio(total.sum(axis=(1, 2)) - own.sum(axis=1), pairs)
    score = np.zeros(neurons)
    patterns = np.zeros(neurons, dtype=np.int64)
    best_label = np.full((neurons, contexts), -1, dtype=np.int64)
    cohesion, between = np.full(neurons, np.nan), np.full(neurons, np.nan)
    for merged in range(contexts - 1):
        average = _ratio(total, size[:, :, None] * size[:, None, :])
        average = np.where(upper & (size[:, :, None] > 0) & (size[:, None, :] > 0), average, -np.inf)
        flat = average.reshape(neurons, -1)
        nearest = flat.argmax(axis=1)
        go = np.flatnonzero(flat[each, nearest] > -np.inf)
        i, j = nearest[go] // contexts, nearest[go] % contexts
        total[go, i] += total[go, j]
        total[go, :, i] += total[go, :, j]
        own[go, i] += own[go, j]
        size[go, i] += size[go, j]
        size[go, j] = 0.0
        label[go] = np.where(label[go] == j[:, None], i[:, None], label[go])
        if merged + 2 < smallest * 2 - 1:  # two patterns take 2 (smallest - 1) merges
            continue
        for number, found in enumerate(_patterns(total, own, size, held, smallest), start=2):
            better = np.flatnonzero(found.score > score)
            score[better] = found.score[better]
            patterns[better] = number
            cohesion[better], between[better] = found.cohesion[better], found.between[better]
            chosen = (label[better][:, :, None] == found.clusters[better][:, None, :]).any(axis=-1)
            best_label[better] = np.where(chosen, label[better], -1)
    score[held < 2 * smallest] = np.nan
    return score, patterns, _number_clusters(best_label), cohesion, between, overall


@dataclass(frozen=True)
class _Patterns:
    score: Array
    cohesion: Array
    between: Array
    clusters: Integers


def _patterns(total: Array, own: Array, size: Array, held: Array, smallest: int) -> list[_Patterns]:
    """The two, three, ... most coherent clusters of a partition as patterns; score -inf where too few."""
    most = size.shape[1] // smallest
    enough = size >= smallest
    within = np.where(enough, _ratio(np.einsum("nii->ni", total) - own, size * (size - 1)), -np.inf)
    order = np.argsort(-within, axis=1, kind="stable")[:, :most]
    within = np.take_along_axis(within, order, axis=1)
    chosen = np.take_along_axis(size, order, axis=1)
    each = np.arange(len(size))[:, None, None]
    sums = total[each, order[:, :, None], order[:, None, :]]
    apart = _ratio(sums, chosen[:, :, None] * chosen[:, None, :])
    results = []
    pairs = np.zeros(len(size))
    covered = chosen[:, 0].copy()
    for number in range(2, most + 1):
        pairs = pairs + apart[:, number - 1, : number - 1].sum(axis=1)
        covered = covered + chosen[:, number - 1]
        between = pairs / (number * (number - 1) / 2)
        weakest = within[:, number - 1]
        none = np.isneginf(weakest)
        score = _ratio(covered, held) * (np.where(none, 0.0, weakest) - RELATED * between)
        results.append(_Patterns(np.where(none, -np.inf, score), weakest, between, order[:, :number]))
    return results


def _ratio(numerator: Array, denominator: Array) -> Array:
    """Where the denominator is 0, 0."""
    result: Array = numerator / np.where(denominator > 0, denominator, np.inf)
    return result


def _number_clusters(label: Integers) -> Integers:
    """Clusters numbered 0, 1, ... in the order of their first contexts; -1 stays."""
    contexts = label.shape[1]
    result = np.full(label.shape, -1, dtype=np.int64)
    following = np.zeros(len(label), dtype=np.int64)
    for context in range(contexts):
        fresh = (label[:, context] >= 0) & (result[:, context] < 0)
        same = fresh[:, None] & (label == label[:, context : context + 1])
        result = np.where(same, following[:, None], result)
        following += fresh
    return result


def matched_draws(
    windows: ArrayLike, *, valid: ArrayLike | None = None, draws: int, random: np.random.Generator
) -> Integers:
    """Shuffled contexts: for each context another one of the same layer, from the same window of text.

    The null of a neuron that answers to positions without regard to what they attend to. Drawing from
    the same windows keeps what would pass for patterns and is none: a text that dwells on a topic.

    Args:
        windows: (neurons, contexts), the window of each context, any neuron's of the layer.
        valid: (neurons, contexts), False where a neuron has no such context.
        draws: shuffles of every neuron.
        random: generator of the draws.

    Returns:
        (draws, neurons, contexts): which entry of the flattened (neurons, contexts) takes the place of
        each; an entry that is not valid keeps its own.

    Raises:
        InputError: shapes that do not match, or fewer than one draw.
    """
    w = np.asarray(windows)
    there = np.ones(w.shape, dtype=bool) if valid is None else np.asarray(valid, dtype=bool)
    if w.ndim != 2 or there.shape != w.shape or draws < 1:
        raise InputError(
            f"matched_draws: windows {w.shape}, valid {there.shape}, draws = {draws}; give (neurons, "
            "contexts) twice and at least one draw."
        )
    entries = np.flatnonzero(there.reshape(-1))
    entries = entries[np.argsort(w.reshape(-1)[entries], kind="stable")]
    _, of_window, count = np.unique(w.reshape(-1)[entries], return_inverse=True, return_counts=True)
    start = np.concatenate([[0], np.cumsum(count)[:-1]])[of_window] if len(entries) else of_window
    result = np.tile(np.arange(w.size), (draws, 1))
    pick = random.random((draws, len(entries)))
    result[:, entries] = entries[start + (pick * count[of_window]).astype(np.int64)]
    return result.reshape(draws, *w.shape)


def null_probability(scores: ArrayLike, null: ArrayLike) -> Array:
    """p-values: (1 + null scores at least as large) / (1 + null scores); NaN where the score is NaN.

    Raises:
        InputError: no null score that is a number.
    """
    s, pool = np.asarray(scores, dtype=np.float64), np.asarray(null, dtype=np.float64).reshape(-1)
    pool = np.sort(pool[np.isfinite(pool)])
    if not pool.size:
        raise InputError("null_probability: no null score is a number; draw from more contexts.")
    # Scores that differ by rounding alone are ties, which count against the neuron.
    larger = pool.size - np.searchsorted(pool, s - 1e-12, side="left")
    return np.where(np.isnan(s), np.nan, (1 + larger) / (1 + pool.size))


def _bags(
    tokens: ArrayLike, weights: ArrayLike, where: str, dimensions: int | None = None
) -> tuple[Integers, Array]:
    ids, w = np.asarray(tokens), np.asarray(weights, dtype=np.float64)
    wanted = ids.ndim == dimensions if dimensions else ids.ndim >= 2
    if not wanted or ids.shape != w.shape or not np.issubdtype(ids.dtype, np.integer):
        raise InputError(
            f"{where}: tokens {ids.shape} of {ids.dtype} and weights {w.shape}; give integers and numbers of "
            f"one shape, {'' if dimensions else '..., '}(contexts, attended)."
        )
    if not (np.isfinite(w).all() and (w >= 0).all()):
        raise InputError(f"{where}: weights hold NaN, infinity or negative numbers; attention has none.")
    return ids.astype(np.int64), w
