"""What the paper says in passing of decoders such as Fig. 6's, each as a number."""

from __future__ import annotations

import numpy as np
import pandas as pd

from joma.checks.block_rank import FIGURE_4
from joma.core.arguments import Array
from joma.core.claim import Claim, above, at_least, below, statements
from joma.core.tables import rows
from joma.experiments.shared.curves import REAL
from joma.theory import salience
from joma.theory.block_salience import entropy as entropy_of

ENTROPY = "attention_entropy"
RESEMBLES = 0.8
MANY = 0.1

STATEMENTS = statements(
    {
        "fig6.resembles_fig4": "JoMA Sec. 5.1 (the 1-layer curve resembles Fig. 4) | the entropy of a "
        "one-layer decoder takes the course of Fig. 4's (Eq. 6)",
        "fig6.rank_is_more_reliable": "JoMA Sec. 5.1, 'stable ranks ... may be more reliable than attention "
        "sparsity' | the stable rank of the lower MLP tells its fall with less noise than the entropy does, "
        "and tells runs from their nulls (shuffled words, W_Q and W_K left alone) further apart",
        "fig6.neurons_correlate": "JoMA Sec. 6, '4d hidden neurons ... many of their embeddings are highly "
        "correlated' | what many hidden neurons write is highly correlated with what another one writes",
    }
)


def remarks(top: pd.DataFrame, curves: pd.DataFrame) -> list[Claim]:
    """``top``: dips and rebounds of the top layers, of the nulls too; ``curves``: all measurements."""
    return [resembles_figure_4(top, curves), rank_is_more_reliable(top), neurons_correlate(curves)]


def resembles_figure_4(top: pd.DataFrame, curves: pd.DataFrame) -> Claim:
    """The course of the one-layer decoders beside Fig. 4's Eq. 6, stretched so that their dips coincide."""
    statement = STATEMENTS["fig6.resembles_fig4"]
    single = rows(top, depth=1, metric=ENTROPY, variant=REAL)
    if single.empty:
        return statement.not_tested("no decoder of one layer was trained (setting layers)")
    times = np.geomspace(1e-3, 20.0, 4000)
    course = entropy_of(0.5 * np.square(salience.solve(np.array(FIGURE_4), times).v))
    falls = np.minimum.accumulate(course)
    dip = times[course.argmin()]
    found, nulls = [], []
    for _, run in single.iterrows():
        part = rows(curves, run=run["run"], metric="attention_entropy")
        curve = part.groupby("step")["value"].mean()
        at = curve.index.to_numpy() * (dip / max(float(run["dip_step"]), 1.0))
        found.append(_correlation(curve.to_numpy(), np.interp(at, times, course)))
        nulls.append(_correlation(curve.to_numpy(), np.interp(at, times, falls)))
    return statement.judge(
        at_least(RESEMBLES, found, of="correlation", across="in every run")
        & above(nulls, found, of="correlation", than="the null", across="in every run"),
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
    """Noise of the curves in units of their fall, and how far apart both tell runs and their nulls."""
    statement = STATEMENTS["fig6.rank_is_more_reliable"]
    everything, top = top, rows(top, variant=REAL)
    share = (top["noise"] / top["depth_of_dip"].clip(lower=1e-12)).groupby([top["run"], top["metric"]]).mean()
    table = share.unstack("metric")
    if "stable_rank" not in table:
        return statement.not_tested("the curves hold no stable rank")
    rank, entropy = table["stable_rank"], table["attention_entropy"]
    criterion = below(
        entropy, rank, of="noise over fall of the rank", than="the entropy's", across="in every run"
    )
    told = []
    for variant in sorted(set(everything["variant"]) - {REAL}):
        of_rank, of_entropy = (
            _separation(everything, variant, metric) for metric in ("stable_rank", ENTROPY)
        )
        told.append(
            f"; apart from {variant}: {of_rank:.2g} spreads by the rank, {of_entropy:.2g} by the entropy"
        )
        criterion &= above(
            of_entropy,
            of_rank,
            of=f"distance of its fall from that with {variant}, in spreads of the seeds,",
            than="the entropy's",
        )
    return statement.judge(
        criterion,
        measured=rank.max(),
        null=entropy.min(),
        null_description="the same of the attention entropy, least",
        evidence=f"top layers of {len(table)} runs; rank {rank.min():.2g} to {rank.max():.2g}, entropy "
        f"{entropy.min():.2g} to {entropy.max():.2g}" + "".join(told),
    )


def _separation(tops: pd.DataFrame, variant: str, metric: str) -> float:
    """Distance of the mean falls of the runs and of a null, over the pooled spread of their seeds."""
    falls = rows(tops, metric=metric).groupby("variant")["depth_of_dip"]
    mean, spread = falls.mean(), falls.std()
    pooled = float(np.sqrt((spread[REAL] ** 2 + spread[variant] ** 2) / 2))
    return abs(float(mean[REAL] - mean[variant])) / pooled if pooled else 0.0


def neurons_correlate(curves: pd.DataFrame) -> Claim:
    """Whether what hidden neurons write is highly correlated."""
    statement = STATEMENTS["fig6.neurons_correlate"]
    shares = rows(curves, metric="correlated_neurons")
    if shares.empty:
        return statement.not_tested("the curves do not hold it")
    by_layer = shares.pivot_table(index="step", columns=["run", "layer"], values="value")
    half = rows(curves, metric="nearest_neuron").pivot_table(
        index="step", columns=["run", "layer"], values="value"
    )
    return statement.judge(
        at_least(
            MANY,
            by_layer.iloc[-1],
            of="share of the neurons that have another with |cosine| above 0.8",
            across="in every run and layer",
        ),
        null=by_layer.iloc[0].max(),
        null_description="untrained",
        evidence=f"columns of the upper MLP at the end; |cosine| with the nearest other, median "
        f"{half.iloc[-1].min():.2f} to {half.iloc[-1].max():.2f}, untrained {half.iloc[0].max():.2f}",
    )
