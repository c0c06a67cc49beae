"""Does attention say which keys are needed, and does the exact change say it better?"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, above, statements
from joma.core.tables import rows
from joma.experiments.beyond.eviction import Eviction
from joma.experiments.beyond.eviction.policies import BEYOND, CHANGE, MASS, NORM, RANDOM, RECENT, SINK

STATEMENTS = statements(
    {
        "eviction.attention": "H2O (Zhang et al. 2023) | Keeping the keys that received most attention costs "
        "less than keeping random ones.",
        "eviction.recency": "StreamingLLM (Xiao et al. 2024) | Keeping the first key and the last ones "
        "costs less than keeping the last ones alone.",
        "eviction.change": "joma | Keeping the keys whose removal changes the outputs most costs less than "
        "keeping those with the most received mass.",
        "eviction.order": "joma | Beyond position, received mass orders keys as the exact change of "
        "the output does.",
    }
)
GARBAGE = {
    "eviction.attention": "the received mass of each text in the place of another position's: a random set",
    "eviction.recency": "the untrained decoder, which has no sink",
    "eviction.change": "the two policies' names exchanged",
    "eviction.order": "correlations with shuffled positions",
}
"""Claim -> what, in the place of the real thing, turns its verdict."""


def claims(settings: Eviction, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """All from the tables alone; a seed counts once."""
    trained, untrained = (
        rows(tables["regrets"], network=network).groupby(["seed", "policy"])["regret"].mean().unstack()
        for network in ("trained", "untrained")
    )
    return [
        _cheaper("eviction.attention", MASS, RANDOM, trained, untrained),
        _cheaper("eviction.recency", SINK, RECENT, trained, untrained),
        _cheaper("eviction.change", CHANGE, MASS, trained, untrained),
        _order(tables["correlations"]),
    ]


def _cheaper(name: str, one: str, other: str, trained: pd.DataFrame, untrained: pd.DataFrame) -> Claim:
    saved, null = trained[other] - trained[one], untrained[other] - untrained[one]
    means = ", ".join(f"{policy} {value:.3f}" for policy, value in trained.mean().sort_values().items())
    return STATEMENTS[name].judge(
        above(0.0, saved, of=f"regret saved on {other!r}", unit="nats", across="in every seed")
        & above(
            float(null.max()),
            float(saved.mean()),
            of="its mean",
            unit="nats",
            than="the most that any untrained decoder saves",
        ),
        null=float(null.max()),
        null_description="the same on untrained decoders, the largest of the seeds",
        evidence=f"mean regrets in nats per token over budgets and texts: {means}.",
    )


def _order(table: pd.DataFrame) -> Claim:
    beyond = rows(table, network="trained", metric=BEYOND)
    by_seed = beyond.groupby(["policy", "seed"])["value"].mean()
    means = beyond.groupby("policy")["value"].mean().sort_values(ascending=False)
    return STATEMENTS["eviction.order"].judge(
        above(0.5, by_seed[MASS], of="mean partial rank correlation", across="in every seed"),
        null=float(by_seed[NORM].max()),
        null_description="the same for keys ordered by their norm, which sees no query",
        evidence="; ".join(f"{policy} {value:.2f}" for policy, value in means.items()),
    )
