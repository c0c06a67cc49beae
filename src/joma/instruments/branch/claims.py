"""What the branches did, in sentences: a user's own training has no statements of the papers to judge."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim
from joma.core.tables import rows
from joma.instruments.branch import TWIN, BranchSettings


def claims(settings: BranchSettings, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """None."""
    return []


def answer(settings: BranchSettings, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """The loss of each branch at its last step, less its twin's."""
    loss = rows(tables["differences"], metric="loss")
    last = loss[loss["step"] == loss["step"].max()]
    said = ", ".join(
        f"{row.branch} {row.value:+.4g}"
        + (f" [{row.low:+.4g}, {row.high:+.4g}]" if row.low == row.low else "")
        for row in last.itertuples()
    )
    spread = last["twin_spread"].iloc[0]
    beside = f" Twins in another order of the batches differ by {spread:.2g}." if spread == spread else ""
    found = [
        f"After {settings.steps} steps from step {settings.at} the loss differs from the twin's, over "
        f"{settings.seeds} seed{'s' if settings.seeds > 1 else ''}, by: {said}.{beside}"
    ]
    if settings.seeds > 1 and same_for_all_seeds(tables["curves"]):
        found.append(
            f"The {settings.seeds} seeds gave one and the same training, so that there is no interval; let "
            "make() draw from PyTorch's random numbers without seeding them."
        )
    return found


def same_for_all_seeds(curves: pd.DataFrame) -> bool:
    """Whether the twins of all seeds have the same values, bit for bit."""
    twins = rows(curves, branch=TWIN, order=0)
    by_seed = twins.pivot(index=["step", "metric"], columns="run", values="value").to_numpy()
    return bool((by_seed == by_seed[:, :1]).all())
