"""What faster attention does to dip and rebound, against equal rates and against a faster training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import mannwhitneyu, page_trend_test

from joma.core.claim import Claim, Statement, above, below, statements, within_error
from joma.core.tables import rows
from joma.experiments.beyond.attention_rate import EARLY, AttentionRate, all_name, attention_name

SIGNIFICANT = 0.05
PROPORTIONAL = 0.25
SOURCE = "JoMA Thm 1, Eq. 6, corrected (kappa = eta_z/eta_w)"
STATEMENTS = statements(
    {
        "attention_rate.rebound": f"{SOURCE} | The faster W_Q and W_K learn beside all else, the further the "
        "top layer's attention entropy rises again after its dip.",
        "attention_rate.dip": f"{SOURCE} | The faster W_Q and W_K learn beside all else, the further the top "
        "layer's attention entropy falls.",
        "attention_rate.not_the_rate": "joma (control) | W_Q and W_K that learn faster make the entropy rise "
        "further than all weights do that learn as much faster.",
        "attention_rate.kappa": "JoMA Thm 1 | kappa, the slope of the attention logits over half the sum of "
        "the squared weights, is proportional to eta_z/eta_w early in the training.",
    }
)


def claims(settings: AttentionRate, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """The trend of rebound and dip over the ratios, the control, and kappa; of every depth."""
    bounces = tables["bounces"]
    tops = rows(bounces[bounces["layer"] == bounces["depth"] - 1], metric="attention_entropy")
    return [
        _trend(settings, tops, "rebound", STATEMENTS["attention_rate.rebound"]),
        _trend(settings, tops, "depth_of_dip", STATEMENTS["attention_rate.dip"]),
        _not_the_rate(settings, tops),
        _kappa(settings, tables["curves"]),
    ]


def _reason_against(settings: AttentionRate) -> str:
    """Why nothing can be said of these ratios; empty where something can."""
    if 1.0 in settings.ratios and len(settings.ratios) >= 3:
        return ""
    return f"ratios {settings.ratios}: it needs three, one of them 1, the null of equal rates"


def _sizes(tops: pd.DataFrame, column: str, variants: list[str]) -> pd.DataFrame:
    """A row per depth and seed, a column per variant."""
    return tops.pivot_table(index=["depth", "seed"], columns="variant", values=column)[variants]


def _trend(settings: AttentionRate, tops: pd.DataFrame, column: str, statement: Statement) -> Claim:
    if reason := _reason_against(settings):
        return statement.not_tested(reason)
    sizes = _sizes(tops, column, [attention_name(ratio) for ratio in settings.ratios])
    depths = list(sizes.groupby("depth"))
    chances = [float(page_trend_test(one.to_numpy()).pvalue) for _, one in depths]
    medians = pd.DataFrame({depth: one.median() for depth, one in depths})
    of = "rebound" if column == "rebound" else "depth of the dip"
    equal, fastest = medians.loc[attention_name(1.0)], medians.iloc[-1]
    worst = (fastest - equal).idxmin()
    return statement.judge(
        below(
            SIGNIFICANT,
            chances,
            of=f"exact p of Page's trend of the {of} over the ratios, seed by seed,",
            across="at every depth",
        )
        & above(
            medians.iloc[:-1].to_numpy().ravel(),
            medians.iloc[1:].to_numpy().ravel(),
            of=f"median {of} at a ratio",
            than="that at the next smaller one",
            across="at every ratio",
            unit="nats",
        ),
        measured=float(fastest[worst]),
        null=float(equal[worst]),
        null_description=f"median {of} at equal rates",
        evidence=f"nats, {sizes.groupby('depth').size().min()} seeds, p {max(chances):.2g}: "
        + "; ".join(f"{depth} layers: {_list_sizes(settings, one)}" for depth, one in depths)
        + _noise(tops, column),
    )


def _list_sizes(settings: AttentionRate, sizes: pd.DataFrame) -> str:
    return ", ".join(
        f"x {ratio:g}: {column.median():.3f} ({column.min():.3f} to {column.max():.3f})"
        for ratio, (_, column) in zip(settings.ratios, sizes.items(), strict=True)
    )


def _noise(tops: pd.DataFrame, column: str) -> str:
    if column != "rebound":
        return ""
    null = tops.groupby("variant")["rebound_null"].max()
    return f"; noise alone: a mean of {null.max():.3f} at most, once in twenty"


def _not_the_rate(settings: AttentionRate, tops: pd.DataFrame) -> Claim:
    statement = STATEMENTS["attention_rate.not_the_rate"]
    if settings.control not in settings.ratios:
        return statement.not_tested(f"control = {settings.control:g} is none of the ratios")
    ours, control = attention_name(settings.control), all_name(settings.control)
    found = []
    for _, one in _sizes(tops, "rebound", [ours, control]).groupby("depth"):
        chance = mannwhitneyu(one[ours], one[control], alternative="greater", method="exact").pvalue
        found.append((float(chance), float(one[ours].median()), float(one[control].median())))
    worst = max(found)
    return statement.judge(
        below(
            SIGNIFICANT,
            [chance for chance, _, _ in found],
            of="exact p of the ranks of the rebounds",
            across="at every depth",
        ),
        measured=worst[1],
        null=worst[2],
        null_description=f"median rebound where all learns {settings.control:g} times as fast",
        evidence=f"medians in nats; exact p {worst[0]:.2g}",
    )


def _kappa(settings: AttentionRate, curves: pd.DataFrame) -> Claim:
    statement = STATEMENTS["attention_rate.kappa"]
    if reason := _reason_against(settings):
        return statement.not_tested(reason)
    top = curves[(curves["layer"] == curves["depth"] - 1) & curves["step"].isin(EARLY)]
    names = [attention_name(ratio) for ratio in settings.ratios]
    kappa, share = (
        rows(top, metric=metric).pivot_table(
            index=["depth", "seed", "step"], columns="variant", values="value"
        )[names]
        for metric in ("kappa", "kappa_share")
    )
    equal = kappa[attention_name(1.0)]
    seen = equal.groupby("step").median()
    step = int(seen.idxmax())
    if seen[step] <= 0:
        return statement.not_tested("kappa is not positive at equal rates, at any early step")
    at = kappa.xs(step, level="step")
    growth = at.div(at[attention_name(1.0)], axis=0)
    growth = growth[at[attention_name(1.0)] > 0].median()
    others = [name for ratio, name in zip(settings.ratios, names, strict=True) if ratio != 1.0]
    wanted = np.array([ratio for ratio in settings.ratios if ratio != 1.0])
    error = (growth[others] / wanted - 1).abs()
    return statement.judge(
        within_error(
            PROPORTIONAL,
            error,
            of="relative error of kappa over that at equal rates, median over seeds,",
            across="at every other ratio",
        ),
        null=float(np.abs(1 / wanted - 1).max()),
        null_description="the same if kappa did not depend on the rates",
        evidence=f"step {step}, where kappa at equal rates is largest ({seen[step]:.3g}): times "
        + ", ".join(f"{growth[name]:.3g} at x {ratio:g}" for ratio, name in zip(wanted, others, strict=True))
        + f"; it accounts for {share.xs(step, level='step').min().min():.0%} to "
        f"{share.xs(step, level='step').max().max():.0%} of the logits' variance there",
    )


def answer(settings: AttentionRate, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """Whether faster attention bounces deeper, beside what the control does."""
    found = {claim.id.partition(".")[2]: claim for claim in claims(settings, tables)}
    rebound, control = found["rebound"], found["not_the_rate"]
    if rebound.measured is None or rebound.null is None:
        return [f"Nothing can be said: {rebound.evidence}."]
    said = (
        "rises again further the faster W_Q and W_K learn"
        if rebound.verdict == "holds"
        else ("does not rise again further the faster W_Q and W_K learn, as JoMA's law would have it")
    )
    answers = [
        f"Attention's entropy {said}: by {rebound.measured:.2f} nats at a ratio of {settings.ratios[-1]:g}, "
        f"by {rebound.null:.2f} at equal rates (medians of {settings.seeds} seeds)."
    ]
    if control.measured is not None and control.null is not None:
        answers.append(
            f"At a ratio of {settings.control:g} it rises by {control.measured:.2f}; where all learns that "
            f"much faster, by {control.null:.2f}."
        )
    return answers
