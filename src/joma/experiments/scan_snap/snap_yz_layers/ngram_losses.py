"""What counting alone reaches on a text: the held-out loss of unigram and bigram models."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joma.data.text import TokenText

_PSEUDOCOUNTS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


def unigram_loss(text: TokenText) -> float:
    """Held-out loss (nats a token) of the training text's frequencies, one added to each count."""
    frequencies = _frequencies(text.training, text.vocabulary_size)
    return float(-np.log(frequencies[text.validation[1:]]).mean())


def bigram_loss(text: TokenText) -> float:
    """Held-out loss (nats a token) of P(b | a) = (n_ab + k P(b)) / (n_a + k).

    P(b) is the unigram model; k is the best of a few for the last tenth of the training text, the counts
    being taken from the rest; then all of it is counted.
    """
    cut = len(text.training) * 9 // 10
    counted, tuned = text.training[:cut], text.training[cut:]
    size = text.vocabulary_size
    k = min(_PSEUDOCOUNTS, key=lambda k: _bigram_loss(counted, tuned, size, k))
    return _bigram_loss(text.training, text.validation, size, k)


def _bigram_loss(training: NDArray[np.int64], held_out: NDArray[np.int64], size: int, k: float) -> float:
    frequencies = _frequencies(training, size)
    pairs, pair_counts = np.unique(training[:-1] * size + training[1:], return_counts=True)
    before = np.bincount(training[:-1], minlength=size)
    wanted = held_out[:-1] * size + held_out[1:]
    place = np.searchsorted(pairs, wanted).clip(max=pairs.size - 1)
    seen = np.where(pairs[place] == wanted, pair_counts[place], 0)
    probability = (seen + k * frequencies[held_out[1:]]) / (before[held_out[:-1]] + k)
    return float(-np.log(probability).mean())


def _frequencies(tokens: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    counts = np.bincount(tokens, minlength=size) + 1.0
    return np.asarray(counts / counts.sum())
