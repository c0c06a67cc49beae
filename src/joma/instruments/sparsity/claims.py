"""Do tokens need sets of their own?"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, above, below, statements
from joma.instruments.sparsity import SparsitySettings

STATEMENTS = statements(
    {
        f"sparsity.{kind}": f"Deja Vu (Liu et al. 2023) | Sparsity is contextual: with {kind} of its own a "
        "token's loss rises less than with as many that are the same for all tokens."
        for kind in ("heads", "neurons")
    }
)


def claims(settings: SparsitySettings, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """One a kind; the text's own tokens decide, the random set is the null."""
    sets = tables["sets"].set_index(["kind", "choice"])
    found = []
    for kind in ("heads", "neurons"):
        rise, share = sets.loc[kind]["loss_rise"], sets.loc[kind]["share_kept"]
        found.append(
            STATEMENTS[f"sparsity.{kind}"].judge(
                above(
                    rise["own"],
                    rise["static"],
                    of="rise of the mean loss with the static set",
                    unit="nats",
                    than="that with the tokens' own",
                )
                & below(1.0, share["own"], of="share of the units kept"),
                null=float(rise["random"]),
                null_description="the rise with random sets of the same sizes",
                evidence=", ".join(f"{choice} {value:.4f}" for choice, value in rise.items()),
            )
        )
    return found


def answer(settings: SparsitySettings, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """A sentence a kind: the share that a token needs, and what a static set of that size costs."""
    sets = tables["sets"].set_index(["kind", "choice"])
    found = []
    for kind in ("heads", "neurons"):
        own, static = sets.loc[(kind, "own")], sets.loc[(kind, "static")]
        found.append(
            f"On average a token needs at most {own['share_kept']:.1%} of the {kind} for its loss to rise "
            f"by no more than {settings.epsilon:g} nats; with these sets the mean loss changes by "
            f"{own['loss_rise']:+.4f} nats, with a static set of that size by {static['loss_rise']:+.4f}."
        )
    return found
