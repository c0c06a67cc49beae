"""Is what a token needs its own?"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, above, statements
from joma.core.tables import rows
from joma.experiments.beyond.contextual_sparsity import ContextualSparsity

KINDS = ("heads", "neurons")
STATEMENTS = statements(
    {
        f"contextual_sparsity.{kind}": f"Deja Vu (Liu et al. 2023) | With {kind} of its own a token's loss "
        "rises less than with as many that are the same for all tokens, the more so after training."
        for kind in KINDS
    }
)
GARBAGE = {f"contextual_sparsity.{kind}": "random sets in the place of the tokens' own" for kind in KINDS}
"""Claim -> what, in the place of the real thing, turns its verdict."""


def claims(settings: ContextualSparsity, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """One a kind; a seed counts once."""
    found = []
    for kind in KINDS:
        part = rows(tables["sets"], kind=kind)
        rise = part.pivot_table(index=["network", "seed"], columns="choice", values="loss_rise")
        gain = rise["static"] - rise["own"]
        kept = rows(part, choice="own").groupby("network")["share_kept"].mean()
        found.append(
            STATEMENTS[f"contextual_sparsity.{kind}"].judge(
                above(0.0, gain["trained"], of="loss saved by own sets", unit="nats", across="in every seed")
                & above(
                    gain["untrained"],
                    gain["trained"],
                    of="it",
                    unit="nats",
                    than="that of the untrained decoder",
                    across="in every seed",
                ),
                null=float(gain["untrained"].max()),
                null_description="the same in untrained decoders, the largest of the seeds",
                evidence=f"share kept: {kept['trained']:.3f} trained, {kept['untrained']:.3f} untrained "
                "(upper bounds); rises when trained: "
                + ", ".join(f"{name} {value:.4f}" for name, value in rise.loc["trained"].mean().items()),
            )
        )
    return found
