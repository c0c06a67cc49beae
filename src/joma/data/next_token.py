"""Scan&Snap's data: contextual tokens, a last token, and the next token to be predicted.

A sequence belongs to a class, its next token n. The class fixes the last token m = psi(n), and the
contextual tokens are drawn independently from P(l | m, n) = P(l | n). A token is *distinct* when it can
occur with one next token only, and *common* otherwise. Positions carry nothing, so a sequence is known
by how often each token occurs in it: sampling counts replaces sampling sequences, and as the length
T grows the frequencies tend to P(l | n) itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joma.core.errors import InputError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class NextTokenData:
    """The distribution of sequences: K next tokens, L last tokens, C contextual tokens.

    Build it with ``graded_tokens`` (the paper's setting), ``from_pairs`` (any conditional
    probabilities), or directly. Raises InputError if a row of ``conditional`` is no distribution, if the
    last tokens are not numbered 0 ... L-1, or if ``outputs`` has no room for the next tokens.
    """

    conditional: Floats
    """P(l | n), shape (K, C), float64; rows sum to one."""
    last_of_next: Integers
    """psi(n), shape (K,): the last token of each class, numbered from 0."""
    class_probability: Floats | None = None
    """P(n), shape (K,); uniform when None."""
    outputs: int | None = None
    """M, the number of logits; the first K are the next tokens, the others never come next.

    None: one for each token there is, C + L + K, as in the authors' simulations.
    """

    def __post_init__(self) -> None:
        conditional = _distributions(self.conditional, "conditional")
        classes, contextual = conditional.shape
        last = np.asarray(self.last_of_next)
        if last.shape != (classes,) or not np.issubdtype(last.dtype, np.integer):
            raise InputError(
                f"NextTokenData: last_of_next must hold one whole number for each of the {classes} next "
                f"tokens; got shape {last.shape} of {last.dtype}."
            )
        lasts = int(last.max()) + 1
        if last.min() < 0 or np.unique(last).size != lasts:
            raise InputError(
                f"NextTokenData: last_of_next = {last.tolist()} must number the last tokens 0, 1, 2, ... "
                "without a gap; renumber them, or use NextTokenData.from_pairs."
            )
        prior = (
            np.full(classes, 1.0 / classes)
            if self.class_probability is None
            else _distributions(np.asarray(self.class_probability)[None], "class_probability")[0]
        )
        if prior.shape != (classes,):
            raise InputError(
                f"NextTokenData: class_probability has {prior.size} entries for {classes} next tokens; "
                "give one for each."
            )
        outputs = contextual + lasts + classes if self.outputs is None else self.outputs
        if outputs < max(classes, 2):
            raise InputError(
                f"NextTokenData: outputs = {outputs} logits for {classes} next tokens; give at least "
                f"{max(classes, 2)}."
            )
        object.__setattr__(self, "conditional", conditional)
        object.__setattr__(self, "last_of_next", last.astype(np.int64))
        object.__setattr__(self, "class_probability", prior)
        object.__setattr__(self, "outputs", int(outputs))

    @classmethod
    def from_pairs(
        cls,
        conditional: Mapping[tuple[Hashable, Hashable], ArrayLike],
        *,
        class_probability: ArrayLike | None = None,
        outputs: int | None = None,
    ) -> Self:
        """Data from ``{(last token, next token): P(. | last, next)}``, tokens under any names.

        Last and next tokens are numbered in the order in which they first appear. The theory assumes
        m = psi(n): each next token follows one last token only; a next token under two last tokens
        raises InputError, as do rows of unequal length.
        """
        last_of: dict[Hashable, Hashable] = {}
        for last, following in conditional:
            if following in last_of:
                raise InputError(
                    f"NextTokenData.from_pairs: next token {following!r} follows both {last_of[following]!r} "
                    f"and {last!r}; the theory assumes that a next token determines its last token, so give "
                    "it two names or one last token."
                )
            last_of[following] = last
        rows = [np.asarray(row, dtype=np.float64) for row in conditional.values()]
        if not rows or len({row.shape for row in rows}) != 1 or rows[0].ndim != 1:
            raise InputError(
                "NextTokenData.from_pairs: every (last, next) pair needs a one-dimensional row of "
                f"probabilities over the same tokens; got shapes {[row.shape for row in rows]}."
            )
        number = {last: m for m, last in enumerate(dict.fromkeys(last_of.values()))}
        return cls(
            np.stack(rows),
            np.array([number[last] for last in last_of.values()]),
            class_probability=None if class_probability is None else np.asarray(class_probability),
            outputs=outputs,
        )

    def uninformative(self) -> Self:
        """The same tokens where the context says nothing of the next token: all share the mean P(l | n)."""
        mean = np.tile(self.prior @ self.conditional, (self.classes, 1))
        return dataclasses.replace(self, conditional=mean)

    @property
    def classes(self) -> int:
        """K, the number of next tokens."""
        return int(self.conditional.shape[0])

    @property
    def last_tokens(self) -> int:
        """L, the number of last tokens."""
        return int(self.last_of_next.max()) + 1

    @property
    def contextual_tokens(self) -> int:
        """C, the number of contextual tokens."""
        return int(self.conditional.shape[1])

    @property
    def logits(self) -> int:
        """M: ``outputs``, resolved."""
        assert self.outputs is not None  # set in __post_init__
        return self.outputs

    @property
    def prior(self) -> Floats:
        """P(n), shape (K,): ``class_probability``, resolved."""
        assert self.class_probability is not None  # set in __post_init__
        return self.class_probability

    @property
    def common(self) -> Booleans:
        """Shape (C,): tokens that occur with more than one next token."""
        return np.asarray((self.conditional > 0).sum(axis=0) > 1)

    @property
    def common_per_last(self) -> Booleans:
        """Shape (C,): common tokens all of whose next tokens share one last token."""
        occurs = self.conditional > 0
        per_last = np.stack([occurs[self.last_of_next == m].any(axis=0) for m in range(self.last_tokens)])
        return np.asarray(self.common & (per_last.sum(axis=0) == 1))

    @property
    def distinct(self) -> Booleans:
        """Shape (K, C): entry (n, l) says that token l occurs with next token n and no other."""
        return np.asarray((self.conditional > 0) & ~self.common)

    def require_distinct(self, where: str) -> Booleans:
        """``distinct``; raises InputError, naming ``where``, if a next token has no distinct token."""
        distinct = self.distinct
        empty = np.flatnonzero(~distinct.any(axis=1))
        if empty.size:
            raise InputError(
                f"{where}: next tokens {empty.tolist()} have no distinct token; give each next token at "
                "least one token of positive probability that no other next token has."
            )
        return distinct

    def sample_counts(
        self, samples: int, length: int, random: np.random.Generator
    ) -> tuple[Integers, Integers]:
        """Classes, shape (samples,), and token counts, shape (samples, C), of random sequences.

        ``length`` is T, the last token included: the counts of a sequence sum to T - 1.
        """
        self._check_size(samples, length)
        classes = random.choice(self.classes, size=samples, p=self.prior)
        return classes, self.counts_of(classes, length, random)

    def counts_of(self, classes: Integers, length: int, random: np.random.Generator) -> Integers:
        """Token counts, shape (samples, C), of random sequences of the given ``classes`` (samples,)."""
        self._check_size(len(classes), length)
        counts = np.zeros((len(classes), self.contextual_tokens), dtype=np.int64)
        for n, rows in _groups(classes):
            tokens = np.flatnonzero(self.conditional[n])
            counts[np.ix_(rows, tokens)] = random.multinomial(
                length - 1, self.conditional[n, tokens], size=rows.size
            )
        return counts

    def sample_sequences(
        self, samples: int, length: int, random: np.random.Generator
    ) -> tuple[Integers, Integers]:
        """Classes, shape (samples,), and sequences, shape (samples, T), for models that read tokens.

        Contextual tokens are 0 ... C-1; the last position holds the last token, C + psi(n).
        """
        self._check_size(samples, length)
        classes = random.choice(self.classes, size=samples, p=self.prior)
        sequences = np.empty((samples, length), dtype=np.int64)
        sequences[:, -1] = self.contextual_tokens + self.last_of_next[classes]
        for n, rows in _groups(classes):
            sequences[rows, :-1] = random.choice(
                self.contextual_tokens, size=(rows.size, length - 1), p=self.conditional[n]
            )
        return classes, sequences

    def _check_size(self, samples: int, length: int) -> None:
        if samples < 1 or length < 2:
            raise InputError(
                f"NextTokenData: {samples} sequences of length {length} cannot be drawn; a sequence has at "
                "least one contextual token and the last one, so ask for samples >= 1 and length >= 2."
            )


def graded_tokens(
    *,
    last_tokens: int = 1,
    next_per_last: int = 2,
    common: int = 10,
    common_per_last: int = 0,
    distinct: int = 10,
    common_weight: float = 1.0,
    distinct_weights: tuple[float, float] = (0.1, 1.0),
    outputs: int | None = None,
) -> NextTokenData:
    """The setting of the paper's simulations: distinct tokens of graded probability.

    Before normalisation a common token weighs ``common_weight`` with every next token, a
    common-per-last token the same with the next tokens of one last token, and the distinct tokens of a
    next token weigh from ``distinct_weights[0]`` to ``distinct_weights[1]``, evenly spaced. Contextual
    tokens are numbered in that order: common, common per last, distinct of next token 0, of 1, ...
    The defaults are those of Scan&Snap Fig. 6. Raises InputError for empty or negative sizes.
    """
    least = {
        "last_tokens": (last_tokens, 1),
        "next_per_last": (next_per_last, 1),
        "common": (common, 0),
        "common_per_last": (common_per_last, 0),
        "distinct": (distinct, 1),
    }
    for name, (value, bound) in least.items():
        if value < bound:
            why = "; a next token without a distinct token cannot be told apart" if name == "distinct" else ""
            raise InputError(f"graded_tokens: {name} = {value}{why}; give at least {bound}.")
    low, high = distinct_weights
    if not (np.isfinite([common_weight, low, high]).all() and common_weight > 0 and low > 0 and high > 0):
        raise InputError(
            f"graded_tokens: common_weight = {common_weight} and distinct_weights = {distinct_weights} must "
            "be positive and finite."
        )
    classes = last_tokens * next_per_last
    last_of_next = np.repeat(np.arange(last_tokens), next_per_last)
    weights = np.zeros((classes, common + last_tokens * common_per_last + classes * distinct))
    weights[:, :common] = common_weight
    for n, m in enumerate(last_of_next.tolist()):
        start = common + m * common_per_last
        weights[n, start : start + common_per_last] = common_weight
        start = common + last_tokens * common_per_last + n * distinct
        weights[n, start : start + distinct] = np.linspace(low, high, distinct)
    return NextTokenData(weights / weights.sum(axis=1, keepdims=True), last_of_next, outputs=outputs)


def _groups(classes: Integers) -> list[tuple[int, Integers]]:
    """Each class that occurs, with the rows it occurs in."""
    return [(int(n), np.flatnonzero(classes == n)) for n in np.unique(classes)]


def _distributions(rows: ArrayLike, name: str) -> Floats:
    """``rows`` as float64 of shape (rows, entries) that sum to one, or InputError."""
    array = np.asarray(rows, dtype=np.float64)
    if array.ndim != 2 or array.size == 0:
        raise InputError(
            f"NextTokenData: {name} has shape {array.shape}; give one row of probabilities for each next "
            "token."
        )
    if not np.isfinite(array).all() or (array < 0).any():
        row, column = np.argwhere(~np.isfinite(array) | (array < 0))[0]
        raise InputError(
            f"NextTokenData: {name}[{row}, {column}] = {array[row, column]} is not a probability; "
            "give finite numbers of at least 0."
        )
    sums = array.sum(axis=1)
    wrong = np.flatnonzero(np.abs(sums - 1) > 1e-9)
    if wrong.size:
        raise InputError(
            f"NextTokenData: row {wrong[0]} of {name} sums to {sums[wrong[0]]:.12g}; divide it by its sum so "
            "that the probabilities sum to 1."
        )
    return np.asarray(array / sums[:, None])
