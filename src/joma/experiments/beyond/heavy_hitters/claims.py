"""Do heavy hitters arise in training, and do they co-occur with those who ask?"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, above, below, statements
from joma.core.tables import rows
from joma.experiments.beyond.heavy_hitters import HeavyHitters
from joma.measures.attention.received.hitters import even_share

STATEMENTS = statements(
    {
        "heavy_hitters.sparse": "H2O (Zhang et al. 2023) | Training makes attention sparse: fewer keys "
        "receive 90 % of the mass than in an untrained decoder, and than under uniform attention.",
        "heavy_hitters.cooccur": "H2O (Zhang et al. 2023) | Beyond position and frequency, keys that "
        "co-occur with the queries receive more.",
        "heavy_hitters.monotone": "Scan&Snap, Sec. 4 | Attention grows sparse along training: the share of "
        "hitters does not rise again.",
    }
)
GARBAGE = {
    "heavy_hitters.sparse": "the untrained decoder's shares",
    "heavy_hitters.cooccur": "the co-occurrences of shuffled tokens",
    "heavy_hitters.monotone": "the curve turned round in time",
}
"""Claim -> what, in the place of the real thing, turns its verdict."""
RISE = 0.02
"""Of the share of hitters, that is no return."""


def claims(settings: HeavyHitters, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """All from the table of curves; a seed counts once, by the mean over its heads."""
    means = tables["curves"].groupby(["metric", "seed", "step"])["value"].mean()
    last = tables["curves"]["step"].max()
    start, end = means.xs(0, level="step"), means.xs(last, level="step")
    even = even_share(settings.length)
    share = rows(tables["curves"], metric="hitter_share").groupby(["seed", "step"])["value"].mean().unstack()
    back = share[last] - share.min(axis=1)
    own, shuffled = end["cooccurrence"], end["shuffled_cooccurrence"]
    path = ", ".join(f"{step}: {value:.3f}" for step, value in share.mean().items())
    return [
        STATEMENTS["heavy_hitters.sparse"].judge(
            below(
                start["hitter_share"],
                end["hitter_share"],
                of="share of the keys",
                than="that of the untrained decoder",
                across="in every seed",
            )
            & below(even, end["hitter_share"], of="it", than="uniform attention's", across="in every seed"),
            null=float(start["hitter_share"].min()),
            null_description="untrained decoders, the smallest of the seeds",
            evidence=f"mean by step: {path}; uniform causal attention {even:.3f}; the first key receives "
            f"{end['first_key_share'].mean():.3f} of the mass, "
            f"{start['first_key_share'].mean():.3f} untrained.",
        ),
        STATEMENTS["heavy_hitters.cooccur"].judge(
            above(0.05, own, of="mean partial rank correlation", across="in every seed")
            & above(shuffled, own, of="it", than="that of shuffled tokens", across="in every seed")
            & above(
                start["cooccurrence"], own, of="it", than="the untrained decoder's", across="in every seed"
            ),
            null=float(max(shuffled.max(), start["cooccurrence"].max())),
            null_description="shuffled tokens or the untrained decoder, the larger, the largest of the seeds",
            evidence=f"trained {own.mean():.3f}, untrained {start['cooccurrence'].mean():.3f}, shuffled "
            f"tokens {shuffled.mean():.3f}.",
        ),
        STATEMENTS["heavy_hitters.monotone"].judge(
            below(RISE, back, of="rise from the lowest share to the last", across="in every seed")
            & above(RISE, share[0] - share.min(axis=1), of="fall before", across="in every seed"),
            null=float((share[0] - share.min(axis=1)).min()),
            null_description="the rise of the curves turned round in time, the smallest of the seeds",
            evidence=f"mean by step: {path}.",
        ),
    ]
