"""Theorem 1 of JoMA as claims: linear and exp attention, by flow and by discrete descent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from joma.checks._block_examples import (
    SAMPLES,
    TIMES,
    TOKENS,
    UNEQUAL,
    example_descent,
    relative_drift,
    wave_flow,
)
from joma.checks._softmax_invariants import theorem1_softmax
from joma.core.claim import Claim, between, equal, statements, within_error
from joma.dynamics import block_flow
from joma.theory import invariants
from joma.theory.attention import Attention, AttentionKind
from joma.theory.block import Block, Embeddings

STATEMENTS = statements(
    {
        "theorem1.no_residual": "JoMA App. A.2 | The invariants need only U_C' u_q = 0: they hold without "
        "the residual as well.",
        "theorem1.query_overlap": "JoMA App. A.2, Eq. 11 | U_C' u_m = 0 is needed: if the query is "
        "contextual token q, then z_q = 1/2 sum v_kq^2 - sum_k int v_kq xi_k' dt + c, and the other tokens "
        "keep their invariants.",
        "theorem1.descent_order": "JoMA Thm 1 | The drift under discrete SGD, at equal training time, is of "
        "first order in the step.",
        "theorem1.linear_zero": "JoMA Thm 1 | Linear attention, zero initialisation: c = 0 (true, and "
        "empty: nothing ever moves).",
        "theorem1.linear_solution": "JoMA Thm 1, K = 1 | Linear attention from v(0) = 0: v = z_0 "
        "sqrt(eta_w/eta_z) sinh(omega t), z = z_0 cosh(omega t), omega = Delta sqrt(eta_w eta_z)/T.",
        "theorem1.{kind}": "JoMA Thm 1 | {kind} attention: {statement} (equal rates, T = 1).",
        "theorem1.{kind}_rates": "JoMA Thm 1; poster: 'any learning rates' | {kind} attention: {statement} "
        "for any learning rates and temperature.",
        "theorem1.descent_{kind}": "JoMA Thm 1, by discrete steps | {kind} attention: plain simultaneous "
        "SGD moves c by exactly {formula}.",
    },
    exact=True,
)


def _theorem1() -> list[Claim]:
    claims = []
    statements: dict[AttentionKind, str] = {
        "linear": "z^2 = sum_k v_k^2 + c",
        "exp": "z = 1/2 sum_k v_k^2 + c",
    }
    rights: dict[AttentionKind, str] = {
        "linear": "z^2 = (eta_z/eta_w) sum_k v_k^2 + c, whatever T",
        "exp": "z = eta_z/(2 T eta_w) sum_k v_k^2 + c",
    }
    for kind, statement in statements.items():
        block, flow, _, _ = wave_flow(kind)
        claims.append(
            STATEMENTS["theorem1.{kind}"]
            .fill(kind=kind, statement=statement)
            .judge(
                within_error(1e-9, relative_drift(block, flow)),
                evidence="gradient flow, gelu, gradients varying in time and with the state, 3 starts",
            )
        )
        block, flow, _, _ = wave_flow(kind, temperature=1.7, **UNEQUAL)
        printed = invariants.first_integral(Attention(kind=kind), flow.logits, flow.context_weights)
        claims.append(
            STATEMENTS["theorem1.{kind}_rates"]
            .fill(kind=kind, statement=statement)
            .correct(
                f"{rights[kind]}.",
                printed_error=np.abs(printed - printed[0]).max() / max(1.0, np.abs(printed).max()),
                error=relative_drift(block, flow, **UNEQUAL),
                tolerance=1e-9,
                evidence="relative drift along the flow; eta_w = 2, eta_z = 0.3, T = 1.7",
            )
        )
    return [*claims, _no_residual(), _query_overlap(), *_zero_start(), *_descent(), _first_order()]


def _no_residual() -> Claim:
    embeddings = Embeddings.orthonormal(TOKENS, residual=False)
    drifts = [
        relative_drift(*wave_flow(kind, embeddings=embeddings)[:2]) for kind in ("linear", "exp", "softmax")
    ]
    return STATEMENTS["theorem1.no_residual"].judge(
        within_error(1e-9, max(drifts)),
        evidence="all three attentions with u_q = 0 (softmax: the integral identity)",
    )


def _query_overlap() -> Claim:
    """The query is contextual token 0: its component gains the term sum_k int v_kq xi_k' dt."""
    q = 0
    block, flow, x, gradient = wave_flow(
        "exp", embeddings=Embeddings.orthonormal(TOKENS, query_token=q), seed=5
    )
    value = invariants.first_integral(block.attention, flow.logits, flow.context_weights)
    # The missing integral, by Gauss-Legendre quadrature along the flow, independent of its own state.
    nodes, weights = np.polynomial.legendre.leggauss(40)
    end = TIMES[-1]
    moments = (nodes + 1) / 2 * end
    dense = block_flow.solve(
        block,
        x,
        gradient,
        weights=flow.weights[0],
        logits=flow.logits[0],
        times=np.concatenate([[0.0], moments]),
    )
    p = np.full(SAMPLES, 1 / SAMPLES)
    integrand = [
        (
            dense.context_weights[s + 1, ..., q]
            * block.directions(
                x, dense.weights[s + 1], dense.logits[s + 1], gradient, sample_weights=p, time=t
            ).bias
        ).sum(axis=-1)
        for s, t in enumerate(moments)
    ]
    missing = end / 2 * np.tensordot(weights, np.stack(integrand), axes=1)
    drift = value[-1] - value[0]
    right = drift.copy()
    right[..., q] += missing
    return STATEMENTS["theorem1.query_overlap"].judge(
        within_error(1e-9, np.abs(right).max()),
        null=np.abs(drift).max(),
        null_description="drift of the invariants without the integral",
        evidence="exp attention, query = token 0; the integral by quadrature",
    )


def _zero_start() -> list[Claim]:
    rng = np.random.default_rng(6)
    block = Block(Embeddings.orthonormal(TOKENS, residual=False), Attention(kind="linear", temperature=1.3))
    x, g = rng.dirichlet(np.ones(TOKENS), SAMPLES), rng.normal(size=(SAMPLES, 1))
    drive = (x * g).mean(axis=0)
    z0 = rng.normal(size=TOKENS)
    still = np.zeros((1, TOKENS + 1))
    flow = block_flow.solve(block, x, g, weights=still, logits=z0, times=TIMES, **UNEQUAL)
    v, z = invariants.linear_attention_solution(
        TIMES, initial_logits=z0, drive=drive, temperature=1.3, **UNEQUAL
    )
    error = max(np.abs(flow.context_weights[:, 0] - v).max(), np.abs(flow.logits - z).max())
    stuck = block_flow.solve(block, x, g, weights=still, logits=np.zeros(TOKENS), times=TIMES)
    motion = max(np.abs(stuck.context_weights).max(), np.abs(stuck.logits).max())
    return [
        STATEMENTS["theorem1.linear_zero"].judge(
            equal(0, motion, of="largest |z|, |v| along the flow"),
            null=np.abs(flow.logits - z0).max(),
            null_description="the same flow from z(0) != 0: how far z moves",
        ),
        STATEMENTS["theorem1.linear_solution"].judge(
            within_error(1e-9, error), evidence="closed form against the flow, unequal rates, T = 1.3"
        ),
    ]


def _descent() -> list[Claim]:
    claims = []
    rates = {"weight_rate": 0.3, "attention_rate": 0.1}
    formulas: dict[AttentionKind, str] = {
        "linear": "sum_s [(Delta z)^2 - (eta_z/eta_w) sum_k (Delta v_k)^2]",
        "exp": "-eta_z/(2 T eta_w) sum_s sum_k (Delta v_k)^2, never positive",
        "softmax": "-eta_z/(2 T eta_w) sum_s sum_k (Delta v_k)^2, with the correction summed step by step",
    }
    for kind, formula in formulas.items():
        block, run = example_descent(kind, 0.3, 60)
        value = invariants.first_integral(
            block.attention, run.logits, run.context_weights, correction=run.correction, **rates
        )
        predicted = invariants.descent_drift(
            block.attention,
            squared_weight_steps=run.squared_weight_steps,
            squared_logit_steps=run.squared_logit_steps,
            **rates,
        )
        drift = value - value[0]
        claims.append(
            STATEMENTS["theorem1.descent_{kind}"]
            .fill(kind=kind, formula=formula)
            .judge(
                within_error(1e-12, np.abs(drift - predicted).max()),
                null=np.abs(drift).max(),
                null_description="the drift itself, which the flow does not have",
                evidence="60 steps of size 0.3, minibatches of 2, relu, cross-entropy",
            )
        )
    return claims


def _first_order() -> Claim:
    drifts = []
    for rate, steps in ((0.04, 100), (0.02, 200), (0.01, 400)):
        block, run = example_descent("exp", rate, steps)
        value = invariants.first_integral(
            block.attention, run.logits, run.context_weights, weight_rate=rate, attention_rate=rate / 3
        )
        drifts.append(np.abs(value[-1] - value[0]).max())
    orders = np.log2(np.divide(drifts[:-1], drifts[1:]))
    order = float(orders[np.abs(orders - 1).argmax()])
    return STATEMENTS["theorem1.descent_order"].judge(
        between(0.9, 1.1, order, of="order"),
        evidence="exp attention, steps of 0.04, 0.02, 0.01: the order farther from 1 of the two halvings",
    )


CHECKS: dict[str, Callable[[], list[Claim]]] = {"theorem1": _theorem1, "theorem1_softmax": theorem1_softmax}
