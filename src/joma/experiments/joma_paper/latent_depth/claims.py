"""Is learning agnostic of depth, is it attention that makes it so, and what does attention do?"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from scipy.stats import t

from joma.core.claim import Claim, above, at_most, below, statements
from joma.core.tables import rows
from joma.experiments.joma_paper.latent_depth import AGAIN, DATA, MODELS, LatentDepth

SIGNIFICANT = 0.05
NEAR_BAYES = 0.1
STATEMENTS = statements(
    {
        "latent_depth.agnostic": "JoMA poster: self-attention enables hierarchy-agnostic learning | One "
        "layer of attention, with the same settings, comes close to the best possible prediction whether "
        "the latent distribution is deep or shallow.",
        "latent_depth.attention_is_needed_for_depth": "JoMA poster, Sec. 5 | Attention is what copes with "
        "depth: it beats a bag of tokens on the deep distribution, and by more than on the shallow one.",
        "latent_depth.attention_is_selective_where_data_are": "JoMA poster: m associates with l first "
        "(deep); with all alike (shallow) | Attention prefers the query's sibling in the deep distribution; "
        "in the shallow one, where the same token is no nearer than others, it does not.",
        "latent_depth.far_is_slowed": "JoMA poster: slowing down the association of tokens that are not "
        "directly correlated | Attention slows the association of far tokens relative to near ones.",
    }
)


def claims(settings: LatentDepth, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Is learning agnostic of depth, is it attention that makes it so, and what does attention do?"""
    losses, pairs = tables["losses"], tables["attention"]
    end = losses[losses["step"] == losses["step"].max()]
    last = end.set_index(["data", "model", "seed"])["value"].unstack("model")
    worst = {model: last[model].groupby("data").mean().loc[list(DATA)] for model in MODELS}
    gain = {data: last.loc[data, "bag"] - last.loc[data, "attention"] for data in (*DATA, AGAIN)}
    more, again = gain["deep"] - gain["shallow"], gain[AGAIN] - gain["shallow"]
    height = rows(pairs, model="attention").groupby(["data", "seed", "height"])["attention"].mean()
    others = 2 ** (settings.depth - 1) - 1
    sibling = height.xs(1, level="height") * others
    ratios = far_to_near(tables["growth"], settings.depth - 1)
    slower = {data: ratios.loc[data, "bag"] - ratios.loc[data, "attention"] for data in DATA}
    slowed = slower["deep"] - slower["shallow"]
    slowing = (
        "farthest over sibling association, the latter half grown, of the bag of tokens less attention's"
    )
    uncertain = "the seeds' uncertainty"
    further = "gain in excess loss on deep less that on shallow data"
    return [
        STATEMENTS["latent_depth.agnostic"].judge(
            at_most(NEAR_BAYES, worst["attention"], of="excess loss (Bayes 0, frequency 1)", across="on both")
            & above(NEAR_BAYES, worst["bag"], of="that of the bag of tokens", across="on both"),
            null=float(worst["bag"].min()),
            null_description="the bag of tokens, where it is best",
            evidence=f"deep {worst['attention']['deep']:.3f}, "
            f"shallow {worst['attention']['shallow']:.3f}; "
            f"bag {worst['bag']['deep']:.3f}, {worst['bag']['shallow']:.3f}; {settings.seeds} seeds",
        ),
        STATEMENTS["latent_depth.attention_is_needed_for_depth"].judge(
            above(_uncertainty(more), more.mean(), of=further, than=uncertain)
            & above(again.abs().max(), more.mean(), of=further, than="any between two shallow data sets")
            & above(_uncertainty(gain["deep"]), gain["deep"].mean(), of="gain on deep data", than=uncertain),
            null=float(again.abs().max()),
            null_description="the largest difference of that gain between two shallow data sets",
            evidence=f"gain {gain['deep'].mean():.3f} on deep, {gain['shallow'].mean():.3f} on shallow; "
            f"means of {settings.seeds} seeds",
        ),
        STATEMENTS["latent_depth.attention_is_selective_where_data_are"].judge(
            above(2, sibling.loc["deep"].min(), of="least attention over uniform attention, deep,")
            & below(2, sibling.loc["shallow"].max(), of="largest, shallow,"),
            measured=float(sibling.loc["deep"].mean()),
            null=float(sibling.loc["shallow"].mean()),
            null_description="the same pairs of tokens in the shallow distribution",
            evidence="attention to the sibling in units of uniform attention, mean over queries",
        ),
        STATEMENTS["latent_depth.far_is_slowed"].judge(
            above(_uncertainty(slower["deep"]), slower["deep"].mean(), of=slowing, than=uncertain)
            & above(_uncertainty(slowed), slowed.mean(), of="that less the shallow data's", than=uncertain),
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


def far_to_near(growth: pd.DataFrame, farthest: int) -> pd.DataFrame:
    """|Farthest| over sibling association at the first moment when the sibling's is half of its largest."""
    rows = {}
    for key, part in growth.groupby(["data", "seed", "model"]):
        curve = part.set_index(["step", "height"])["value"].unstack("height")
        half = curve[1] >= curve[1].max() / 2
        at = curve[half].iloc[0]
        rows[key] = float(abs(at[farthest]) / at[1])
    return pd.Series(rows).rename_axis(["data", "seed", "model"]).unstack("model")
