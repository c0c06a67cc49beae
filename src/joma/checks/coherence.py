"""Almost orthogonal embeddings (JoMA Sec. 7): what becomes of Theorem 1, and the dimensions they take."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from joma.core.claim import Claim, at_least, at_most, below, between, statements, within_error
from joma.dynamics import block_flow
from joma.theory.activation import activation
from joma.theory.attention import Array, Attention, AttentionKind
from joma.theory.block import Block, Embeddings
from joma.theory.coherence import (
    attention_side,
    coherence,
    drift,
    drift_bound,
    lemma_dimension,
    path_drift,
    printed_dimension,
    random_coherence,
    random_dimension,
    random_embeddings,
    surviving_invariant,
    typical_drift,
    welch_bound,
)

TOKENS, NODES, SAMPLES = 8, 2, 20
WHERE = "JoMA Sec. 7 (Thm 1 'will have additional epsilon-related terms')"

STATEMENTS = statements(
    {
        "coherence.bound_sharp": f"{WHERE} | The bound cannot be improved without knowing how v follows a: "
        "it is attained.",
        "coherence.order": f"{WHERE} | The invariants drift at first order in the coherence epsilon.",
        "coherence.second_order": f"{WHERE} | With the first-order term put in (a line integral of v "
        "alone), what is left is of second order.",
        "coherence.typical": f"{WHERE} | For random embeddings the drift is of size |v_l||v| / (2 sqrt d), "
        "with no ln M.",
        "coherence.dimension": "JoMA Sec. 7 | For M embeddings to have |u.u'| <= epsilon only d <= 8 "
        "epsilon^-2 log M is needed.",
        "coherence.dimension_sharp": "JoMA Sec. 7, sharpened | Random unit vectors need half of that: about "
        "4 epsilon^-2 log M, by the exact law of the cosine and the union bound.",
        "coherence.random": "JoMA Sec. 7 | The coherence of random embeddings has the median that the law "
        "of the cosine says, near sqrt(4 ln M / d).",
        "coherence.welch": "Welch bound | No embeddings are less coherent than sqrt((M-d)/(d(M-1))); the "
        "simplex attains it.",
        "coherence.survivor_{kind}": f"{WHERE} | {{kind}} attention: of Theorem 1's invariants their sum "
        "survives any embeddings, as sum_l Q_l - sum_k |w_k|^2 / 2.",
        "coherence.exact_{kind}": f"{WHERE} | {{kind}} attention: the epsilon-related term is -sum_k int "
        "v_k (E da_k), exactly.",
        "coherence.bound_{kind}": f"{WHERE} | {{kind}} attention: the drift is at most epsilon sum_k "
        "sup|v_kl| sum_m int|da_km|.",
    },
    exact=True,
)


@dataclass(frozen=True)
class _Course:
    vectors: Array
    trajectory: block_flow.Trajectory
    side: Array

    @property
    def gram(self) -> Array:
        return np.asarray(self.vectors.T @ self.vectors)

    @property
    def accumulated(self) -> Array:
        """``a_k(t)``, recovered from the weights; the embeddings must be linearly independent."""
        moved = self.trajectory.weights - self.trajectory.weights[0]
        return np.asarray(moved @ np.linalg.pinv(self.vectors).T)

    @property
    def drift(self) -> Array:
        return drift(self.side, self.trajectory.context_weights)


def _train(kind: AttentionKind, vectors: Array, *, moments: int = 800, start: float = 0.3) -> _Course:
    """A flow on random data; ``tanh`` nodes, no residual, rates and temperature of no special value."""
    rng = np.random.default_rng(0)
    dimension, tokens = vectors.shape
    attention = Attention(kind=kind, temperature=0.7)
    block = Block(Embeddings(vectors, np.zeros(dimension)), attention, activation("tanh"))
    trajectory = block_flow.solve(
        block,
        rng.dirichlet(np.ones(tokens), SAMPLES),
        rng.normal(size=(SAMPLES, NODES)),
        weights=start * rng.normal(size=(NODES, dimension)),
        logits=0.3 * rng.normal(size=tokens) + np.full(tokens, float(kind == "linear")),
        times=np.linspace(0.0, 3.0, moments),
        weight_rate=1.4,
        attention_rate=0.8,
    )
    side = attention_side(
        attention, trajectory.logits, correction=trajectory.correction, weight_rate=1.4, attention_rate=0.8
    )
    return _Course(vectors, trajectory, side)


def _largest(values: Array) -> float:
    return float(np.abs(values).max())


def _invariants() -> list[Claim]:
    claims = []
    crowded = random_embeddings(TOKENS, 5, seed=1)  # more tokens than dimensions
    roomy = random_embeddings(TOKENS, 11, seed=1)
    kinds: tuple[AttentionKind, ...] = ("linear", "exp", "softmax")
    for kind in kinds:
        course = _train(kind, crowded, moments=30)
        kept = surviving_invariant(crowded, course.trajectory.weights, course.side)
        claims.append(
            STATEMENTS["coherence.survivor_{kind}"]
            .fill(kind=kind)
            .judge(
                within_error(1e-9, _largest(kept - kept[0])),
                null=_largest(course.drift),
                null_description="drift of the single tokens' invariants in the same run",
                evidence=f"{TOKENS} random unit vectors in 5 dimensions, coherence {coherence(crowded):.2f}.",
            )
        )
        course = _train(kind, roomy)
        exact = path_drift(course.gram, course.trajectory.context_weights, course.accumulated)
        claims.append(
            STATEMENTS["coherence.exact_{kind}"]
            .fill(kind=kind)
            .judge(
                within_error(1e-5, _largest(exact - course.drift) / _largest(course.drift)),
                evidence=f"Relative error of the line integral over 800 moments (midpoint rule); coherence "
                f"{coherence(roomy):.2f}, drift {_largest(course.drift):.3g}.",
            )
        )
        bound = drift_bound(
            coherence(roomy),
            np.abs(course.trajectory.context_weights).max(axis=0),
            np.abs(np.diff(course.accumulated, axis=0)).sum(axis=0),
        )
        ratio = float((np.abs(course.drift).max(axis=0) / bound).max())
        claims.append(
            STATEMENTS["coherence.bound_{kind}"]
            .fill(kind=kind)
            .judge(
                at_most(1, ratio, of="drift in units of the bound"),
                evidence=f"Largest share of it over tokens and time, coherence {coherence(roomy):.2f}.",
            )
        )
    return claims


def _with_gram(gram: Array) -> _Course:
    """Exp attention from zero weights; the embeddings enter the course by their Gram matrix alone."""
    return _train("exp", np.asarray(np.linalg.cholesky(gram).T), moments=400, start=0.0)


def _order() -> list[Claim]:
    base = random_embeddings(TOKENS, 64, seed=0)
    overlap = base.T @ base - np.eye(TOKENS)
    scales = np.array([0.5, 0.25, 0.125, 0.0625])
    epsilons, drifts, rests = scales * coherence(base), [], []
    for scale in scales:
        course = _with_gram(np.eye(TOKENS) + scale * overlap)
        actual = course.drift[-1]
        drifts.append(_largest(actual))
        rests.append(_largest(actual - path_drift(course.gram, course.trajectory.context_weights)[-1]))

    def slope(values: list[float]) -> float:
        return float(np.polyfit(np.log(epsilons), np.log(values), 1)[0])

    dimension, squares, predictions = 512, [], []
    for seed in range(64):
        vectors = random_embeddings(TOKENS, dimension, seed=seed)
        course = _with_gram(vectors.T @ vectors)
        squares.append(np.mean(course.drift[-1] ** 2))
        predictions.append(np.mean(typical_drift(course.trajectory.context_weights[-1], dimension) ** 2))
    shares = np.array(squares) / np.mean(predictions)
    ratio, error = float(np.sqrt(shares.mean())), float(shares.std() / np.sqrt(len(shares)) / 2)
    response = _response_error()
    listed = ", ".join(f"{value:.3g}" for value in epsilons)
    return [
        STATEMENTS["coherence.order"].judge(
            between(0.9, 1.1, slope(drifts), of="log-log slope in epsilon"),
            evidence=f"Exp attention, epsilon = {listed}: drift "
            + ", ".join(f"{d:.3g}" for d in drifts)
            + ".",
        ),
        STATEMENTS["coherence.second_order"].judge(
            between(1.9, 2.1, slope(rests), of="log-log slope in epsilon"),
            evidence="The same runs: left over " + ", ".join(f"{rest:.3g}" for rest in rests) + ".",
        ),
        STATEMENTS["coherence.typical"].judge(
            within_error(
                0.02, response, of="error with the cosines put in one by one, each with its variance 1/d,"
            )
            & at_most(4 * error, abs(ratio - 1), of="error for random embeddings", than="4 standard errors"),
            evidence=f"Random: root mean square over tokens and 64 sets of embeddings in d = {dimension}, "
            f"measured over predicted {ratio:.3f} with a standard error of {error:.3f}.",
        ),
    ]


def _response_error() -> float:
    """``typical_drift`` against the drift that each cosine makes alone; largest over tokens, relative."""
    size, squares = 1e-3, np.zeros(TOKENS)
    for pair in itertools.combinations(range(TOKENS), 2):
        gram = np.eye(TOKENS)
        gram[pair] = gram[pair[::-1]] = size
        drifts = _with_gram(gram).drift[-1]
        squares[list(pair)] += (drifts[list(pair)] / size) ** 2
    weights = _with_gram(np.eye(TOKENS)).trajectory.context_weights[-1]
    return _largest(typical_drift(weights, 1) / np.sqrt(squares) - 1)


def _sharp_bound() -> Claim:
    """Weights that stay while a moves, all cosines equal: every inequality of the bound is an equality."""
    epsilon, v, a = 0.3, np.ones((50, 2, TOKENS)), np.linspace(0, 1, 50)[:, None, None] * np.ones((2, TOKENS))
    gram = np.full((TOKENS, TOKENS), epsilon) + (1 - epsilon) * np.eye(TOKENS)
    share = np.abs(path_drift(gram, v, a)[-1]) / drift_bound(epsilon, v[-1], a[-1])
    return STATEMENTS["coherence.bound_sharp"].judge(
        within_error(1e-12, _largest(share - 1)),
        evidence="equal cosines, v constant; distance of the drift from the bound, relative",
    )


def _least_coherence(tokens: int, dimension: int, seed: int) -> float:
    """The least coherence found: cosines clipped at the Welch bound, then the nearest matrix of rank d."""
    vectors, bound = random_embeddings(tokens, dimension, seed=seed), welch_bound(tokens, dimension)
    least = coherence(vectors)
    for _ in range(200):
        gram = np.clip(vectors.T @ vectors, -bound, bound)
        np.fill_diagonal(gram, 1.0)
        values, axes = np.linalg.eigh(gram)
        vectors = (axes[:, -dimension:] * np.sqrt(np.maximum(values[-dimension:], 0))).T
        vectors = vectors / np.linalg.norm(vectors, axis=0)
        least = min(least, coherence(vectors))
    return least


def _dimensions() -> list[Claim]:
    tokens, epsilon, seeds = 300, 0.3, 40
    least, printed = random_dimension(tokens, epsilon), printed_dimension(tokens, epsilon)
    lemma = lemma_dimension(tokens, epsilon)

    def worst(dimension: int, count: int) -> Array:
        return np.array([coherence(random_embeddings(tokens, dimension, seed=s)) for s in range(count)])

    half = 0.5 - 2 * np.sqrt(0.25 / seeds)
    kept, fewer = (float(np.mean(worst(d, seeds) <= epsilon)) for d in (least, round(0.9 * least)))
    at_printed = worst(round(printed), seeds)
    median = random_coherence(100, 50)
    lower = float(np.mean([coherence(random_embeddings(100, 50, seed=s)) <= median for s in range(400)]))
    simplex = np.eye(9) - 1 / 9
    others = [coherence(random_embeddings(6, 3, seed=s)) for s in range(20)]
    sizes = ((6, 3), (7, 4), (10, 3), (16, 6))
    rooms = [min(_least_coherence(*size, seed=s) for s in range(3)) - welch_bound(*size) for size in sizes]
    return [
        STATEMENTS["coherence.dimension"].judge(
            at_most(epsilon, at_printed, of=f"coherence at d = {printed:.0f}", across="in every set"),
            null=worst(least // 2, 10).min(),
            null_description=f"least coherence at half of what random vectors need, d = {least // 2}",
            evidence=f"Worst of {seeds} sets of {tokens} random unit vectors. True, and loose by a factor 2; "
            f"the Johnson-Lindenstrauss lemma, which the paper thanks for it, asks for more, {lemma:.0f}.",
        ),
        STATEMENTS["coherence.dimension_sharp"].judge(
            at_least(
                half,
                kept,
                of="share of sets with a coherence of at most epsilon",
                than="one half less two standard errors",
            )
            & below(half, fewer, of="that share in nine tenths of the dimensions")
            & below(0.55 * printed, least, of="number of dimensions", than="0.55 times the printed one"),
            null=fewer,
            null_description="the same in nine tenths of the dimensions",
            evidence=f"M = {tokens}, epsilon = {epsilon}: d = {least}, printed {printed:.0f}; {seeds} sets.",
        ),
        STATEMENTS["coherence.random"].judge(
            within_error(0.075, abs(lower - 0.5)),
            evidence="Share of 400 sets of 100 vectors in 50 dimensions below the predicted median "
            f"{median:.4f}: {lower:.3f}; three standard errors are 0.075.",
        ),
        STATEMENTS["coherence.welch"].judge(
            at_least(-1e-12, rooms, of="least coherence less the bound")
            & within_error(1e-12, abs(coherence(simplex) - welch_bound(9, 8)), of="distance of the simplex"),
            null=float(np.mean(others)) - welch_bound(6, 3),
            null_description="the same distance for random embeddings, M = 6, d = 3",
            evidence="least coherence found over the bound, (M, d): "
            + ", ".join(f"{size} {room:.2g}" for size, room in zip(sizes, rooms, strict=True)),
        ),
    ]


def coherent_embeddings() -> list[Claim]:
    """What drifts, what survives, how much room it takes."""
    return [*_invariants(), _sharp_bound(), *_order(), *_dimensions()]


CHECKS: dict[str, Callable[[], list[Claim]]] = {"coherence": coherent_embeddings}
