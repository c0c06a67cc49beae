"""Is learning agnostic of depth, is it attention that makes it so, and what does attention do?"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from scipy.stats import t

from joma.core.claim import Claim, judge
from joma.experiments.joma_paper.latent_depth import AGAIN, DATA, MODELS, LatentDepth

SIGNIFICANT = 0.05


NEAR_BAYES = 0.1


def claims(settings: LatentDepth, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Is learning agnostic of depth, is it attention that makes it so, and what does attention do?"""
    losses, pairs = tables["losses"], tables["attention"]
    end = losses[losses["step"] == losses["step"].max()]
    last = end.set_index(["data", "model", "seed"])["value"].unstack("model")
    worst = {model: last[model].groupby("data").mean().loc[list(DATA)] for model in MODELS}
    gain = {data: last.loc[data, "bag"] - last.loc[data, "attention"] for data in (*DATA, AGAIN)}
    more, again = gain["deep"] - gain["shallow"], gain[AGAIN] - gain["shallow"]
    height = pairs[pairs["model"] == "attention"].groupby(["data", "seed", "height"])["attention"].mean()
    others = 2 ** (settings.depth - 1) - 1
    sibling = height.xs(1, level="height") * others
    ratios = _far_to_near(tables["growth"], settings.depth - 1)
    slower = {data: ratios.loc[data, "bag"] - ratios.loc[data, "attention"] for data in DATA}
    slowed = slower["deep"] - slower["shallow"]
    return [
        judge(
            bool(worst["attention"].max() <= NEAR_BAYES < worst["bag"].min()),
            id="latent_depth.agnostic",
            source="JoMA poster: self-attention enables hierarchy-agnostic learning",
            statement="One layer of attention, with the same settings, comes close to the best possible "
            "prediction whether the latent distribution is deep or shallow.",
            expected=f"excess loss at most {NEAR_BAYES} (0: Bayes, 1: frequency alone) on both; more for "
            "the bag",
            measured=float(worst["attention"].max()),
            tolerance=NEAR_BAYES,
            null=float(worst["bag"].min()),
            null_description="the bag of tokens, where it is best",
            evidence=f"deep {worst['attention']['deep']:.3f}, "
            f"shallow {worst['attention']['shallow']:.3f}; "
            f"bag {worst['bag']['deep']:.3f}, {worst['bag']['shallow']:.3f}; {settings.seeds} seeds",
        ),
        judge(
            bool(
                gain["deep"].mean() > _uncertainty(gain["deep"])
                and more.mean() > max(_uncertainty(more), again.abs().max())
            ),
            id="latent_depth.attention_is_needed_for_depth",
            source="JoMA poster, Sec. 5",
            statement="Attention is what copes with depth: it beats a bag of tokens on the deep "
            "distribution, and by more than on the shallow one.",
            expected="a gain in excess loss on deep data, larger than that on shallow data by more than "
            "the seeds' uncertainty and than the null",
            measured=float(more.mean()),
            tolerance=_uncertainty(more),
            null=float(again.abs().max()),
            null_description="the largest difference of that gain between two shallow data sets",
            evidence=f"gain {gain['deep'].mean():.3f} on deep, {gain['shallow'].mean():.3f} on shallow; "
            f"means of {settings.seeds} seeds",
        ),
        judge(
            bool(sibling.loc["deep"].min() > 2 > sibling.loc["shallow"].max()),
            id="latent_depth.attention_is_selective_where_data_are",
            source="JoMA poster: m associates with l first (deep); with all alike (shallow)",
            statement="Attention prefers the query's sibling in the deep distribution; in the shallow "
            "one, where the same token is no nearer than others, it does not.",
            expected="more than twice the uniform attention for the sibling (deep), less (shallow)",
            measured=float(sibling.loc["deep"].mean()),
            tolerance=2.0,
            null=float(sibling.loc["shallow"].mean()),
            null_description="the same pairs of tokens in the shallow distribution",
            evidence="attention to the sibling in units of uniform attention, mean over queries",
        ),
        judge(
            bool(
                slower["deep"].mean() > _uncertainty(slower["deep"]) and slowed.mean() > _uncertainty(slowed)
            ),
            id="latent_depth.far_is_slowed",
            source="JoMA poster: slowing down the association of tokens that are not directly correlated",
            statement="Attention slows the association of far tokens relative to near ones.",
            expected="farthest over sibling association, when the latter is half grown, lower than in "
            "the bag of tokens by more than the seeds' uncertainty, and by more than in the shallow "
            "distribution",
            measured=float(slower["deep"].mean()),
            tolerance=_uncertainty(slower["deep"]),
            null=float(slower["shallow"].mean()),
            null_description="the same pairs of tokens in the shallow distribution",
            evidence=f"ratio {ratios.loc['deep', 'attention'].mean():.3f} with attention, "
            f"{ratios.loc['deep', 'bag'].mean():.3f} in the bag; shallow "
            f"{ratios.loc['shallow', 'attention'].mean():.3f}, {ratios.loc['shallow', 'bag'].mean():.3f}",
        ),
    ]


def _uncertainty(values: pd.Series) -> float:
    """Half of the one-sided 95 % interval of a mean over seeds (Student's t)."""
    return float(t.isf(SIGNIFICANT, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)


def _far_to_near(growth: pd.DataFrame, farthest: int) -> pd.DataFrame:
    """|Farthest| over sibling association at the first moment when the sibling's is half of its largest."""
    rows = {}
    for key, part in growth.groupby(["data", "seed", "model"]):
        curve = part.set_index(["step", "height"])["value"].unstack("height")
        half = curve[1] >= curve[1].max() / 2
        at = curve[half].iloc[0]
        rows[key] = float(abs(at[farthest]) / at[1])
    return pd.Series(rows).rename_axis(["data", "seed", "model"]).unstack("model")
