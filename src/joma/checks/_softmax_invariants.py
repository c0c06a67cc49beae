"""Theorem 1 of JoMA for softmax attention, as claims: exact identity, closed forms, hypothesis."""

from __future__ import annotations

import numpy as np

from joma.checks._block_examples import (
    SAMPLES,
    TOKENS,
    UNEQUAL,
    UNITS,
    example_descent,
    relative_drift,
    wave_flow,
)
from joma.core.claim import Claim, at_least, statements, within_error
from joma.dynamics import block_flow
from joma.dynamics.block_flow import Trajectory
from joma.theory import invariants
from joma.theory.activation import activation
from joma.theory.attention import Array, Attention
from joma.theory.block import Block, Embeddings

STATEMENTS = statements(
    {
        "theorem1_softmax.sign": "JoMA Thm 1, softmax (main text and App. A.2) | z = 1/2 sum_k v_k^2 "
        "|v_k|^2 bbar + c.",
        "theorem1_softmax.missing_term": "JoMA Thm 1, softmax, Eq. 18 | For nearly equal samples z = 1/2 "
        "sum_k (v_k^2 - |v_k|^2 bbar) + c, to leading order.",
        "theorem1_softmax.integral_identity": "JoMA Thm 1, softmax | Exactly: z - z(0) = eta_z/(T eta_w) "
        "{1/2 sum_k [v_k^2] - sum_k int E[g_k h'_k b (b . v_k)] eta_w dt}, without any hypothesis.",
        "theorem1_softmax.weakest_hypothesis": "JoMA Thm 1, softmax, Eq. 17 | Eq. 17 holds if and only if "
        "sum_k E[g_k h'_k (b . v_k)(b - bbar)] = 0: its error is that.",
        "theorem1_softmax.summed_hypothesis": "JoMA Thm 1, softmax, hypothesis | E[sum_k g_k h'_k b b'] = "
        "bbar E[sum_k g_k h'_k b] suffices for Eq. 17.",
        "theorem1_softmax.constant_mean": "JoMA Thm 1, softmax, hypothesis | bbar cannot stay constant "
        "while z moves: |dbbar/dt| >= lambda_2 |dz/dt| / T, lambda_2 > 0 the second eigenvalue of E[diag(b) "
        "- b b']. The hypothesis holds only for frozen attention.",
        "theorem1_softmax.logit_sum": "JoMA Thm 1, softmax (side invariant) | The sum of the logits 1'z "
        "never changes, neither by flow nor by SGD.",
        "theorem1_softmax.weight_sum": "JoMA Thm 1, softmax (side invariant) | 1'v_k - xi_k never changes, "
        "by flow or by SGD: weights sum to the bias.",
    },
    exact=True,
)


def _balanced_block(spread: float, *, balanced: bool) -> tuple[Block, Trajectory, Array]:
    """Nearly equal samples around a uniform mean, zero start: (block, flow, mean scores)."""
    rng = np.random.default_rng(8)
    n, m, k = 50, 8, 3
    noise = rng.normal(size=(n, m))
    noise -= noise.mean(axis=0) + noise.mean(axis=1, keepdims=True) - noise.mean()
    x = (1 + spread * noise) / m
    g = rng.normal(size=(n, k))
    g = g - g.mean(axis=0) + (0.0 if balanced else 1.0)
    block = Block(Embeddings.orthonormal(m))
    flow = block_flow.solve(
        block,
        x,
        g,
        weights=np.zeros((k, m + 1)),
        logits=np.zeros(m),
        times=[0.0, 0.5],
        rtol=1e-12,
        atol=1e-16,
    )
    return block, flow, np.asarray(block.attention.scores(x, flow.logits[-1]).mean(axis=0))


def _form_error(flow: Trajectory, mean: Array, form: invariants.SoftmaxForm) -> float:
    predicted = invariants.softmax_logits(
        flow.context_weights[-1],
        mean,
        initial_context_weights=flow.context_weights[0],
        initial_logits=flow.logits[0],
        bias=flow.bias[-1],
        form=form,
    )
    return float(np.linalg.norm(predicted - flow.logits[-1]) / np.linalg.norm(flow.logits[-1]))


def theorem1_softmax() -> list[Claim]:
    """The claims of the group ``theorem1_softmax``."""
    return [
        _lost_sign(),
        _lost_factor(),
        _integral_identity(),
        *_side_invariants(),
        _hypothesis(),
        _opposite_nodes(),
        _constant_mean(),
    ]


def _lost_sign() -> Claim:
    _, flow, mean = _balanced_block(0.001, balanced=True)
    return STATEMENTS["theorem1_softmax.sign"].correct(
        "z = 1/2 sum_k (v_k^2 - |v_k|^2 bbar) + c, as in Eq. 18 (first-order right if E[g h'] = 0).",
        printed_error=_form_error(flow, mean, "printed"),
        error=_form_error(flow, mean, "signed"),
        tolerance=2e-3,
        evidence="relative to z: 50 samples with a spread of 0.1 %, balanced g, zero start",
    )


def _lost_factor() -> Claim:
    _, flow, mean = _balanced_block(0.001, balanced=False)
    return STATEMENTS["theorem1_softmax.missing_term"].correct(
        "z = 1/2 sum_k [v_k^2 - |v_k|^2 bbar - (v_k - xi_k bbar)(bbar . v_k)] + c: the dropped "
        "E[g db](bbar . v) is as large as what is kept unless E[g_k h'_k] = 0.",
        printed_error=_form_error(flow, mean, "signed"),
        error=_form_error(flow, mean, "corrected"),
        tolerance=2e-3,
        evidence="relative to z: 50 samples with a spread of 0.1 %, E[g] = 1, zero start; printed: factor 2",
    )


def _integral_identity() -> Claim:
    block, flow, _, _ = wave_flow("softmax", temperature=0.6, **UNEQUAL)
    no_correction = invariants.first_integral(
        Attention(kind="exp", temperature=0.6), flow.logits, flow.context_weights, **UNEQUAL
    )
    return STATEMENTS["theorem1_softmax.integral_identity"].judge(
        within_error(1e-9, relative_drift(block, flow, **UNEQUAL)),
        null=np.abs(no_correction - no_correction[0]).max(),
        null_description="drift without the integral (exp attention's invariant)",
        evidence="relative drift along the flow; unequal rates, T = 0.6, gradients varying in time and state",
    )


def _side_invariants() -> list[Claim]:
    _, flow, _, _ = wave_flow("softmax", temperature=0.6, **UNEQUAL)
    _, run = example_descent("softmax", 0.3, 60)
    _, exp, _, _ = wave_flow("exp")

    def motion(value: Array) -> float:
        return float(np.abs(value - value[0]).max())

    def weight_side(course: Trajectory) -> float:
        return motion(course.context_weights.sum(axis=-1) - course.bias)

    return [
        STATEMENTS["theorem1_softmax.logit_sum"].judge(
            within_error(1e-10, max(motion(course.logits.sum(axis=-1)) for course in (flow, run))),
            null=motion(exp.logits.sum(axis=-1)),
            null_description="exp attention",
        ),
        STATEMENTS["theorem1_softmax.weight_sum"].judge(
            within_error(1e-10, max(weight_side(course) for course in (flow, run))),
            null=weight_side(exp),
            null_description="exp attention",
        ),
    ]


def _hypothesis() -> Claim:
    rng = np.random.default_rng(9)
    block = Block(Embeddings.orthonormal(TOKENS), Attention(), activation("gelu"))
    x, p = rng.dirichlet(np.ones(TOKENS), SAMPLES), rng.dirichlet(np.ones(SAMPLES))
    w, z, g = rng.normal(size=(UNITS, TOKENS + 1)), rng.normal(size=TOKENS), rng.normal(size=(SAMPLES, UNITS))
    activity = block.forward(x, w, z)
    d = block.directions(x, w, z, g, sample_weights=p)
    v, dv = block.embeddings.read(w), block.embeddings.read(d.weights)
    mean = p @ activity.scores
    equation_17 = (v * dv - mean * (v * dv).sum(axis=-1, keepdims=True)).sum(axis=0)
    gap = invariants.closed_form_gap(g * activity.slope, activity.scores, p, v)
    return STATEMENTS["theorem1_softmax.weakest_hypothesis"].judge(
        within_error(1e-14, np.abs(d.logits - (equation_17 - gap)).max()),
        null=np.abs(gap).max(),
        null_description="the error of Eq. 17 without it",
        evidence="one random state",
    )


def _opposite_nodes() -> Claim:
    """Two nodes with opposite gradients: the summed hypothesis is 0 = 0, the prediction is off."""
    rng = np.random.default_rng(10)
    block = Block(Embeddings.orthonormal(TOKENS))
    x, g = rng.dirichlet(np.ones(TOKENS), SAMPLES), rng.normal(size=(SAMPLES, 1))
    flow = block_flow.solve(
        block,
        x,
        np.hstack([g, -g]),
        weights=np.zeros((2, TOKENS + 1)),
        logits=np.zeros(TOKENS),
        times=np.linspace(0.0, 2.0, 401),
    )
    p = np.full(SAMPLES, 1 / SAMPLES)
    scores = np.asarray(block.attention.scores(x, flow.logits))
    signal = np.broadcast_to(np.hstack([g, -g]), (len(flow.times), SAMPLES, 2))
    hypothesis = invariants.factorisation_gap(signal, scores, p)
    summed = float(np.abs(hypothesis.sum(axis=-3)).max())
    # Eq. 17 along the true path, its bbar moving as it does: what the printed hypothesis would give.
    v, mean = flow.context_weights, scores.mean(axis=1)
    dv = np.swapaxes(signal, -1, -2) @ scores / SAMPLES
    rate_17 = (v * dv - mean[:, None] * (v * dv).sum(axis=-1, keepdims=True)).sum(axis=1)
    gap = invariants.closed_form_gap(signal, scores, p, v)

    def integral(rate: Array) -> Array:
        return np.asarray(np.trapezoid(rate, flow.times, axis=0))

    z = flow.logits[-1]
    return STATEMENTS["theorem1_softmax.summed_hypothesis"].correct(
        "sum_k E[g_k h'_k (b . v_k)(b - bbar)] must vanish; the printed sum over k does not see v_k. "
        "With g_2 = -g_1 it reads 0 = 0 for all data.",
        printed_error=float(np.linalg.norm(integral(rate_17) - z) / np.linalg.norm(z))
        if summed < 1e-15
        else 0.0,
        error=float(np.linalg.norm(integral(rate_17 - gap) - z) / np.linalg.norm(z)),
        tolerance=1e-4,
        evidence=f"K = 2, g_2 = -g_1, linear; hypothesis met to {summed:.0e}; error of z by Eq. 17",
    )


def _constant_mean() -> Claim:
    """How fast ``bbar`` moves, in units of the least that the moving logits allow."""
    block, flow, x, gradient = wave_flow("softmax", temperature=0.6, name="linear", seed=3)
    p, step = np.full(SAMPLES, 1 / SAMPLES), 1e-5
    ratios: dict[str, list[Array]] = {"flow": [], "slowest": []}
    for time, w, z in zip(flow.times, flow.weights, flow.logits, strict=True):
        d = block.directions(x, w, z, gradient, sample_weights=p, time=float(time))
        b = block.attention.scores(x, z)
        mean = b.mean(axis=1)
        moments = mean[:, :, None] * np.eye(TOKENS) - np.einsum("snl,snm->slm", b, b) / SAMPLES
        least = invariants.rigidity(b, p) / 0.6
        for name, move in (("flow", d.logits), ("slowest", np.linalg.eigh(moments)[1][..., 1])):
            moved = step * move / np.linalg.norm(move, axis=-1, keepdims=True)
            ahead, behind = (block.attention.scores(x, z + sign * moved).mean(axis=1) for sign in (1, -1))
            ratios[name].append(np.linalg.norm(ahead - behind, axis=-1) / (2 * step * least))
    worst, attained = float(np.min(ratios["flow"])), float(np.abs(np.array(ratios["slowest"]) - 1).max())
    return STATEMENTS["theorem1_softmax.constant_mean"].judge(
        at_least(1 - 1e-9, worst, of="|dbbar/dt| T / (lambda_2 |dz/dt|)", across="at every moment")
        & within_error(1e-6, attained, of="its distance from 1 along that eigenvector"),
        evidence="27 moments of a flow from 3 starts; proof: 1'z is constant, the kernel is constants",
    )
