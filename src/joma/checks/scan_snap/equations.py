"""The Y/Z equations and Lemma 2, against numerical derivatives and sampled sequences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from joma.core.claim import Claim, statements, within_error
from joma.data.next_token import NextTokenData, graded_tokens
from joma.theory.scan_snap.equations import attended_mass, predictions, unit, velocities

Floats = NDArray[np.float64]

STATEMENTS = statements(
    {
        "snap_dynamics.gradient": "Scan&Snap, Training dynamics of Y and Z | Y' and Z' are the gradient of "
        "the expected log-likelihood, with P_perp/|X^T b|.",
        "snap_dynamics.diagonal": "Scan&Snap, Training dynamics of Y and Z | diag(b) may stand for diag(b) "
        "- b b^T, because P_perp X^T b = 0.",
        "snap_lemma2.identity": "Scan&Snap Lemma 2, second part | X^T diag(b_T) X = diag(X^T b_T) at every "
        "T, and X^T b_T is fixed by the counts.",
        "snap_lemma2.limit": "Scan&Snap Lemma 2, first part | X^T b_T tends to c_{m,n}; the distance "
        "shrinks as 1/sqrt(T).",
    },
    exact=True,
)


def snap_dynamics() -> list[Claim]:
    """The Y/Z equations against numerical derivatives of the log-likelihood."""
    data, y, z = _random_state(np.random.default_rng(0))
    v = velocities(
        y,
        z,
        conditional=data.conditional,
        last_of_next=data.last_of_next,
        class_probability=data.prior,
        eta_y=1.0,
        eta_z=1.0,
    )

    def likelihood(state: Floats) -> float:
        decoder_, logits = state[: y.size].reshape(y.shape), state[y.size :].reshape(z.shape)
        features = unit(attended_mass(data.conditional, logits[data.last_of_next]))
        alpha = predictions(decoder_, features)
        return float(data.prior @ np.log(alpha[np.arange(data.classes), np.arange(data.classes)]))

    numeric = _gradient(likelihood, np.concatenate([y.ravel(), z.ravel()]))
    exact = np.concatenate([v.decoder.ravel(), v.logits.ravel()])

    # The softmax's own derivative is diag(b) - b b^T; the slides keep diag(b) and lose nothing.
    mass = attended_mass(data.conditional, z[data.last_of_next])
    gap = 0.0
    for c, f, g in zip(mass, v.features, v.backpropagated, strict=True):
        projected = (np.eye(f.size) - np.outer(f, f)) / np.linalg.norm(c) @ g
        gap = max(gap, float(np.abs((np.diag(c) - np.outer(c, c)) @ projected - c * projected).max()))
    return [
        STATEMENTS["snap_dynamics.gradient"].judge(
            within_error(1e-8, np.abs(numeric - exact).max() / np.abs(exact).max()),
            evidence="sixth-order differences at a random state, 3 last and 6 next tokens, T -> infinity",
        ),
        STATEMENTS["snap_dynamics.diagonal"].judge(
            within_error(1e-15, gap), evidence="both written out as matrices at the same state"
        ),
    ]


def snap_lemma2() -> list[Claim]:
    """The identity that holds at every T, and how fast the limit is approached."""
    random = np.random.default_rng(1)
    data = graded_tokens(last_tokens=1, next_per_last=1, common=3, distinct=4)
    z = random.normal(size=data.contextual_tokens)
    identity = 0.0
    for length in (2, 5, 50, 500):
        sequence = random.choice(data.contextual_tokens, size=length - 1, p=data.conditional[0])
        x = np.eye(data.contextual_tokens)[sequence]
        b = np.exp(z[sequence]) / np.exp(z[sequence]).sum()
        identity = max(identity, float(np.abs(x.T @ np.diag(b) @ x - np.diag(x.T @ b)).max()))
        counts = np.bincount(sequence, minlength=data.contextual_tokens)
        identity = max(identity, float(np.abs(attended_mass(counts, z) - x.T @ b).max()))
    lengths = np.array([100, 1000, 10_000, 100_000])
    limit = attended_mass(data.conditional[0], z)
    errors = [
        np.sqrt(
            ((attended_mass(data.sample_counts(2000, length, random)[1], z) - limit) ** 2).sum(axis=1).mean()
        )
        for length in lengths
    ]
    slope = float(np.polyfit(np.log(lengths), np.log(errors), 1)[0])
    return [
        STATEMENTS["snap_lemma2.identity"].judge(
            within_error(1e-15, identity), evidence="sequences of 2, 5, 50 and 500 tokens"
        ),
        STATEMENTS["snap_lemma2.limit"].judge(
            within_error(0.02, abs(slope + 0.5)),
            evidence=f"2000 sequences for each T = 1e2 ... 1e5: log-log slope {slope:.3f}",
        ),
    ]


def _random_state(random: np.random.Generator) -> tuple[NextTokenData, Floats, Floats]:
    """Data with shared last tokens and common-per-last tokens, and weights in general position."""
    data = graded_tokens(last_tokens=3, next_per_last=2, common=2, common_per_last=1, distinct=2, outputs=9)
    y = random.normal(size=(data.contextual_tokens, data.logits))
    return data, y, random.normal(size=(data.last_tokens, data.contextual_tokens))


def _gradient(function: Callable[[Floats], float], point: Floats, step: float = 0.02) -> Floats:
    """Sixth-order central differences: error of order step^6 and of rounding/step."""
    offsets, weights = np.array([1, 2, 3]), np.array([45, -9, 1]) / 60
    result = np.empty_like(point)
    for index in range(point.size):
        total = 0.0
        for offset, weight in zip(offsets, weights, strict=True):
            ahead, behind = point.copy(), point.copy()
            ahead[index] += offset * step
            behind[index] -= offset * step
            total += weight * (function(ahead) - function(behind))
        result[index] = total / step
    return result
