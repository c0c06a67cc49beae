"""Class-conditional token frequencies: the data of JoMA Fig. 2 and 3, and any other.

A data set is ``P(token | class)``, one sample per class and query; arrays are (..., classes, tokens).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joma.core.errors import InputError

Array = NDArray[np.float64]


def as_frequencies(frequencies: ArrayLike, *, normalise: bool = False) -> Array:
    """Frequencies given by the user (..., classes, tokens), checked: not negative, each class sums to 1.

    Args:
        frequencies: anything NumPy makes an array of.
        normalise: divide each class by its sum first (counts).

    Raises:
        InputError: naming the first class that is wrong.
    """
    try:
        x = np.array(frequencies, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            "as_frequencies: the frequencies are no array of numbers; give (classes, tokens)."
        ) from None
    if x.ndim < 2 or 0 in x.shape:
        raise InputError(f"as_frequencies: shape {x.shape} must be (..., classes, tokens), none of them 0.")
    _refuse(~np.isfinite(x).all(axis=-1), "holds a value that is not finite; give finite numbers.")
    _refuse(
        (x < 0).any(axis=-1), f"has a negative probability (least: {np.nanmin(x):.3g}); give none below 0."
    )
    total = x.sum(axis=-1, keepdims=True)
    if normalise:
        _refuse(total[..., 0] == 0, "has no tokens at all; leave it out.")
        x = x / total
    else:
        _refuse(
            np.abs(total[..., 0] - 1) > 1e-9, "does not sum to 1; pass normalise=True if these are counts."
        )
    return x


def _refuse(wrong: NDArray[np.bool_] | np.bool_, what: str) -> None:
    if wrong.any():
        place = np.argwhere(wrong)[0]
        where = int(place[0]) if len(place) == 1 else tuple(map(int, place))
        raise InputError(f"as_frequencies: class {where} {what}")


def smooth_classes(
    classes: int = 20, *, distinct: int = 10, common: int = 10, width: float = 30.0, seed: int = 0
) -> Array:
    """Classes that pass smoothly into one another (JoMA Fig. 2 left): (classes, distinct + common).

    The first ``distinct`` tokens form a bump ``exp(-(l - distinct * y / classes)^2 / width)`` that wanders
    with the class y; the others are common: uniform noise in [0, 1/2). Then each class is normalised.

    Args:
        classes: K.
        distinct: tokens of the bump.
        common: tokens of noise.
        width: of the bump, squared, in tokens squared; the paper's code has 30.
        seed: of the noise.
    """
    _positive("smooth_classes", classes=classes, distinct=distinct, width=width)
    if common < 0:
        raise InputError(f"smooth_classes: common = {common} must be at least 0.")
    centre = np.arange(classes) * distinct / classes
    bump = np.exp(-((np.arange(distinct) - centre[:, None]) ** 2) / width)
    noise = np.random.default_rng(seed).random((classes, common)) / 2
    return as_frequencies(np.hstack([bump, noise]), normalise=True)


def random_classes(classes: int = 20, *, tokens: int = 20, seed: int = 0) -> Array:
    """Classes with nothing in common but chance (JoMA Fig. 2 right): normalised uniform noise."""
    _positive("random_classes", classes=classes, tokens=tokens)
    return as_frequencies(np.random.default_rng(seed).random((classes, tokens)), normalise=True)


def sample_sentences(
    frequencies: Array, *, length: int, per_class: int, seed: int
) -> tuple[Array, NDArray[np.int64]]:
    """Finite sentences in place of their expectation: empirical frequencies and labels.

    Args:
        frequencies: (classes, tokens).
        length: tokens in a sentence.
        per_class: sentences of each class.
        seed: of the draw.

    Returns:
        Frequencies (classes * per_class, tokens) and the class of each row (classes * per_class,).
    """
    _positive("sample_sentences", length=length, per_class=per_class)
    x = as_frequencies(frequencies)
    if x.ndim != 2:
        raise InputError(f"sample_sentences: frequencies {x.shape} must be (classes, tokens).")
    labels = np.repeat(np.arange(len(x)), per_class)
    counts = np.random.default_rng(seed).multinomial(length, x[labels])
    return counts / length, labels


def drive(
    frequencies: Array, gradient: Array, sample_weights: Sequence[float] | Array | None = None
) -> Array:
    """``Delta_kl = E[g_k x_l]`` (..., K, M): a token's discriminancy times its frequency (JoMA Sec. 3.1).

    Footnote 1 writes the average over samples i with weights ``P(l|q=m)``; it must be ``P(i|q=m)``.

    Args:
        frequencies: ``x`` (..., N, M).
        gradient: ``g`` (..., N, K).
        sample_weights: ``P(i|q=m)`` (N,); uniform if left out.
    """
    x, g = np.asarray(frequencies, dtype=np.float64), np.asarray(gradient, dtype=np.float64)
    if x.shape[-2:-1] != g.shape[-2:-1]:
        raise InputError(
            f"drive: frequencies {x.shape} and gradient {g.shape} differ in the number of samples; give "
            "(..., N, M) and (..., N, K)."
        )
    n = x.shape[-2]
    p = np.full(n, 1 / n) if sample_weights is None else np.asarray(sample_weights, dtype=np.float64)
    return np.asarray(np.swapaxes(g * p[:, None], -1, -2) @ x)


def _positive(where: str, **values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise InputError(f"{where}: {name} = {value!r} must be above 0.")
