"""What the caption of Fig. 3 says: who grows, who saturates, and where."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from joma.claim import Claim, judge
from joma.experiments.fig3 import ATTENTION, GROWING, Fig3


def claims(settings: Fig3, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Saturation, and how far Theorem 2 foretells winner and losers."""
    trained, frozen = (by_token(tables["final"], attention) for attention in ATTENTION)
    caption = "JoMA Fig. 3, caption"
    growing = trained["norm_growth"] > GROWING
    node_growing = trained["weight_growth"] > GROWING
    # The winner has the largest drive; in each run, the tokens that still grow, against it alone.
    largest = trained["drive"] == trained.groupby("run")["drive"].transform("max")
    heaviest = trained["norm"] == trained.groupby("run")["norm"].transform("max")
    found = float((largest & heaviest).groupby("run").any().mean())
    winners = float(growing.groupby("run").sum().median())
    losers = trained[~growing & np.isfinite(trained["weight_limit"])]
    runs = trained.index.get_level_values("run").nunique()
    seeds = f"{runs} seeds"
    shuffled = losers["weight_limit"].sample(frac=1, random_state=0).to_numpy()
    correlation = float(np.corrcoef(losers["weight"], losers["weight_limit"])[0, 1])
    slope = float((losers["weight"] * losers["weight_limit"]).sum() / (losers["weight_limit"] ** 2).sum())
    return [
        judge(
            bool(node_growing.any()) and float((~node_growing).mean()) > 0.5,
            id="fig3.saturation",
            source=caption,
            statement="After convergence only some components of v_0 grow; the others are saturated.",
            expected=f"over half of the tokens, not all, change by under {GROWING:.0%} in the last quarter",
            measured=float((~node_growing).mean()),
            tolerance=0.5,
            null=float((frozen["weight_growth"] <= GROWING).mean()),
            null_description="the same share with attention frozen",
            evidence=f"share of saturated components of v_0, {seeds}",
        ),
        judge(
            winners == 1,
            id="fig3.one_winner",
            source="JoMA Thm 2, remarks; Fig. 3",
            statement="One component wins, that of the largest |Delta|, and the rest stays finite.",
            expected="1 growing token",
            measured=winners,
            tolerance=0.0,
            null=float((frozen["norm_growth"] > GROWING).groupby("run").sum().median()),
            null_description="growing tokens with attention frozen",
            evidence=f"median number of tokens whose |v_.l| still grows, {seeds}; the heaviest token has the "
            f"largest |Delta| in {found:.0%} of the runs",
        ),
        judge(
            correlation > 0.9,
            id="fig3.losers_order",
            source=caption + ", 'consistent with Theorem 2'",
            statement="The saturated components end in the order and with the signs that Theorem 2 says.",
            expected="correlation with Theorem 2's limits above 0.9",
            measured=correlation,
            tolerance=0.9,
            null=float(np.corrcoef(losers["weight"], shuffled)[0, 1]),
            null_description="limits shuffled among tokens and runs",
            evidence=f"v_0 of all saturated tokens, {seeds}, Delta taken at the start",
        ),
        judge(
            abs(slope - 1) < 0.1,
            id="fig3.losers_limits",
            source=caption + ", 'consistent with Theorem 2'",
            statement="The saturated components end at Theorem 2's limits (corrected).",
            expected="slope against the limits 1 within 0.1",
            measured=slope,
            tolerance=0.1,
            evidence="least squares through the origin; softmax attention and falling gradients are outside "
            "the theorem's hypotheses",
        ),
    ]


def by_token(final: pd.DataFrame, attention: str) -> pd.DataFrame:
    """One row per run and token, one column per metric."""
    chosen = final[final["attention"] == attention]
    return chosen.pivot_table(index=["run", "token"], columns="metric", values="value", dropna=False)
