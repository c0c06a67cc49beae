"""Are more neurons than latents needed, and do neurons find latents as coupons are collected?"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, above, below, statements, within_error
from joma.experiments.beyond.over_parametrisation import OverParametrisation

CLOSE = 0.1
NULLS = ("untrained", "law", "law, equal basins")
STATEMENTS = statements(
    {
        "over_parametrisation.needed": "JoMA poster, future work | Over-parametrisation is needed: with as "
        "many neurons as latents hardly ever is every latent found, with several times as many mostly.",
        "over_parametrisation.coupons": "joma, on JoMA's poster | The probability that every latent finds a "
        "neuron is the coupon-collector's, from the basins of single neurons.",
    }
)


def claims(settings: OverParametrisation, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Both, from the tables alone."""
    table = tables["coverage"].pivot_table(index=["seed", "neurons"], columns="run", values="value")
    mean = table.groupby("neurons").mean()
    few, many = (
        table.xs(settings.neurons[0], level="neurons"),
        table.xs(settings.neurons[-1], level="neurons"),
    )
    off = (mean["trained"] - mean["law"]).abs()
    listed = ", ".join(
        f"K = {size}: {row['trained']:.2f} (" + ", ".join(f"{row[name]:.2f}" for name in NULLS) + ")"
        for size, row in mean.iterrows()
    )
    basins = tables["basins"]["value"]
    evidence = (
        f"trained ({', '.join(NULLS)}): {listed}; basins {basins.min():.2f} to {basins.max():.2f}; "
        f"{settings.seeds} seeds x {settings.networks} blocks"
    )
    of = "share of blocks that find every latent with the most neurons"
    return [
        STATEMENTS["over_parametrisation.needed"].judge(
            above(0.5, many["trained"], of=of, across="in every seed")
            & above(
                many["untrained"],
                many["trained"],
                of=of,
                than="that of untrained blocks",
                across="in every seed",
            )
            & below(0.5, few["trained"], of="the same with the fewest", across="in every seed"),
            null=float(many["untrained"].max()),
            null_description="best of K chance matches: untrained blocks of the most neurons",
            evidence=evidence,
        ),
        STATEMENTS["over_parametrisation.coupons"].judge(
            within_error(CLOSE, off, of="distance from the law, mean over seeds,", across="for every K"),
            null=float((mean["untrained"] - mean["law"]).abs().max()),
            null_description="the same distance for untrained blocks",
            evidence=evidence,
        ),
    ]
