"""JoMA Sec. 7, embeddings: attention to tokens like those learned, and a vocabulary that shrinks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import softmax

from joma.core.arguments import Array
from joma.core.claim import Claim, at_least, below, statements, within_error

COSINES = (1.0, 0.8, 0.4, 0.0, -0.5)
"""Of unseen tokens' embeddings with that of the first token seen."""
CONCEPTS, SYNONYMS, CLASSES, WIDTH, SEEDS = 4, 3, 8, 40, 5

STATEMENTS = statements(
    {
        "similar_tokens.attention": "JoMA Sec. 7, 'Self-attention computed from embedding' | Z = U W_Q W_K' "
        "U' allows generalisation to tokens with similar embeddings: a token never seen is attended to as "
        "its cosine with those seen says.",
        "similar_tokens.vocabulary": "JoMA Sec. 7, 'Training embedding vectors' | Concepts of like semantics "
        "learn similar embeddings, which reduces the vocabulary: the effective number of tokens falls to "
        "about that of concepts.",
        "similar_tokens.of_semantics": "JoMA Sec. 7, 'Training embedding vectors' | It is like semantics "
        "that reduces the vocabulary: among as many tokens that mean different things it stays.",
    },
    exact=True,
)


def _unseen_motion(*, free: bool) -> tuple[Array, float]:
    """How far the logits of unseen tokens move (COSINES,), and that of the first token seen, in 300 steps.

    One query, exp attention, tanh nodes, constant gradients; z = U' A u_q with A learned, or z itself.
    """
    rng = np.random.default_rng(8)
    tokens, samples, units, rate = 4, 20, 3, 0.02
    basis = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0]
    seen, query, aside = basis[:, :tokens], basis[:, tokens], basis[:, tokens + 1 : tokens + 1 + len(COSINES)]
    c = np.array(COSINES)
    unseen = c * seen[:, :1] + np.sqrt(1 - c * c) * aside
    everything = np.column_stack([seen, unseen])
    x = np.column_stack([rng.random((samples, tokens)), np.zeros((samples, c.size))])
    g, w = rng.standard_normal((samples, units)), 0.3 * rng.standard_normal((units, WIDTH))
    matrix, z = np.zeros((WIDTH, WIDTH)), np.zeros(tokens + c.size)
    for _ in range(300):
        b = x * np.exp(z)
        f = b @ everything.T + query
        signal = g / np.square(np.cosh(f @ w.T)) / samples
        drive = (signal @ w @ everything * b).sum(axis=0)
        w = w + rate * signal.T @ f
        if free:
            z = z + rate * drive
        else:
            matrix = matrix + rate * np.outer(everything @ drive, query)
            z = everything.T @ matrix @ query
    return z[tokens:], float(z[0])


def effective_tokens(embeddings: Array) -> float:
    """The participation ratio of the embeddings' (M, d) squared singular values."""
    squares = np.square(np.linalg.svd(embeddings, compute_uv=False))
    return float(squares.sum() ** 2 / np.square(squares).sum())


def _learned_vocabulary(seed: int, *, synonyms: bool) -> tuple[float, float]:
    """The effective number of tokens before and after embeddings and classifier learn, uniform attention.

    Tokens occur by their concept's preference for the classes, or each by a preference of its own.
    """
    rng = np.random.default_rng([seed, 31])
    tokens = CONCEPTS * SYNONYMS
    preference = rng.gamma(0.3, size=(CONCEPTS if synonyms else tokens, CLASSES))
    if synonyms:
        preference = np.repeat(preference, SYNONYMS, axis=0)
    bags = preference / preference.sum(axis=0)  # P(l | class), the bag of a class, (M, classes)
    embeddings = rng.standard_normal((tokens, WIDTH)) / WIDTH**0.5
    weights = 0.1 * rng.standard_normal((CLASSES, WIDTH)) / WIDTH**0.5
    start = effective_tokens(embeddings)
    for _ in range(1500):
        f = bags.T @ embeddings
        g = (np.eye(CLASSES) - softmax(f @ weights.T, axis=1)) / CLASSES
        weights, embeddings = weights + 0.5 * g.T @ f, embeddings + 0.5 * bags @ g @ weights
    return start, effective_tokens(embeddings)


def similar_tokens() -> list[Claim]:
    """Generalisation of attention, and what is left of the vocabulary."""
    motion, first = _unseen_motion(free=False)
    free, moved = _unseen_motion(free=True)
    starts, ends = np.array([_learned_vocabulary(seed, synonyms=True) for seed in range(SEEDS)]).T
    others = np.array([_learned_vocabulary(seed, synonyms=False)[1] for seed in range(SEEDS)])
    listed = f"from {starts.mean():.1f} to {ends.min():.1f} to {ends.max():.1f}; unrelated tokens to "
    listed += f"{others.min():.1f} to {others.max():.1f}; {CONCEPTS} concepts of {SYNONYMS}, {SEEDS} seeds"
    return [
        STATEMENTS["similar_tokens.attention"].judge(
            within_error(1e-12, np.abs(motion / first - COSINES), of="error of an unseen token's motion")
            & at_least(1e-3, abs(first), of="motion of the token seen"),
            null=float(np.abs(free).max() / abs(moved)),
            null_description="motion of unseen tokens over that of the first seen, logits free parameters",
            evidence="z = U' A u_q, 300 steps; the motion over that of the first token seen, at cosines "
            + ", ".join(f"{c:g}" for c in COSINES),
        ),
        STATEMENTS["similar_tokens.vocabulary"].judge(
            below(1.5 * CONCEPTS, ends, of="effective number of tokens", across="in every seed"),
            null=float(starts.min()),
            null_description="before training",
            evidence=listed,
        ),
        STATEMENTS["similar_tokens.of_semantics"].judge(
            at_least(
                0.9 * starts.min(),
                others,
                of="effective number of unrelated tokens",
                than="nine tenths of that before training",
                across="in every seed",
            ),
            null=float(ends.max()),
            null_description="that of synonyms, largest",
            evidence=f"{listed}: embeddings fall into the directions that tell classes apart in any case",
        ),
    ]


CHECKS: dict[str, Callable[[], list[Claim]]] = {"similar_tokens": similar_tokens}
