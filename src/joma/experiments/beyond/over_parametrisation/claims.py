"""Are more neurons than latents needed, and do neurons find latents as coupons are collected?"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, judge
from joma.experiments.beyond.over_parametrisation import OverParametrisation

CLOSE = 0.1
NULLS = ("untrained", "law", "law, equal basins")


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
    return [
        judge(
            bool(
                few["trained"].max() < 0.5 < many["trained"].min()
                and (many["trained"] > many["untrained"]).all()
            ),
            id="over_parametrisation.needed",
            source="JoMA poster, future work",
            statement="Over-parametrisation is needed: with as many neurons as latents hardly ever is every "
            "latent found, with several times as many mostly.",
            expected="below one half with the fewest, above it with the most neurons, in every seed; more "
            "than by chance",
            measured=float(many["trained"].min()),
            tolerance=0.5,
            null=float(many["untrained"].max()),
            null_description="best of K chance matches: untrained blocks of the most neurons",
            evidence=evidence,
        ),
        judge(
            bool(off.max() <= CLOSE),
            id="over_parametrisation.coupons",
            source="joma, on JoMA's poster",
            statement="The probability that every latent finds a neuron is the coupon-collector's, from the "
            "basins of single neurons.",
            expected=f"within {CLOSE:g} for every K, mean over seeds",
            measured=float(off.max()),
            tolerance=CLOSE,
            null=float((mean["untrained"] - mean["law"]).abs().max()),
            null_description="the same distance for untrained blocks",
            evidence=evidence,
        ),
    ]
