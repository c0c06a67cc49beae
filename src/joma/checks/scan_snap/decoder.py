"""The decoder with attention frozen, and Theorem 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joma.core.claim import Claim, above, below, statements, within_error
from joma.data.next_token import NextTokenData, graded_tokens
from joma.dynamics.token_flow import TokenTrajectory, token_flow
from joma.theory.scan_snap.decoder import (
    GradientForm,
    decoder_logit,
    gradient_form,
    half_speed_time,
    right_probability,
)
from joma.theory.scan_snap.snapping import snap_time_printed

Floats = NDArray[np.float64]
ROUNDING = 1e-6
"""Of the largest coefficient: what is smaller is not told from zero."""

STATEMENTS = statements(
    {
        "snap_theorem1.steps": "Scan&Snap Thm 1 (t >> K^2 steps of batch size 1, M^-0.99 << eta_Y < 1) | "
        "After 10 K^2 steps of batch size 1 the gradient is gamma (iota_n f_n - sum beta_nn' f_n') with "
        "positive coefficients.",
        "snap_decoder.closed_form": "Scan&Snap, decoder under frozen attention (towards Thm 1) | h + "
        "(e^{Mh/(M-1)} - 1)/M = eta_Y t/K for the right token's logit h.",
        "snap_decoder.half_speed": "Scan&Snap Thm 4, t_0 = O(2 K ln M/eta_Y) | The decoder's speed has "
        "halved at t = (K/eta_Y) [ (M-1)/M ln(M+1) + 1 ].",
        "snap_theorem1.span": "Scan&Snap Thm 1, Eq. 9 | With attention frozen and Y(0) = 0, g_n is a "
        "combination of the f_n'.",
        "snap_theorem1.signs": "Scan&Snap Thm 1, Eq. 9 | Its coefficients iota_n and beta_nn' are positive, "
        "for classes that are alike.",
        "snap_theorem1.signs_unlike": "Scan&Snap Thm 1, Eq. 9 | iota_n, beta_nn' > 0 for uniform classes, "
        "as the slides state it.",
        "snap_theorem1.moving": "Scan&Snap Thm 1 | The form holds to 2 % along the coupled flow where eta_Y "
        "= 1000 eta_Z.",
    },
    exact=True,
)


def snap_decoder() -> list[Claim]:
    """The decoder's closed form against the flow with attention frozen."""
    classes, outputs, eta_y = 3, 50, 0.5
    data = graded_tokens(last_tokens=1, next_per_last=classes, common=0, distinct=2, outputs=outputs)
    times = np.concatenate([[0.0], np.geomspace(0.1, 1e4, 25)])
    flow = token_flow(data, eta_y=eta_y, eta_z=0.0, times=times, rtol=1e-12, atol=1e-14)
    own = (flow.features[:, 0, :, None] * flow.decoder).sum(axis=1)[:, 0]
    h = decoder_logit(times, eta_y=eta_y, classes=classes, outputs=outputs)

    half = half_speed_time(eta_y=eta_y, classes=classes, outputs=outputs)
    at_half = decoder_logit([0.0, half], eta_y=eta_y, classes=classes, outputs=outputs)
    speed = 1 - right_probability(at_half, outputs)
    printed = snap_time_printed(eta_y=eta_y, classes=classes, outputs=outputs)
    return [
        STATEMENTS["snap_decoder.closed_form"].judge(
            within_error(1e-8, np.abs(own - h).max()),
            evidence=f"flow with disjoint features, K = {classes}, M = {outputs}, to t = 1e4",
        ),
        STATEMENTS["snap_decoder.half_speed"].judge(
            within_error(1e-12, abs(float(speed[1] / speed[0]) - 0.5)),
            evidence=f"{half:.3g} here, beside the slides' order of magnitude {printed:.3g}",
        ),
    ]


def snap_theorem1() -> list[Claim]:
    """The form of the backpropagated gradient: exact span, signs, and what moving attention does to it."""
    alike = graded_tokens(last_tokens=1, next_per_last=3, common=1, distinct=3)
    times = np.concatenate([[0.0], np.geomspace(0.1, 1e4, 20)])
    frozen = token_flow(alike, eta_y=1.0, eta_z=0.0, times=times)
    forms = _forms(frozen)
    off_span = max(form.residual.max() for form in forms)
    lowest = min(min(form.own.min(), _off_diagonal(form.cross).min()) for form in forms)

    unlike = _one_common(np.array([0.9, 0.9, 0.97]), outputs=200)
    flow = token_flow(unlike, eta_y=1.0, eta_z=0.0, times=times)
    wrong = min(float((_off_diagonal(form.cross) / np.abs(form.own[:, None])).min()) for form in _forms(flow))
    pull = min(float(v.attention[unlike.distinct].min()) for v in flow.states()[1:])

    moving = []
    for ratio in (1.0, 1000.0):
        coupled = token_flow(alike, eta_y=1.0, eta_z=1 / ratio, times=times)
        moving.append(max(form.residual.max() for form in _forms(coupled)))
    return [
        STATEMENTS["snap_theorem1.span"].judge(
            within_error(1e-12, off_span),
            evidence="population flow to t = 1e4, one common and three distinct tokens, K = 3",
        ),
        STATEMENTS["snap_theorem1.signs"].judge(
            above(0, lowest, of="smallest coefficient"),
            null=wrong,
            null_description="smallest beta/iota of classes that are not alike",
            evidence="the same flow",
        ),
        STATEMENTS["snap_theorem1.signs_unlike"].correct(
            "beta_nn' can be negative where the overlaps f_n . f_n' differ; what Theorem 2a needs, "
            "sum_n' beta_nn' f_n . f_n' > 0, holds all the same.",
            printed_error=max(0.0, -wrong),
            error=max(0.0, -pull),
            tolerance=1e-3,
            evidence="one common token of probability .9, .9, .97, one distinct token each, M = 200: "
            f"smallest beta/iota {wrong:.3f}, smallest drive of a distinct token {pull:.2g}",
        ),
        STATEMENTS["snap_theorem1.moving"].judge(
            within_error(0.02, moving[1]),
            null=moving[0],
            null_description="eta_Y = eta_Z",
            evidence="largest |g_n - fit|/|g_n| over the coupled flow to t = 1e4",
        ),
        _steps(),
    ]


def _steps() -> Claim:
    """The theorem's own regime: steps of batch size 1, many more than K^2, eta_Y between M^-0.99 and 1."""
    classes, outputs = 5, 400
    data = graded_tokens(last_tokens=1, next_per_last=classes, common=1, distinct=classes, outputs=outputs)
    features = token_flow(data, eta_y=1.0, eta_z=0.0, times=[0.0, 1e-3]).features[0]
    moments = {"K": classes, "K^2": classes**2, "10 K^2": 10 * classes**2}
    least: dict[str, list[float]] = {name: [] for name in moments}
    off_span = 0.0
    for eta_y in (0.02, 0.1, 0.5, 0.99):
        for seed in range(10):
            rng = np.random.default_rng([seed, 17])
            decoder = np.zeros((features.shape[1], outputs))
            for step in range(1, 10 * classes**2 + 1):
                n = int(rng.integers(classes))
                off = np.eye(outputs)[n] - _softmax(features[n] @ decoder)
                decoder += eta_y * np.outer(features[n], off)
                for name, moment in moments.items():
                    if step == moment:
                        chances = np.stack([_softmax(f @ decoder) for f in features])
                        form = gradient_form(features, (np.eye(outputs)[:classes] - chances) @ decoder.T)
                        both = np.append(form.own, _off_diagonal(form.cross))
                        least[name].append(float(both.min() / np.abs(form.own).max()))
                        off_span = max(off_span, float(form.residual.max()))
    late = min(least["10 K^2"])
    return STATEMENTS["snap_theorem1.steps"].judge(
        above(ROUNDING, late, of="smallest coefficient", across="in every run")
        & below(ROUNDING, min(least["K"]), of="smallest after K steps, where it need not be positive,")
        & below(1e-9, off_span, of="part outside of the span"),
        null=min(least["K"]),
        null_description="after K steps",
        evidence=f"K = {classes}, M = {outputs}, eta_Y = 0.02 to 0.99 (M^-0.99 = {outputs**-0.99:.4f}), 10 "
        f"runs each, in units of the largest gamma iota; after K^2 steps {min(least['K^2']):.3g}; outside of "
        f"the span {off_span:.1e}",
    )


def _softmax(logits: Floats) -> Floats:
    grown = np.exp(logits - logits.max())
    return np.asarray(grown / grown.sum())


def _forms(flow: TokenTrajectory) -> list[GradientForm]:
    """Theorem 1's coefficients at every time but the first, where g = 0."""
    return [gradient_form(v.features, v.backpropagated) for v in flow.states()[1:]]


def _off_diagonal(matrix: Floats) -> Floats:
    """The matrix without its diagonal, shape (K, K - 1)."""
    size = matrix.shape[0]
    return np.asarray(matrix[~np.eye(size, dtype=bool)].reshape(size, size - 1))


def _one_common(probabilities: Floats, outputs: int) -> NextTokenData:
    """One last token; one common token of the given P(l|n) and one distinct token for each next token."""
    rows = np.hstack([probabilities[:, None], np.diag(1 - probabilities)])
    return NextTokenData(rows, np.zeros(len(rows), dtype=np.int64), outputs=outputs)
