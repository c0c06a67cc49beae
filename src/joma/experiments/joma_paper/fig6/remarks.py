"""What the paper says in passing of decoders such as Fig. 6's, each as a number."""

from __future__ import annotations

import numpy as np
import pandas as pd

from joma.checks.block_rank import FIGURE_4
from joma.core.arguments import Array
from joma.core.claim import Claim, Facts, judge, not_tested
from joma.theory import salience
from joma.theory.block_salience import entropy as entropy_of

RESEMBLES = 0.8
MANY = 0.1


def remarks(top: pd.DataFrame, curves: pd.DataFrame) -> list[Claim]:
    """``top``: dips and rebounds of the top layers; ``curves``: all measurements."""
    return [resembles_figure_4(top, curves), rank_is_more_reliable(top), neurons_correlate(curves)]


def resembles_figure_4(top: pd.DataFrame, curves: pd.DataFrame) -> Claim:
    """The course of the one-layer decoders beside Fig. 4's Eq. 6, stretched so that their dips coincide."""
    facts: Facts = {
        "id": "fig6.resembles_fig4",
        "source": "JoMA Sec. 5.1 (the 1-layer curve resembles Fig. 4)",
        "statement": "the entropy of a one-layer decoder takes the course of Fig. 4's (Eq. 6)",
    }
    single = top[(top["depth"] == 1) & (top["metric"] == "attention_entropy")]
    if single.empty:
        return not_tested(**facts, reason="no decoder of one layer was trained (setting layers)")
    times = np.geomspace(1e-3, 20.0, 4000)
    course = entropy_of(0.5 * np.square(salience.solve(np.array(FIGURE_4), times).v))
    falls = np.minimum.accumulate(course)
    dip = times[course.argmin()]
    found, nulls = [], []
    for _, run in single.iterrows():
        part = curves[(curves["run"] == run["run"]) & (curves["metric"] == "attention_entropy")]
        curve = part.groupby("step")["value"].mean()
        at = curve.index.to_numpy() * (dip / max(float(run["dip_step"]), 1.0))
        found.append(_correlation(curve.to_numpy(), np.interp(at, times, course)))
        nulls.append(_correlation(curve.to_numpy(), np.interp(at, times, falls)))
    return judge(
        min(found) >= RESEMBLES and bool((np.array(found) > nulls).all()),
        **facts,
        expected=f"correlation of at least {RESEMBLES:g}, and above the null, in every run",
        measured=min(found),
        tolerance=RESEMBLES,
        null=max(nulls),
        null_description="correlation with the same curve without its rebound, largest",
        evidence=f"{len(found)} runs, time stretched so that the dips coincide: "
        + ", ".join(f"{value:.3f} ({null:.3f})" for value, null in zip(found, nulls, strict=True)),
    )


def _correlation(first: Array, second: Array) -> float:
    if not first.std() or not second.std():
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def rank_is_more_reliable(top: pd.DataFrame) -> Claim:
    """Noise of the curves in units of their fall."""
    share = (top["noise"] / top["depth_of_dip"].clip(lower=1e-12)).groupby([top["run"], top["metric"]]).mean()
    table = share.unstack("metric")
    facts: Facts = {
        "id": "fig6.rank_is_more_reliable",
        "source": "JoMA Sec. 5.1, 'stable ranks ... may be more reliable than attention sparsity'",
        "statement": "the stable rank of the lower MLP tells its fall with less noise than the entropy does",
    }
    if "stable_rank" not in table:
        return not_tested(**facts, reason="the curves hold no stable rank")
    rank, entropy = table["stable_rank"], table["attention_entropy"]
    return judge(
        bool((rank < entropy).all()),
        **facts,
        expected="noise over depth of the fall smaller for the rank, in every run",
        measured=float(rank.max()),
        null=float(entropy.min()),
        null_description="the same of the attention entropy, least",
        evidence=f"top layers of {len(table)} runs; rank {rank.min():.2g} to {rank.max():.2g}, entropy "
        f"{entropy.min():.2g} to {entropy.max():.2g}",
    )


def neurons_correlate(curves: pd.DataFrame) -> Claim:
    """Whether what hidden neurons write is highly correlated."""
    facts: Facts = {
        "id": "fig6.neurons_correlate",
        "source": "JoMA Sec. 6, '4d hidden neurons ... many of their embeddings are highly correlated'",
        "statement": "what many hidden neurons write is highly correlated with what another one writes",
    }
    shares = curves[curves["metric"] == "correlated_neurons"]
    if shares.empty:
        return not_tested(**facts, reason="the curves do not hold it")
    by_layer = shares.pivot_table(index="step", columns=["run", "layer"], values="value")
    half = curves[curves["metric"] == "nearest_neuron"].pivot_table(
        index="step", columns=["run", "layer"], values="value"
    )
    return judge(
        bool(by_layer.iloc[-1].min() >= MANY),
        **facts,
        expected=f"at least {MANY:.0%} of the neurons have another with |cosine| above 0.8, in every run and "
        "layer",
        measured=float(by_layer.iloc[-1].min()),
        tolerance=MANY,
        null=float(by_layer.iloc[0].max()),
        null_description="untrained",
        evidence=f"columns of the upper MLP at the end; |cosine| with the nearest other, median "
        f"{half.iloc[-1].min():.2f} to {half.iloc[-1].max():.2f}, untrained {half.iloc[0].max():.2f}",
    )
