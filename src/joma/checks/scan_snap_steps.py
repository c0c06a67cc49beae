"""Scan&Snap Theorem 1 in steps of batch size 1: when its coefficients turn positive, with many classes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import softmax

from joma.core.arguments import Array
from joma.core.claim import Claim, above, below, statements
from joma.data.next_token import graded_tokens
from joma.dynamics.token_flow import token_flow
from joma.theory.scan_snap.decoder import gradient_form, steps_until_all_drawn

CLASSES, OUTPUTS, SEEDS = 20, 400, 3
ROUNDING = 1e-9
"""Of a coefficient that is zero: that of a class not yet drawn is, against 5e-5 once it has been."""

STATEMENTS = statements(
    {
        "snap_coupons.signs": "Scan&Snap Thm 1 (t >> K^2 steps of batch size 1) | The coefficients turn "
        "positive at the very step at which the last class is drawn, after some K ln K steps rather than "
        "K^2.",
    },
    exact=True,
)


def least_coefficient(features: Array, decoder: Array) -> float:
    """The least of gamma iota_n and gamma beta_nn', classes equally likely."""
    classes, outputs = len(features), decoder.shape[1]
    chances = softmax(features @ decoder, axis=1)
    form = gradient_form(features, (np.eye(outputs)[:classes] - chances) @ decoder.T)
    return float(min(form.own.min(), form.cross[~np.eye(classes, dtype=bool)].min()))


def turning_step(features: Array, outputs: int, eta_y: float, seed: int) -> tuple[int, float, float]:
    """The step at which the last class is drawn, and the least coefficient before and after it."""
    classes = len(features)
    rng, drawn = np.random.default_rng([seed, 17]), set[int]()
    decoder = np.zeros((features.shape[1], outputs))
    step, before = 0, 0.0
    while len(drawn) < classes:
        before = least_coefficient(features, decoder) if len(drawn) == classes - 1 else before
        n, step = int(rng.integers(classes)), step + 1
        off = np.eye(outputs)[n] - softmax(features[n] @ decoder)
        decoder += eta_y * np.outer(features[n], off)
        drawn.add(n)
    return step, before, least_coefficient(features, decoder)


def snap_coupons() -> list[Claim]:
    """When the signs turn."""
    data = graded_tokens(last_tokens=1, next_per_last=CLASSES, common=1, distinct=CLASSES, outputs=OUTPUTS)
    features = token_flow(data, eta_y=1.0, eta_z=0.0, times=[0.0, 1e-3]).features[0]
    runs = [
        turning_step(features, OUTPUTS, eta_y, s) for eta_y in (0.02, 0.1, 0.5, 0.99) for s in range(SEEDS)
    ]
    steps, before, after = (np.array(column) for column in zip(*runs, strict=True))
    law = steps_until_all_drawn(CLASSES, 0.95)
    return [
        STATEMENTS["snap_coupons.signs"].judge(
            above(ROUNDING, after, of="smallest coefficient after that step", across="in every run")
            & below(ROUNDING, before, of="smallest coefficient before it", across="in every run")
            & below(CLASSES**2, steps, of="that step", than="K^2", across="in every run"),
            null=before.max(),
            null_description="largest of the runs' smallest coefficients one step before",
            evidence=f"K = {CLASSES}, M = {OUTPUTS}, {len(runs)} runs, eta_Y = 0.02 to 0.99: steps "
            f"{steps.min()} to {steps.max()}; K (ln K + 3) = {law:.0f}, K^2 = {CLASSES**2}",
        )
    ]


CHECKS: dict[str, Callable[[], list[Claim]]] = {"snap_coupons": snap_coupons}
