"""What the caption of Fig. 3 says: who grows, who saturates, and where."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from joma.core.claim import Claim, above, at_least, at_most, below, equal, statements
from joma.core.tables import rows
from joma.experiments.joma_paper.fig3 import ATTENTION, GROWING, Fig3

SHUFFLES = 400
"""Of Theorem 2's limits among tokens and runs."""

STATEMENTS = statements(
    {
        "fig3.one_winner": "JoMA Thm 2, remarks; Fig. 3 | One component wins, that of the largest |Delta|, "
        "and the rest stays finite.",
        "fig3.saturation": "JoMA Fig. 3, caption | After convergence only some components of v_0 grow; the "
        "others are saturated.",
        "fig3.losers_order": "JoMA Fig. 3, caption, 'consistent with Theorem 2' | The saturated components "
        "end in the order and with the signs that Theorem 2 says.",
        "fig3.losers_limits": "JoMA Fig. 3, caption, 'consistent with Theorem 2' | The saturated components "
        "end at Theorem 2's limits (corrected).",
    }
)


def claims(settings: Fig3, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Saturation, and how far Theorem 2 foretells winner and losers."""
    trained, frozen = (by_token(tables["final"], attention) for attention in ATTENTION)
    saturated = f"share of the tokens that change by under {GROWING:.0%} in the last quarter"
    share, unattended = ((one["weight_growth"] <= GROWING).groupby("run").mean() for one in (trained, frozen))
    seeds = f"{trained.index.get_level_values('run').nunique()} seeds"
    winners = (trained["norm_growth"] > GROWING).groupby("run").sum()
    largest = trained["drive"].groupby("run").idxmax() == trained["norm"].groupby("run").idxmax()
    losers = trained[(trained["norm_growth"] <= GROWING) & np.isfinite(trained["weight_limit"])]
    order, signs, distance = _against_limits(losers)
    random = np.random.default_rng(settings.seed)
    nulls = [
        _against_limits(
            losers.assign(weight_limit=random.permutation(losers["weight_limit"].to_numpy(copy=True)))
        )
        for _ in range(SHUFFLES)
    ]
    return [
        STATEMENTS["fig3.saturation"].judge(
            above(0.5, share, of=saturated, across="in every run")
            & below(1, share, of=saturated, across="in every run")
            & below(0.5, unattended, of="that share with attention frozen", across="in every run"),
            null=unattended.max(),
            null_description="the largest share with attention frozen",
            evidence=f"smallest share of saturated components of v_0, {seeds}",
        ),
        STATEMENTS["fig3.one_winner"].judge(
            equal(
                1,
                _sole_winner(trained),
                of="share of the runs in which the token of the largest |Delta| alone still grows",
            ),
            null=_sole_winner(frozen),
            null_description="share of such runs with attention frozen",
            evidence=f"share of {seeds}; {winners.min()} to {winners.max()} tokens still grow (|v_.l|); the "
            f"heaviest token is that of the largest |Delta| in {largest.mean():.0%} of the runs",
        ),
        STATEMENTS["fig3.losers_order"].judge(
            at_least(
                0.9, order, of="Kendall's rank correlation with Theorem 2's limits", across="in every run"
            )
            & at_least(0.95, signs, of="share of the signs that agree"),
            null=np.quantile([null[0] for null in nulls], 0.95),
            null_description="smallest rank correlation that 1 in 20 shuffles of the limits exceeds",
            evidence=f"smallest of {seeds}, v_0 of all saturated tokens, Delta taken at the start; "
            f"{signs:.1%} of the signs",
        ),
        STATEMENTS["fig3.losers_limits"].judge(
            at_most(
                0.1,
                distance,
                of="root mean square distance from the limits, in units of theirs,",
                across="in every run",
            ),
            null=np.quantile([null[2] for null in nulls], 0.05),
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
    """Smallest rank correlation of a run, share of equal signs of all, largest relative distance of a run.

    NaN where no token is a loser.
    """
    if losers.empty:
        return np.nan, np.nan, np.nan
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
    chosen = rows(final, attention=attention)
    return chosen.pivot_table(index=["run", "token"], columns="metric", values="value", dropna=False)
