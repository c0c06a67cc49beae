"""Are a neuron's patterns related in meaning? Spelling aside, and by the model's own embeddings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import nn

from joma.instruments.reading.lent import input_embeddings
from joma.measures.superposition import null_probability

Integers = NDArray[np.int64]
Array = NDArray[np.float64]


def fold_case(ids: Integers, piece: Callable[[int], str]) -> Integers:
    """Token id -> the id that stands for all ids with the same letters, blanks and case aside.

    `` At``, ``at`` and `` at`` are one word to a reader, and three tokens to a model.

    Args:
        ids: (used,) token ids.
        piece: token id -> its text.

    Returns:
        (largest id + 1,); ids not in ``ids`` stand for themselves.
    """
    result = np.arange(int(ids.max()) + 1 if ids.size else 0)
    first: dict[str, int] = {}
    for number in ids.tolist():
        text = piece(number)
        result[number] = first.setdefault(text.strip().lower() or text, number)
    return result


def embedding_matrix(model: nn.Module) -> NDArray[np.float32] | None:
    """(vocabulary, width) float32 on the CPU, or None where the model does not say what it is."""
    module = input_embeddings(model)
    weight = getattr(module, "weight", None)
    if weight is None or weight.ndim != 2 or weight.is_meta:
        return None
    matrix: NDArray[np.float32] = weight.detach().float().cpu().numpy()
    return matrix


def relatedness(
    tokens: Integers,
    weights: Array,
    pattern: Integers,
    embedding: NDArray[np.float32],
    *,
    random: np.random.Generator,
) -> tuple[Array, Array]:
    """How alike a neuron's patterns are in the embedding space, and how often others are so alike.

    A pattern is the sum of its contexts' attended embeddings (less their mean over all patterns), weighted
    like the contexts' bags. ``relatedness`` is the mean cosine between a neuron's patterns; its p-value
    the share of equally many patterns, each of another neuron, that are at least so alike: small where
    the patterns are related in meaning.

    Args:
        tokens: (neurons, contexts, attended) ids.
        weights: (neurons, contexts, attended).
        pattern: (neurons, contexts): number of each context's pattern, -1 for none; two patterns at least.
        embedding: (vocabulary, width).
        random: picks the other neurons.

    Returns:
        relatedness and p-value, (neurons,) each; NaN where there are fewer than two neurons.
    """
    neurons = len(tokens)
    if neurons < 2:
        return np.full(neurons, np.nan), np.full(neurons, np.nan)
    sums = [_sums(*one, embedding) for one in zip(tokens, weights, pattern, strict=True)]
    mean = np.concatenate(sums).mean(axis=0)
    units = [s - mean for s in sums]
    units = [u / np.maximum(np.linalg.norm(u, axis=1, keepdims=True), 1e-300) for u in units]
    own = np.asarray([_mean_cosine(u) for u in units])
    others = []
    for _ in range(max(1, 500 // neurons)):
        for unit in units:
            # One number chooses both a neuron and one of its patterns; a neuron drawn twice is rare.
            chosen = random.random(len(unit)) * neurons
            picked = [units[int(c)][int(c % 1 * len(units[int(c)]))] for c in chosen]
            others.append(_mean_cosine(np.stack(picked)))
    return own, null_probability(own, others)


def _sums(tokens: Integers, weights: Array, pattern: Integers, embedding: NDArray[np.float32]) -> Array:
    """(patterns, width): the weighted means of what the contexts of each pattern attend to."""
    member = pattern == np.arange(pattern.max() + 1)[:, None]
    share = (member[:, :, None] * weights).reshape(len(member), -1)
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1e-300)
    sums: Array = (share.astype(np.float32) @ embedding[tokens.reshape(-1)]).astype(np.float64)
    return sums


def _mean_cosine(units: Array) -> float:
    cosines = units @ units.T
    return float(cosines[np.triu_indices(len(units), 1)].mean())
