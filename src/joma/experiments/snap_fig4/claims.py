"""The fates of Theorem 2, and that growth is graded by co-occurrence."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from joma.claim import Claim, judge
from joma.experiments.snap_fig4 import SnapFig4


def claims(settings: SnapFig4, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """The fates of Theorem 2, and that growth is graded by co-occurrence."""
    tokens = tables["tokens"]
    finite = tokens["length"] < float("inf")
    common_mass = tokens[finite & (tokens["metric"] == "attention mass") & (tokens["kind"] == "common")]
    on_common = common_mass.groupby(["run", "next_token", "step"])["value"].sum().groupby("step").mean()
    ended = tokens[(tokens["metric"] == "attention logit") & (tokens["step"] == tokens["step"].max())]
    common, distinct = (ended[ended["kind"] == kind] for kind in ("common", "distinct"))
    fell = float((common[common["length"] < float("inf")]["value"] < 0).mean())
    short, limit = (distinct[distinct["length"] < float("inf")], distinct[distinct["length"] == float("inf")])
    stayed = short[short["value"] <= 0]
    order, shuffled = _rank_correlations(short, settings.seed)
    untrained = "before training (z = 0)"
    return [
        judge(
            fell == 1,
            id="snap_fig4.common_suppressed",
            source="Scan&Snap Fig. 4, Thm 2b",
            statement="Attention to common tokens is suppressed, though there are ten of them.",
            expected="z < 0 for every common token in every run",
            measured=fell,
            null=0.0,
            null_description=untrained,
            evidence=f"mean mass on them: {on_common.iloc[0]:.3f}, then {on_common.iloc[-1]:.3f}",
        ),
        judge(
            bool((limit["value"] > 0).all()),
            id="snap_fig4.distinct_rise",
            source="Scan&Snap Thm 2a",
            statement="Every distinct token's attention logit rises, in the limit T -> infinity.",
            expected="z > 0 for all of them",
            measured=float((limit["value"] > 0).mean()),
            null=0.0,
            null_description=untrained,
            evidence=f"{len(limit)} distinct tokens over all runs and classes",
        ),
        judge(
            stayed.empty,
            id="snap_fig4.distinct_rise_finite",
            source="Scan&Snap Fig. 4, Thm 2a",
            statement="Every distinct token's attention logit rises in the sequences of the figure.",
            expected="z > 0 for all of them",
            measured=float((short["value"] > 0).mean()),
            null=0.0,
            null_description=untrained,
            evidence=f"{len(stayed)} of {len(short)} do not; the commonest of these has "
            f"P(l|n) = {stayed['probability'].max():.3g}"
            if len(stayed)
            else f"{len(short)} distinct tokens over all runs and classes",
        ),
        judge(
            order > 0.9,
            id="snap_fig4.graded",
            source="Scan&Snap, winners-emergence (c)",
            statement="z_ml grows faster with larger P(l|m,n).",
            expected="mean rank correlation of z with P(l|n) over a class's distinct tokens above 0.9",
            measured=order,
            null=shuffled,
            null_description="the same with the tokens' probabilities shuffled",
        ),
    ]


def _rank_correlations(distinct: pd.DataFrame, seed: int) -> tuple[float, float]:
    """Mean Spearman correlation of z with P(l|n), by run and class; and with P shuffled.

    Logits that are all equal have no order: they count as 0.
    """
    random = np.random.default_rng([seed, 4])
    real: list[float] = []
    null: list[float] = []
    for _, part in distinct.groupby(["run", "next_token"]):
        z: np.ndarray = part["value"].to_numpy()
        probability: np.ndarray = part["probability"].to_numpy()
        for values, against in ((real, probability), (null, random.permutation(probability))):
            values.append(float(spearmanr(z, against).statistic) if np.ptp(z) > 0 else 0.0)
    return float(np.mean(real)), float(np.mean(null))
