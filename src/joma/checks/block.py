"""The block of Eq. 1, the per-node loss (Eq. 9), the implicit bias (Eq. 60), footnote 1: as claims."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from joma.core.claim import Claim, statements, within_error
from joma.dynamics import block_flow
from joma.theory.activation import activation
from joma.theory.attention import ATTENTION_KINDS, Array, Attention
from joma.theory.block import Block, CrossEntropyGradient, Embeddings, superpose_patterns, weights_from_parts

SAMPLES, TOKENS, UNITS = 6, 5, 3

STATEMENTS = statements(
    {
        "block.per_node_loss": "JoMA App. A.1, Eq. 9 and 2 | The dynamics of Eq. 2 ascends the per-node "
        "loss E[sum_k g_k h_k] with g held fixed.",
        "block.implicit_bias": "JoMA App. A.4, Eq. 60 | w(t) = w(0) + U_C [v(t) - v(0)] + u_m xi(t): the "
        "query's weight is an implicit bias.",
        "block.superposition_sign": "JoMA App. A.4, pattern superposition | w = v_1 - xi_1 u_1 + v_2 - xi_2 "
        "u_2 matches both patterns.",
        "block.softmax_loss_gradient": "JoMA Sec. 2, gradient backpropagation | For the softmax loss on the "
        "hidden nodes, g_k[i] ~ 1[y_i = k].",
        "block.footnote": "JoMA Sec. 3.1, footnote 1 | Delta_lm = sum_i g[i] P(l|q=m,i) P(l|q=m) = sum_i "
        "g[i] P(l|q=m,l) P(l|q=m).",
    },
    exact=True,
)


def _block() -> list[Claim]:
    return [_gradients(), _implicit_bias(), _superposition(), _backpropagated_gradient(), _footnote()]


def _gradients() -> Claim:
    """Eq. 2 against complex-free central differences of Eq. 9, extrapolated to fourth order."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for kind in ATTENTION_KINDS:
        for name in ("linear", "leaky", "gelu", "tanh"):
            block = Block(
                Embeddings.orthonormal(TOKENS), Attention(kind=kind, temperature=0.7), activation(name)
            )
            x, p = rng.dirichlet(np.ones(TOKENS), SAMPLES), rng.dirichlet(np.ones(SAMPLES))
            w, z = rng.normal(size=(UNITS, TOKENS + 1)), rng.normal(size=TOKENS)
            g = rng.normal(size=(SAMPLES, UNITS))

            def loss(state: Array, block: Block = block, x: Array = x, g: Array = g, p: Array = p) -> float:
                w, z = state[:-TOKENS].reshape(UNITS, -1), state[-TOKENS:]
                return float(block.per_node_loss(x, w, z, g, sample_weights=p))

            d = block.directions(x, w, z, g, sample_weights=p)
            direction = rng.normal(size=w.size + TOKENS)
            state = np.append(w.ravel(), z)
            coarse, fine = (
                (loss(state + h * direction) - loss(state - h * direction)) / (2 * h) for h in (2e-4, 1e-4)
            )
            difference = (4 * fine - coarse) / 3
            slope = float(np.append(d.weights.ravel(), d.logits) @ direction)
            worst = max(worst, abs(slope - difference) / max(1.0, abs(slope)))
    return STATEMENTS["block.per_node_loss"].judge(
        within_error(1e-9, worst),
        evidence="finite differences of the loss, 3 attentions x 4 activations, random directions",
    )


def _implicit_bias() -> Claim:
    rng = np.random.default_rng(1)
    block = Block(Embeddings.orthonormal(TOKENS), Attention(kind="softmax"), activation("gelu"))
    x = rng.dirichlet(np.ones(TOKENS), SAMPLES)
    flow = block_flow.solve(
        block,
        x,
        CrossEntropyGradient((0, 1, 2, 0, 1, 2)),
        weights=rng.normal(size=(UNITS, TOKENS + 1)),
        logits=rng.normal(size=TOKENS),
        times=[0, 1, 5],
    )
    v = flow.context_weights
    rebuilt = weights_from_parts(flow.weights[0], v - v[0], flow.bias, block.embeddings)
    return STATEMENTS["block.implicit_bias"].judge(
        within_error(1e-12, np.abs(rebuilt - flow.weights).max()),
        evidence="gradient flow under cross-entropy, gelu, against xi integrated on its own",
    )


def _superposition() -> Claim:
    rng = np.random.default_rng(2)
    basis, _ = np.linalg.qr(rng.normal(size=(9, 9)))
    context, queries = basis[:, :6], basis[:, 6:8]
    templates = np.zeros((2, 6))
    templates[0, :3], templates[1, 3:] = rng.normal(size=(2, 3))
    biases = np.array([-0.7, -0.4])
    right = superpose_patterns(templates, biases, context, queries)
    printed = superpose_patterns(templates, -biases, context, queries)
    errors = {"right": 0.0, "printed": 0.0}
    for m, bias in enumerate(biases):
        b = rng.dirichlet(np.ones(6)) * (templates[m] != 0)
        f = context @ b + queries[:, m]
        wanted = templates[m] @ b + bias  # Eq. 60's pre-activation for query m
        errors["right"] = max(errors["right"], abs(right @ f - wanted))
        errors["printed"] = max(errors["printed"], abs(printed @ f - wanted))
    return STATEMENTS["block.superposition_sign"].correct(
        "w = U_C v_1 + xi_1 u_1 + U_C v_2 + xi_2 u_2, as Eq. 60 has it.",
        printed_error=errors["printed"],
        error=errors["right"],
        tolerance=1e-12,
        evidence="pre-activation against v_m . b + xi_m, for two queries with disjoint patterns",
    )


def _backpropagated_gradient() -> Claim:
    """The gradient sent back by cross-entropy, against differences of the loss itself."""
    rng = np.random.default_rng(3)
    hidden = rng.normal(size=(SAMPLES, UNITS))
    labels = np.array([0, 1, 2, 0, 1, 2])

    def likelihood(h: Array) -> float:
        return float((h[np.arange(SAMPLES), labels] - np.log(np.exp(h).sum(axis=1))).sum())

    step = 1e-5
    truth = np.zeros_like(hidden)
    for index in np.ndindex(*hidden.shape):
        shift = np.zeros_like(hidden)
        shift[index] = step
        truth[index] = (likelihood(hidden + shift) - likelihood(hidden - shift)) / (2 * step)
    block = Block(Embeddings.orthonormal(TOKENS))
    x, w, z = rng.dirichlet(np.ones(TOKENS), SAMPLES), np.zeros((UNITS, TOKENS + 1)), np.zeros(TOKENS)
    activity = block.forward(x, w, z)._replace(hidden=hidden)
    right = CrossEntropyGradient(tuple(labels.tolist()))(0.0, activity)
    indicator = np.eye(UNITS)[labels]
    # "~" allows a factor: the printed form gets the best one.
    factor = (indicator * truth).sum() / (indicator * indicator).sum()
    scale = np.linalg.norm(truth)
    return STATEMENTS["block.softmax_loss_gradient"].correct(
        "g_k[i] = 1[y_i = k] - softmax(h[i])_k, as the code of Fig. 2 has it.",
        printed_error=float(np.linalg.norm(factor * indicator - truth) / scale),
        error=float(np.linalg.norm(right - truth) / scale),
        tolerance=1e-8,
        evidence="relative to finite differences of the log-likelihood; printed with its best factor",
    )


def _footnote() -> Claim:
    rng = np.random.default_rng(4)
    p, x = rng.dirichlet(np.ones(SAMPLES)), rng.dirichlet(np.ones(TOKENS), SAMPLES)
    g = rng.normal(size=SAMPLES)
    truth = (p * g) @ x
    token = p @ x  # P(l | q = m)
    printed = (g @ x) * token  # sum_i g[i] P(l | q=m, i) P(l | q=m)
    given_token = p[:, None] * x / token  # P(i | l, q = m)
    right = (g @ given_token) * token
    scale = np.abs(truth).max()
    return STATEMENTS["block.footnote"].correct(
        "Delta_lm = sum_i g[i] P(l|q=m,i) P(i|q=m) = sum_i g[i] P(i|q=m,l) P(l|q=m).",
        printed_error=np.abs(printed - truth).max() / scale,
        error=np.abs(right - truth).max() / scale,
        tolerance=1e-13,
        evidence="relative to E[g x_l] for six samples of unequal probability",
    )


CHECKS: dict[str, Callable[[], list[Claim]]] = {"block": _block}
