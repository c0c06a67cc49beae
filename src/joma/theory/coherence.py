r"""Almost orthogonal embeddings (JoMA Sec. 7): how many dimensions they take, and what is left of Theorem 1.

The paper announces "additional epsilon-related terms" for embeddings whose cosines are at most epsilon
in size, and leaves them to future work. Here they are. Write ``G = U_C' U_C = I + E`` (unit vectors, so
E has a zero diagonal and entries of size at most epsilon), ``e = U_C' u_q``, and ``a_k(t) = int eta_w
E[g_k h'_k b] dt`` for what node k accumulated. Then ``v_k = U_C' w_k`` obeys ``dv_k = G da_k + e dxi_k``
while attention is driven by ``v_k da_k``, and with

    Q_l = (T eta_w / eta_z) z_l                    exp attention,
    Q_l = (eta_w / (2 eta_z)) z_l^2                linear attention,
    Q_l = (T eta_w / eta_z) z_l + (int sum_k eta_w E[g_k h'_k b (b.v_k)] dt)_l     softmax attention

for the side that Theorem 1 (or its exact integral form) equates with ``sum_k v_kl^2 / 2``:

    **exact**     d(Q_l - sum_k v_kl^2 / 2) = - sum_k v_kl ( (E da_k)_l + e_l dxi_k )
    **bound**     the drift of that is at most epsilon sum_k sup|v_kl| (sum_{m != l} int|da_km| + int|dxi_k|)
    **closed**    Q_l ~ sum_k v_kl (v_k - E v_k)_l / 2 + c to first order where v moves on straight lines
    **survivor**  sum_l Q_l - sum_k |P w_k|^2 / 2 is conserved exactly for *every* set of embeddings

with P the projection onto the span of U_C, provided ``e = 0``. So of Theorem 1's M invariants one
survives whole (one for each group of tokens, if groups are orthogonal to each other), and the others
drift at first order in epsilon. All in float64; embeddings are columns, shape (d, M).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincc, betainccinv

from joma.core.arguments import finite, number, numbers, whole
from joma.core.errors import InputError
from joma.theory.attention import Array, Attention
from joma.theory.invariants import logit_coefficient

# How many dimensions almost orthogonal embeddings take


def coherence(embeddings: ArrayLike) -> float:
    """The largest ``|cos|`` between two different embeddings, columns of a (d, M) matrix; 0 for M = 1.

    Raises ``InputError`` for a zero or infinite column, which has no direction.
    """
    vectors = numbers("coherence", "embeddings", embeddings)
    if vectors.ndim != 2 or vectors.size == 0:
        raise InputError(f"coherence: embeddings have shape {vectors.shape}; give (dimension, tokens).")
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.linalg.norm(vectors, axis=0)
    if not (np.all(np.isfinite(lengths)) and np.all(lengths > 0)):
        raise InputError("coherence: an embedding is zero or not finite and has no direction; remove it.")
    units = vectors / lengths
    largest = 0.0
    for begin in range(0, units.shape[1], 1024):  # never more than 1024 rows of the Gram matrix at once
        rows = np.abs(units[:, begin : begin + 1024].T @ units)
        rows[np.arange(rows.shape[0]), begin + np.arange(rows.shape[0])] = 0.0
        largest = max(largest, float(rows.max()))
    return largest


def random_embeddings(tokens: int, dimension: int, *, seed: int) -> Array:
    """Independent, uniformly distributed unit vectors as columns, shape (dimension, tokens)."""
    _check_size(tokens, dimension, "random_embeddings")
    whole("random_embeddings", "seed", seed, least=0, most=None)
    vectors = np.random.default_rng(seed).standard_normal((dimension, tokens))
    return np.asarray(vectors / np.linalg.norm(vectors, axis=0))


def welch_bound(tokens: int, dimension: int) -> float:
    """The least coherence of M unit vectors in R^d is at least ``sqrt((M-d) / (d(M-1)))``; 0 for M <= d."""
    _check_size(tokens, dimension, "welch_bound")
    if tokens <= dimension:
        return 0.0
    return float(np.sqrt((tokens - dimension) / (dimension * (tokens - 1))))


def printed_dimension(tokens: int, epsilon: float) -> float:
    """``8 ln(M) / epsilon^2``, JoMA Sec. 7: enough, but loose (see ``random_dimension``).

    As a consequence of the Johnson-Lindenstrauss lemma it is short of ``lemma_dimension``; random
    unit vectors need about half of it; and wherever it exceeds M, orthonormal embeddings are cheaper.
    """
    _check_epsilon(tokens, epsilon, "printed_dimension")
    return float(8 * np.log(tokens) / epsilon**2)


def lemma_dimension(tokens: int, epsilon: float) -> int:
    """The dimension that the Johnson-Lindenstrauss lemma itself gives: ``8 ln(2M) / (eps^2 - 2 eps^3/3)``.

    The lemma (Dasgupta and Gupta 2003) keeps the squared distances of n points within 1 +- eps for
    ``d >= 4 ln(n) / (eps^2/2 - eps^3/3)``. Inner products at most eps need it for the n = 2M points
    ``+-e_l``: ``4 u_l.u_m = |u_l + u_m|^2 - |u_l - u_m|^2``.
    """
    _check_epsilon(tokens, epsilon, "lemma_dimension")
    return int(np.ceil(4 * np.log(2 * tokens) / (epsilon**2 / 2 - epsilon**3 / 3)))


def random_dimension(tokens: int, epsilon: float, *, failure: float = 0.5) -> int:
    """Least d at which random unit vectors have coherence at most epsilon with probability >= 1 - failure.

    By the union bound over pairs with the exact law of the cosine, ``P(|u.u'| > eps) = I_{1-eps^2}((d-1)/2,
    1/2)``; about ``4 ln(M) / eps^2``, half the printed dimension.
    """
    _check_epsilon(tokens, epsilon, "random_dimension")
    if not 0 < number("random_dimension", "failure", failure) < 1:
        raise InputError(f"random_dimension: failure = {failure:g} must lie between 0 and 1.")
    pairs = tokens * (tokens - 1) / 2

    def too_small(dimension: int) -> bool:
        return bool(pairs * betaincc(0.5, (dimension - 1) / 2, epsilon**2) > failure)

    low, high = 1, 2
    while too_small(high):
        low, high = high, 2 * high
        if high > 2**53:
            raise InputError(
                f"random_dimension: epsilon = {epsilon:g} takes more than 2^53 dimensions; give a larger one."
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if too_small(middle) else (low, middle)
    return high


def random_coherence(tokens: int, dimension: int, *, probability: float = 0.5) -> float:
    """A quantile of the coherence of random unit vectors (the median by default), near ``sqrt(4 ln M / d)``.

    The number of pairs above a level is nearly Poisson (the cosines are pairwise independent), so
    ``P(coherence <= eps) = exp(-M(M-1)/2 I_{1-eps^2}((d-1)/2, 1/2))``.
    """
    _check_size(tokens, dimension, "random_coherence")
    if dimension < 2 or tokens < 2:
        raise InputError("random_coherence: needs at least two tokens and two dimensions.")
    if not 0 < number("random_coherence", "probability", probability) < 1:
        raise InputError(f"random_coherence: probability = {probability:g} must lie between 0 and 1.")
    share = min(1.0, -np.log(probability) / (tokens * (tokens - 1) / 2))
    return float(np.sqrt(betainccinv(0.5, (dimension - 1) / 2, share)))


# What is left of Theorem 1


def attention_side(
    attention: Attention,
    logits: ArrayLike,
    *,
    weight_rate: float = 1.0,
    attention_rate: float = 1.0,
    correction: ArrayLike | None = None,
) -> Array:
    """``Q``: what Theorem 1 equates with ``sum_k v_k^2 / 2`` up to a constant; shape of the logits.

    Softmax needs ``correction``, the integral of ``eta_w sum_k E[g_k h'_k b (b.v_k)]`` up to each moment,
    which block_flow's and sgd's trajectories carry.
    """
    z = finite("attention_side", "logits", logits)
    coefficient = logit_coefficient(attention, weight_rate=weight_rate, attention_rate=attention_rate)
    if attention.kind != "softmax":
        return np.asarray((z**2 if attention.kind == "linear" else z) / (2 * coefficient))
    integral = None if correction is None else finite("attention_side", "correction", correction)
    if integral is None or integral.shape != z.shape:
        raise InputError(
            f"attention_side: softmax attention needs its correction, of the logits' shape {z.shape}."
        )
    return np.asarray(z / (2 * coefficient) + integral)


def drift(side: ArrayLike, weights: ArrayLike) -> Array:
    """``[Q - sum_k v_k^2 / 2]`` against its first moment: (S, M) for Q of (S, M) and v of (S, K, M).

    Zero for orthonormal embeddings (Theorem 1).
    """
    q, v = _path(side, 2, "side"), _path(weights, 3, "weights")
    if q.shape != (v.shape[0], v.shape[2]):
        raise InputError(f"drift: side {q.shape} and weights {v.shape} must be (S, M) and (S, K, M).")
    value = q - 0.5 * (v**2).sum(axis=1)
    return np.asarray(value - value[0])


def predicted_drift(gram: ArrayLike, weights: ArrayLike) -> Array:
    """The drift to first order in epsilon, from the ends alone: ``-[sum_k v_k (E v_k)]/2``; shape (S, M).

    Exact to first order where each ``v_k`` moves along a straight line from zero. A curved path leaves
    the areas it sweeps between pairs of coordinates, also of first order: ``path_drift``.
    """
    v = _path(weights, 3, "weights")
    error = _error(gram, v.shape[2])
    value = -0.5 * (v * (v @ error)).sum(axis=1)
    return np.asarray(value - value[0])


def path_drift(
    gram: ArrayLike,
    weights: ArrayLike,
    accumulated: ArrayLike | None = None,
    *,
    query_overlap: ArrayLike | None = None,
    bias: ArrayLike | None = None,
) -> Array:
    """The drift as a line integral along the path, shape (S, M); midpoint rule over the S moments.

    With ``accumulated`` (a, of shape (S, K, M)) it is exact, for embeddings as coherent as they come;
    without, v stands in for a and it is right to first order in epsilon. ``query_overlap`` is
    ``e = U_C' u_q`` (M,) and ``bias`` is xi (S, K): give both where the residual overlaps.
    """
    v = _path(weights, 3, "weights")
    error = _error(gram, v.shape[2])
    a = v if accumulated is None else _path(accumulated, 3, "accumulated")
    if a.shape != v.shape:
        raise InputError(f"path_drift: accumulated has shape {a.shape} where weights have {v.shape}.")
    if (query_overlap is None) != (bias is None):
        raise InputError("path_drift: give query_overlap and bias together, or neither.")
    step = np.diff(a, axis=0) @ error
    if query_overlap is not None and bias is not None:
        overlap, xi = finite("path_drift", "query_overlap", query_overlap), _path(bias, 2, "bias")
        if overlap.shape != v.shape[2:] or xi.shape != v.shape[:2]:
            raise InputError(
                f"path_drift: query_overlap {overlap.shape} and bias {xi.shape} must be {v.shape[2:]} and "
                f"{v.shape[:2]}, as the weights are."
            )
        step = step + np.diff(xi, axis=0)[..., None] * overlap
    middle = 0.5 * (v[1:] + v[:-1])
    out = np.zeros((v.shape[0], v.shape[2]))
    out[1:] = -np.cumsum((middle * step).sum(axis=1), axis=0)
    return out


def drift_bound(
    epsilon: float,
    largest_weights: ArrayLike,
    path_lengths: ArrayLike,
    *,
    bias_lengths: ArrayLike | None = None,
) -> Array:
    """A rigorous bound on the drift of every token, shape (M,).

    ``largest_weights``: ``sup_t |v_kl|`` (K, M); ``path_lengths``: ``int |da_kl|`` (K, M), which is
    ``|a_kl(t)|`` where the sign of E[g_k h'_k b_l] never changes; ``bias_lengths``: ``int |dxi_k|`` (K,),
    needed where the query's embedding overlaps (by at most epsilon).
    """
    if not 0 <= number("drift_bound", "epsilon", epsilon) <= 1:
        raise InputError(f"drift_bound: epsilon = {epsilon:g} must lie in [0, 1], like a cosine.")
    largest = np.abs(finite("drift_bound", "largest_weights", largest_weights))
    lengths = np.abs(finite("drift_bound", "path_lengths", path_lengths))
    if largest.ndim != 2 or lengths.shape != largest.shape:
        raise InputError(
            f"drift_bound: largest_weights {largest.shape} and path_lengths {lengths.shape} must both be "
            "(nodes, tokens)."
        )
    others = lengths.sum(axis=1, keepdims=True) - lengths
    if bias_lengths is not None:
        lengths = np.abs(finite("drift_bound", "bias_lengths", bias_lengths))
        if lengths.shape != largest.shape[:1]:
            raise InputError(f"drift_bound: bias_lengths {lengths.shape} must be {largest.shape[:1]}.")
        others = others + lengths[:, None]
    return np.asarray(epsilon * (largest * others).sum(axis=0))


def typical_drift(weights: ArrayLike, dimension: int) -> Array:
    """Root mean square of the first-order drift over random embeddings in R^d, shape (M,).

    ``sqrt(sum_{m != l} (sum_k v_kl v_km)^2 / (4 d))`` for weights v (K, M) reached on straight lines from
    zero: the entries of E have variance 1/d and are uncorrelated. It falls like the root of d, with no
    ln M, and is far below ``drift_bound`` when many tokens carry weight.
    """
    v = finite("typical_drift", "weights", weights)
    whole("typical_drift", "dimension", dimension)
    if v.ndim != 2:
        raise InputError(f"typical_drift: weights {v.shape} must be (nodes, tokens).")
    products = v.T @ v
    np.fill_diagonal(products, 0.0)
    return np.asarray(np.sqrt((products**2).sum(axis=1) / (4 * dimension)))


def surviving_invariant(
    embeddings: ArrayLike, weights: ArrayLike, side: ArrayLike, *, groups: ArrayLike | None = None
) -> Array:
    """``sum_{l in group} Q_l - sum_k |P_group w_k|^2 / 2``: constant in time, whatever the embeddings.

    ``embeddings`` U_C (d, M), ``weights`` w (S, K, d), ``side`` Q (S, M). Exact for linear, exp and
    softmax attention, every activation and gradient, if the query's embedding is orthogonal to U_C (or
    absent). ``groups`` (M,) labels tokens; tokens of different groups must be orthogonal (cosine below
    1e-12). Returns (S, number of groups); one column without groups.
    """
    vectors = finite("surviving_invariant", "embeddings", embeddings)
    w, q = _path(weights, 3, "weights"), _path(side, 2, "side")
    if vectors.ndim != 2 or w.shape[2] != vectors.shape[0] or q.shape != (w.shape[0], vectors.shape[1]):
        raise InputError(
            f"surviving_invariant: embeddings {vectors.shape}, weights {w.shape} and side {q.shape} do not "
            "match; give (d, M), (S, K, d) and (S, M)."
        )
    labels = np.zeros(vectors.shape[1], dtype=int) if groups is None else np.asarray(groups)
    if labels.shape != (vectors.shape[1],):
        raise InputError(f"surviving_invariant: groups must label {vectors.shape[1]} tokens.")
    overlap = np.abs(vectors.T @ vectors)[labels[:, None] != labels[None, :]]
    if overlap.size and overlap.max() > 1e-12 * np.linalg.norm(vectors, axis=0).max() ** 2:
        raise InputError(
            f"surviving_invariant: tokens of different groups overlap (up to {overlap.max():.3g}); only "
            "groups orthogonal to each other have invariants of their own."
        )
    columns = []
    for label in np.unique(labels):
        members = labels == label
        left, sizes, _ = np.linalg.svd(vectors[:, members], full_matrices=False)
        basis = left[:, sizes > 1e-12 * sizes.max(initial=0.0)]
        columns.append(q[:, members].sum(axis=1) - 0.5 * ((w @ basis) ** 2).sum(axis=(1, 2)))
    return np.stack(columns, axis=1)


def _error(gram: ArrayLike, tokens: int) -> Array:
    matrix = finite("drift", "gram", gram)
    if (
        matrix.ndim != 2
        or matrix.shape[0] != matrix.shape[1]
        or not np.allclose(matrix, matrix.T, atol=1e-12)
    ):
        raise InputError(f"gram: shape {matrix.shape}; give the symmetric (tokens, tokens) matrix U_C' U_C.")
    if len(matrix) != tokens:
        raise InputError(
            f"gram: shape {matrix.shape}, where the weights have {tokens} tokens; give one for each."
        )
    return np.asarray(matrix - np.eye(len(matrix)))


def _path(values: ArrayLike, dimensions: int, name: str) -> Array:
    array = numbers("coherence", name, values)
    if array.ndim != dimensions or array.size == 0:
        axes = ("moments", "nodes", "tokens")[:: 1 if dimensions == 3 else 2][:dimensions]
        raise InputError(f"{name} has shape {array.shape}; give axes ({', '.join(axes)}).")
    if not np.all(np.isfinite(array)):
        raise InputError(f"{name} holds a number that is not finite; cut the path before it diverges.")
    return array


def _check_size(tokens: int, dimension: int, where: str) -> None:
    whole(where, "tokens", tokens)
    whole(where, "dimension", dimension)


def _check_epsilon(tokens: int, epsilon: float, where: str) -> None:
    # epsilon's square must be a float.
    given = number(where, "epsilon", epsilon)
    if whole(where, "tokens", tokens) < 2 or not 1e-150 < given < 1:
        raise InputError(
            f"{where}: needs at least two tokens (got {tokens}) and 0 < epsilon = {epsilon:g} < 1."
        )
