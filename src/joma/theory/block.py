"""The block of JoMA Eq. 1: attention, residual query, one hidden layer; loss (Eq. 9), gradients (Eq. 2).

``h_k = phi(w_k . f)``, ``f = U_C b + u_q``. Arrays carry leading batch axes ``...`` (seeds, initial
states) that broadcast: frequencies ``x`` (..., N, M), logits ``z`` (..., M), weights ``w`` (..., K, d),
back-propagated gradients ``g`` (..., N, K). All in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from joma.core.arguments import NotFiniteError, arrays, finite, numbers, whole
from joma.core.errors import InputError
from joma.theory.activation import LINEAR, Activation
from joma.theory.attention import SOFTMAX, Array, Attention


class Activity(NamedTuple):
    """What a forward pass makes: the block's inner quantities, sample by sample."""

    scores: Array
    """``b`` (..., N, M)."""
    features: Array
    """``f`` (..., N, d)."""
    hidden: Array
    """``h`` (..., N, K)."""
    slope: Array
    """``h' = phi'(w_k . f)`` (..., N, K)."""


class Directions(NamedTuple):
    """Eq. 2 at unit learning rates: the directions in which the loss of Eq. 9 grows."""

    weights: Array
    """``dw_k/dt = E[g_k h'_k f]`` (..., K, d)."""
    logits: Array
    """``dz/dt = E[L' U_C' sum_k g_k h'_k w_k]`` (..., M)."""
    bias: Array
    """``dxi_k/dt = E[g_k h'_k]`` (..., K), the implicit bias of Appendix A.2."""
    correction: Array
    """``sum_k E[g_k h'_k b (b . v_k)]`` (..., M): what softmax takes from its logits; 0 for other kinds."""


BackpropagatedGradient = Array | Callable[[float, Activity], Array]
"""``g``: constant (..., N, K), or a function of time and ``Activity``."""


@dataclass(frozen=True, eq=False)
class Embeddings:
    """The embedding vectors: ``U_C`` (d, M) of the contextual tokens and ``u_q`` (d,) of the query.

    The theorems assume ``U_C' U_C = I`` and ``U_C' u_q = 0``: see ``orthonormal``. Anything else
    may be given, to see what happens to them (JoMA Sec. 7).
    """

    context: Array
    query: Array
    is_standard: bool = field(init=False, repr=False)
    """Whether ``U_C`` is the first M unit vectors and ``u_q`` the next one, so that products are copies."""

    def __post_init__(self) -> None:
        context = numbers("Embeddings", "context", self.context)
        query = numbers("Embeddings", "query", self.query)
        if context.ndim != 2 or query.shape != context.shape[:1]:
            raise InputError(
                f"Embeddings: context {context.shape} and query {query.shape} do not match; give (d, M) "
                "and (d,)."
            )
        if not (np.isfinite(context).all() and np.isfinite(query).all()):
            raise InputError("Embeddings: an entry is not finite; give finite embedding vectors.")
        object.__setattr__(self, "context", context)
        object.__setattr__(self, "query", query)
        d, m = context.shape
        standard = (
            d == m + 1 and np.array_equal(context, np.eye(d, m)) and not query[:m].any() and query[m] == 1
        )
        object.__setattr__(self, "is_standard", bool(standard))

    @classmethod
    def orthonormal(cls, tokens: int, *, residual: bool = True, query_token: int | None = None) -> Embeddings:
        """Unit vectors in ``d = tokens + 1`` dimensions.

        Args:
            tokens: M, the number of contextual tokens.
            residual: whether the query embedding is added (Eq. 1); else ``u_q = 0``.
            query_token: the query is this contextual token, which breaks Theorem 1 for its component.
        """
        tokens = whole("Embeddings.orthonormal", "tokens", tokens, least=1)
        if query_token is not None:
            query_token = whole("Embeddings.orthonormal", "query_token", query_token, least=0)
        query = np.zeros(tokens + 1)
        if query_token is not None and query_token >= tokens:
            raise InputError(
                f"Embeddings.orthonormal: query_token = {query_token} is not a contextual token; give 0 to "
                f"{tokens - 1}, or None."
            )
        if residual:
            query[tokens if query_token is None else query_token] = 1.0
        return cls(np.eye(tokens + 1, tokens), query)

    def merge_values(self, values: Array) -> Embeddings:
        """W_V merged into the embeddings: u'_l = W_V u_l (JoMA Sec. 2), ``values`` (d, d); the query's stays.

        The block with W_V held fixed is this block, for any W_V. Theorem 1 needs U_C' U_C = I, of the merged
        embeddings: it survives an orthogonal W_V and no other, which the remark does not say.
        """
        w, u = finite("Embeddings.merge_values", "values", values), self.context
        if w.shape != (self.dimension, self.dimension):
            raise InputError(
                f"Embeddings.merge_values: values {w.shape} must be ({self.dimension}, {self.dimension})."
            )
        return Embeddings(w @ u, self.query)

    @property
    def dimension(self) -> int:
        """``d``."""
        return int(self.context.shape[0])

    @property
    def tokens(self) -> int:
        """``M``."""
        return int(self.context.shape[1])

    def mix(self, scores: Array) -> Array:
        """``f = U_C b + u_q`` (..., N, d)."""
        if self.is_standard:
            features = np.ones((*scores.shape[:-1], self.dimension))
            features[..., :-1] = scores
            return features
        return scores @ self.context.T + self.query

    def read(self, vectors: Array) -> Array:
        """``U_C' w`` (..., M) for vectors (..., d): of weights, the contextual weights ``v``."""
        return vectors[..., : self.tokens] if self.is_standard else vectors @ self.context


@dataclass(frozen=True, eq=False)
class Block:
    """The block of Eq. 1 as it is trained: embeddings, the kind of attention, the activation."""

    embeddings: Embeddings
    """``Embeddings.orthonormal(M)`` is what the theorems assume."""
    attention: Attention = SOFTMAX
    activation: Activation = LINEAR

    @property
    def tokens(self) -> int:
        """``M``, the number of contextual tokens."""
        return self.embeddings.tokens

    def forward(self, frequencies: Array, weights: Array, logits: Array) -> Activity:
        """Eq. 1 for every sample: ``x`` (..., N, M), ``w`` (..., K, d), ``z`` (..., M).

        Raises:
            InputError: shapes that do not match, or values that are not finite (a DivergenceError too, for
                solvers, where it is the state).
        """
        weights = numbers("Block.forward", "weights", weights)
        if weights.ndim < 2 or weights.shape[-1] != self.embeddings.dimension or weights.size == 0:
            raise InputError(
                f"Block.forward: weights {weights.shape} must be (..., hidden units, "
                f"{self.embeddings.dimension})."
            )
        if not np.isfinite(weights).all():
            raise NotFiniteError("Block.forward: the weights are not finite; give finite weights.")
        if np.shape(frequencies)[-1:] != (self.tokens,):
            raise InputError(
                f"Block.forward: frequencies {np.shape(frequencies)} must be (..., samples, {self.tokens})."
            )
        scores = self.attention.scores(frequencies, logits)
        features = self.embeddings.mix(scores)
        try:
            preactivation = features @ np.swapaxes(weights, -1, -2)
        except ValueError:
            raise InputError(
                f"Block.forward: the leading axes of weights {weights.shape} and scores {scores.shape} do "
                "not broadcast; make them agree."
            ) from None
        value, slope = self.activation(preactivation)
        return Activity(scores, features, value, slope)

    def directions(
        self,
        frequencies: Array,
        weights: Array,
        logits: Array,
        gradient: BackpropagatedGradient,
        *,
        sample_weights: Array,
        time: float = 0.0,
    ) -> Directions:
        """Eq. 2: the gradient of the per-node loss (Eq. 9), to ascend, with ``g`` held fixed in it.

        Args:
            frequencies: ``x`` (..., N, M).
            weights: ``w`` (..., K, d).
            logits: ``z`` (..., M).
            gradient: ``g`` (..., N, K), or a function of time and ``Activity``.
            sample_weights: probabilities of the samples, (N,) or (..., N).
            time: handed to ``gradient``.

        Raises:
            InputError: as ``forward``, or a gradient or sample weights that do not match.
        """
        activity = self.forward(frequencies, weights, logits)
        g = gradient(time, activity) if callable(gradient) else gradient
        scores = activity.scores
        g, sample_weights = np.asarray(g), np.asarray(sample_weights)
        _check_signal("Block.directions", g, sample_weights, activity)
        weights = np.asarray(weights)
        signal = sample_weights[..., None] * g * activity.slope
        to_scores = self.embeddings.read(signal @ weights)
        to_logits = self.attention._pull_back(scores, frequencies, to_scores)
        if self.attention.kind == "softmax":
            overlap = np.einsum("...nm,...nm->...n", scores, to_scores)
            correction = (overlap[..., None, :] @ scores)[..., 0, :]
        else:
            correction = np.zeros((*to_scores.shape[:-2], self.tokens))
        return Directions(
            weights=np.swapaxes(signal, -1, -2) @ activity.features,
            logits=to_logits.sum(axis=-2),
            bias=signal.sum(axis=-2),
            correction=correction,
        )

    def per_node_loss(
        self, frequencies: Array, weights: Array, logits: Array, gradient: Array, *, sample_weights: Array
    ) -> Array:
        """Eq. 9: ``E[sum_k g_k h_k]`` (...), to be maximised; its gradient at fixed ``g`` is Eq. 2."""
        activity = self.forward(frequencies, weights, logits)
        g = finite("Block.per_node_loss", "gradient", gradient)
        probabilities = finite("Block.per_node_loss", "sample_weights", sample_weights)
        _check_signal("Block.per_node_loss", g, probabilities, activity)
        return np.asarray((probabilities[..., None] * g * activity.hidden).sum(axis=(-2, -1)))


def _check_signal(where: str, g: Array, sample_weights: Array, activity: Activity) -> None:
    shape = activity.hidden.shape
    if g.shape[-2:] != shape[-2:] or sample_weights.shape[-1:] != shape[-2:-1]:
        raise InputError(
            f"{where}: gradient {g.shape} and sample_weights {sample_weights.shape} do not match; give "
            f"(..., {shape[-2]} samples, {shape[-1]} hidden units) and (..., {shape[-2]})."
        )
    if not (np.isfinite(g).all() and np.isfinite(sample_weights).all()):
        raise NotFiniteError(f"{where}: the gradient or the sample_weights are not finite.")


@dataclass(frozen=True)
class CrossEntropyGradient:
    """``g_k[i] = 1[y_i = k] - softmax(h[i])_k``: the hidden units are the logits of K classes.

    The paper writes ``g ~ 1[y = k]`` (Sec. 2); its Figure 2 is made with this. Back-propagated with the
    sign that ascends minus the loss.
    """

    labels: tuple[int, ...]
    """The class of each sample."""

    def __call__(self, time: float, activity: Activity) -> Array:
        """``g`` (..., N, K) at the block's present output."""
        hidden = activity.hidden
        if (
            len(self.labels) != hidden.shape[-2]
            or not 0 <= min(self.labels) <= max(self.labels) < hidden.shape[-1]
        ):
            raise InputError(
                f"CrossEntropyGradient: {len(self.labels)} labels up to {max(self.labels)} do not fit "
                f"{hidden.shape[-2]} samples and {hidden.shape[-1]} classes."
            )
        g = np.exp(hidden - hidden.max(axis=-1, keepdims=True))
        g /= -g.sum(axis=-1, keepdims=True)
        g[..., np.arange(len(self.labels)), self.labels] += 1.0
        return np.asarray(g)


def weights_from_parts(
    initial_weights: Array,
    context_change: Array,
    implicit_bias: Array,
    embeddings: Embeddings,
) -> Array:
    """Eq. 60: ``w(t) = w(0) + U_C [v(t) - v(0)] + u_q xi(t)`` (..., K, d).

    Exact for orthonormal embeddings with the residual; ``xi_k(t)`` is the integral of ``E[g_k h'_k]``.

    Raises:
        InputError: shapes that do not match, or values that are not finite.
    """
    initial_weights, context_change, implicit_bias, _, _ = arrays(
        "weights_from_parts",
        initial_weights=(initial_weights, "... K d"),
        context_change=(context_change, "... K M"),
        implicit_bias=(implicit_bias, "... K"),
        context=(embeddings.context, "d M"),
        query=(embeddings.query, "d"),
    )
    return np.asarray(
        initial_weights + context_change @ embeddings.context.T + implicit_bias[..., None] * embeddings.query
    )


def superpose_patterns(templates: Array, biases: Array, context: Array, queries: Array) -> Array:
    """One weight for several queries (Appendix A.4): ``w = sum_m U_C v_m + xi_m u_m`` (d,).

    Printed with a minus before ``xi``, which clashes with Eq. 60: with the minus the unit's
    pre-activation for query m is ``v_m . b - xi_m``, so that the negative bias that Eq. 60 wants would
    switch the unit on rather than guard it.

    Args:
        templates: ``v_m`` (Q, M), orthogonal to one another for the patterns not to interfere.
        biases: ``xi_m`` (Q,).
        context: ``U_C`` (d, M).
        queries: ``u_m`` (d, Q), orthogonal to ``U_C``.

    Raises:
        InputError: shapes that do not match, or values that are not finite.
    """
    templates, biases, context, queries = arrays(
        "superpose_patterns",
        templates=(templates, "Q M"),
        biases=(biases, "Q"),
        context=(context, "d M"),
        queries=(queries, "d Q"),
    )
    return np.asarray(context @ templates.sum(axis=0) + queries @ biases)
