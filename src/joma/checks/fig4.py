"""Fig. 4 of JoMA: the dip and the rebound along Eq. 6, its caption, and the authors' script."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from scipy.special import entr

from joma.core.claim import Claim, above, below, statements
from joma.dynamics.salience_flow import (
    acting_attention,
    attention_entropy,
    script_dynamics,
)
from joma.theory.salience import (
    elapsed_time,
    solve,
)

# Ten critical points over the range of the paper's figure.
FIGURE_MU = np.linspace(1.25, 3.7, 10)

STATEMENTS = statements(
    {
        "fig4.dip_and_rebound": "JoMA Fig. 4 | Along Eq. 6 the attention's entropy drops, then rebounds.",
        "fig4.caption_entropy": "JoMA Fig. 4, caption | The entropy of the attention is "
        "entropy(softmax(v^2)).",
        "fig4.script": "JoMA Fig. 4 | The figure shows Eq. 6.",
    },
    exact=True,
)


def fig4() -> list[Claim]:
    """The figure's dynamics and the caption's entropy."""
    times = np.geomspace(0.02, 8.0, 3000)
    course = solve(FIGURE_MU, times, v0=0.05).v
    mean = np.full_like(FIGURE_MU, FIGURE_MU.mean())
    unattended = FIGURE_MU - (FIGURE_MU - 0.05) * np.exp(-times[:, None])
    rises, drops = [], []
    for v in (course, unattended, solve(mean, times, v0=0.05).v):
        h = attention_entropy(v)
        rises.append(float(h[-1] - h.min()))
        drops.append(float(h[0] - h.min()))

    share, between = acting_attention(times, course, FIGURE_MU)
    acting = entr(share).sum(axis=1)
    caption = [float(np.abs(attention_entropy(between, t) - acting).max()) for t in (2.0, 1.0)]

    eta = 0.002
    script = script_dynamics(FIGURE_MU, steps=6001, learning_rate=eta)[::1000][1:]
    spreads = []
    for kappa in (2 / 3, 1.0):
        told = elapsed_time(FIGURE_MU, -np.log1p(-script / FIGURE_MU), v0=0.05, kappa=kappa)
        spreads.append(float((np.ptp(told, axis=1) / told.mean(axis=1)).max()))
    return [
        STATEMENTS["fig4.dip_and_rebound"].judge(
            above(0.2, rises[0], of="rebound", unit="nats")
            & above(0.5, drops[0], of="drop", unit="nats")
            & below(1e-9, rises[1], of="rebound without attention", unit="nats")
            & below(1e-9, drops[2], of="drop where all mu are equal", unit="nats"),
            null=rises[1],
            null_description="attention removed: v' = mu - v",
        ),
        STATEMENTS["fig4.caption_entropy"].correct(
            "The attention of Eq. 6 is exp(v^2/2): entropy(softmax(v^2/2)).",
            printed_error=caption[1],
            error=caption[0],
            tolerance=0.01,
            evidence="against the attention read off the course as v'/(mu - v), nats",
        ),
        STATEMENTS["fig4.script"].correct(
            "The authors' script iterates w += eta (mu - w) softmax(w^2/3): Eq. 6 with kappa = 2/3, on "
            "another clock.",
            printed_error=spreads[1],
            error=spreads[0],
            tolerance=eta / 2,
            evidence="relative spread over components of the time each tells by F; eta = .002",
        ),
    ]


CHECKS: Mapping[str, Callable[[], list[Claim]]] = {"fig4": fig4}
