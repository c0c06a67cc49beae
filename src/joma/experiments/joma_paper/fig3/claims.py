"""What the caption of Fig. 3 says: who grows, who saturates, and where."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from joma.core.claim import Claim, judge
from joma.experiments.joma_paper.fig3 import ATTENTION, GROWING, Fig3

SHUFFLES = 400
"""Of Theorem 2's limits among tokens and runs."""


def claims(settings: Fig3, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Saturation, and how far Theorem 2 foretells winner and losers."""
    trained, frozen = (by_token(tables["final"], attention) for attention in ATTENTION)
    caption = "JoMA Fig. 3, caption"
    share, unattended = ((one["weight_growth"] <= GROWING).groupby("run").mean() for one in (trained, frozen))
    seeds = f"{trained.index.get_level_values('run').nunique()} seeds"
    winners = (trained["norm_growth"] > GROWING).groupby("run").sum()
    largest = trained["drive"].groupby("run").idxmax() == trained["norm"].groupby("run").idxmax()
    losers = trained[(trained["norm_growth"] <= GROWING) & np.isfinite(trained["weight_limit"])]
    order, signs, distance = _against_limits(losers)
    random = np.random.default_rng(settings.seed)
    nulls = [
        _against_limits(losers.assign(weight_limit=random.permutation(losers["weight_limit"])))
        for _ in range(SHUFFLES)
    ]
    return [
        judge(
            bool(1 > share.max() >= share.min() > 0.5 > unattended.max()),
            id="fig3.saturation",
            source=caption,
            statement="After convergence only some components of v_0 grow; the others are saturated.",
            expected=f"over half of the tokens, not all, change by under {GROWING:.0%} in the last quarter, "
            "in every run; with attention frozen in none",
            measured=float(share.min()),
            tolerance=0.5,
            null=float(unattended.max()),
            null_description="the largest share with attention frozen",
            evidence=f"smallest share of saturated components of v_0, {seeds}",
        ),
        judge(
            _sole_winner(trained) == 1,
            id="fig3.one_winner",
            source="JoMA Thm 2, remarks; Fig. 3",
            statement="One component wins, that of the largest |Delta|, and the rest stays finite.",
            expected="in every run the token of the largest |Delta| alone still grows",
            measured=_sole_winner(trained),
            tolerance=0.0,
            null=_sole_winner(frozen),
            null_description="share of such runs with attention frozen",
            evidence=f"share of {seeds}; {winners.min()} to {winners.max()} tokens still grow (|v_.l|); the "
            f"heaviest token is that of the largest |Delta| in {largest.mean():.0%} of the runs",
        ),
        judge(
            order >= 0.9 and signs >= 0.95,
            id="fig3.losers_order",
            source=caption + ", 'consistent with Theorem 2'",
            statement="The saturated components end in the order and with the signs that Theorem 2 says.",
            expected="Kendall's rank correlation with Theorem 2's limits at least 0.9 in every run, and the "
            "signs of at least 95 %",
            measured=order,
            tolerance=0.9,
            null=float(np.quantile([null[0] for null in nulls], 0.95)),
            null_description="smallest rank correlation that 1 in 20 shuffles of the limits exceeds",
            evidence=f"smallest of {seeds}, v_0 of all saturated tokens, Delta taken at the start; "
            f"{signs:.1%} of the signs",
        ),
        judge(
            distance <= 0.1,
            id="fig3.losers_limits",
            source=caption + ", 'consistent with Theorem 2'",
            statement="The saturated components end at Theorem 2's limits (corrected).",
            expected="root mean square distance from the limits at most a tenth of theirs, in every run",
            measured=distance,
            tolerance=0.1,
            null=float(np.quantile([null[2] for null in nulls], 0.05)),
            null_description="largest distance below which 1 in 20 shuffles of the limits stays",
            evidence="softmax attention and falling gradients are outside the theorem's hypotheses",
        ),
    ]


def _sole_winner(tokens: pd.DataFrame) -> float:
    """Share of the runs in which the token of the largest drive grows and no other does."""
    growing = tokens["norm_growth"] > GROWING
    driven = tokens["drive"] == tokens.groupby("run")["drive"].transform("max")
    return float((growing == driven).groupby("run").all().mean())


def _against_limits(losers: pd.DataFrame) -> tuple[float, float, float]:
    """Smallest rank correlation of a run, share of equal signs of all, largest relative distance of a run."""
    runs = [run for _, run in losers.groupby("run")]
    order = min(float(kendalltau(run["weight"], run["weight_limit"]).statistic) for run in runs)
    signs = float((np.sign(losers["weight"]) == np.sign(losers["weight_limit"])).mean())
    distance = max(
        float(np.linalg.norm(run["weight"] - run["weight_limit"]) / np.linalg.norm(run["weight_limit"]))
        for run in runs
    )
    return order, signs, distance


def by_token(final: pd.DataFrame, attention: str) -> pd.DataFrame:
    """One row per run and token, one column per metric."""
    chosen = final[final["attention"] == attention]
    return chosen.pivot_table(index=["run", "token"], columns="metric", values="value", dropna=False)
