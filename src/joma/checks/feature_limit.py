"""The draft "Multi-layer Analysis": "therefore f_j -> z_alpha", and its note on the spread of x_-."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from joma.core.arguments import Array
from joma.core.claim import Claim, below, statements
from joma.theory.feature_limit import background_response, spread_correlation

SOURCE = "CDAG Sec. 1.2, after Eq. 3"
STEPS, RATE = 1500, 0.1
STATEMENTS = statements(
    {
        "cdag_feature.limit": f"{SOURCE} | Eq. 3 'can be integrated out with w_j(0) = 0. Therefore f_j -> "
        "z_alpha'.",
        "cdag_feature.spread": f"{SOURCE} (its note) | 'The distribution of x_- may need to be quite "
        "spread-out in order to prove it': the wider x_-, the better f_j correlates with z_alpha.",
    },
    exact=True,
)


def _responses(plus: Array, minus: Array, share: float, *, linear: bool = False) -> tuple[float, float]:
    """f(x_+) and f(x_-) after steps of Eq. 3 from small weights that pass both inputs."""
    pair = np.stack([plus, minus])
    w = 1e-3 * np.linalg.pinv(pair) @ np.ones(2)
    signed = np.array([share, share - 1.0])
    for _ in range(STEPS):
        gate = np.ones(2) if linear else (pair @ w > 0).astype(np.float64)
        w = w + RATE * (gate * signed) @ pair
    before = pair @ w
    first, second = before if linear else np.maximum(before, 0.0)
    return float(first), float(second)


def _limit() -> Claim:
    rng = np.random.default_rng(11)
    errors, printed, linear, cases = [], [], [], 0
    while cases < 40:
        plus, minus = rng.standard_normal((2, 3)) * rng.uniform(0.3, 1.5, (2, 1))
        share = float(rng.uniform(0.15, 0.85))
        if share * plus @ plus <= 1.2 * (1 - share) * plus @ minus:
            continue  # the node dies, or nearly so
        cases += 1
        first, second = _responses(plus, minus, share)
        errors.append(abs(second / first - background_response(plus, minus, share=share)))
        printed.append(second / first)
        other = _responses(plus, minus, share, linear=True)
        linear.append(abs(other[1] / other[0]))
    return STATEMENTS["cdag_feature.limit"].correct(
        "If and only if P x_+.x_- <= (1 - P) |x_-|^2; else f(x_-)/f(x_+) tends to "
        "(P x_+.x_- - (1 - P) |x_-|^2)/(P |x_+|^2 - (1 - P) x_+.x_-).",
        printed_error=max(printed),
        error=max(errors),
        tolerance=0.01,
        null=float(np.median(linear)),
        null_description="the same without the nonlinearity, in size, median",
        evidence=f"f(x_-)/f(x_+) after {STEPS} steps of Eq. 3 for {cases} random pairs of inputs and shares; "
        f"{np.mean(np.array(printed) < 0.01):.0%} vanish",
    )


def _correlation(spread: float, *, distance: float = 1.0, share: float = 0.5) -> float:
    """Of f and z after steps of Eq. 2 on a sample of x_-."""
    rng = np.random.default_rng(5)
    noise = spread * rng.standard_normal((5_000, 2))
    noise = np.concatenate([noise, -noise])  # centred exactly
    plus = np.array([distance, 0.0])
    w = 1e-3 * np.array([1.0, 0.2])
    for _ in range(400):
        passed = noise @ w > 0
        w = w + RATE * (share * plus * (plus @ w > 0) - (1 - share) * (noise * passed[:, None]).mean(axis=0))
    f = np.maximum(noise @ w, 0.0)
    gap, within = plus @ w - f.mean(), f.var()
    between = share * (1 - share) * gap**2
    return float(np.sign(gap) * np.sqrt(between / (between + (1 - share) * within)))


def _spread() -> Claim:
    spreads = (0.2, 0.5, 1.0, 1.5)
    found = [_correlation(s) for s in spreads]
    law = spread_correlation(spreads, distance=1.0)
    error = float(np.abs(np.array(found) - law).max())
    return STATEMENTS["cdag_feature.spread"].correct(
        "The wider x_-, the worse: the noise passes the gate half of the time, and the correlation is that "
        "of a closed form, 1 only for no spread.",
        printed_error=float(max(0.0, found[0] - found[-1])),
        error=error,
        tolerance=0.01,
        also=below(found[:-1], found[1:], of="correlation at a spread", than="that at the next smaller one"),
        null=1.0,
        null_description="correlation with no spread",
        evidence="correlation of f and z, x_- Gaussian about 0, x_+ at 1; printed: what the widest loses: "
        + ", ".join(f"s = {s:g}: {f:.3f} (law {t:.3f})" for s, f, t in zip(spreads, found, law, strict=True)),
    )


def cdag_feature() -> list[Claim]:
    """Whether a node comes to stand for its label."""
    return [_limit(), _spread()]


CHECKS: dict[str, Callable[[], list[Claim]]] = {"cdag_feature": cdag_feature}
