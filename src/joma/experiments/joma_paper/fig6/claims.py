"""What JoMA Fig. 6 and its text say, each judged from the tables of ``joma.experiments.joma_paper.fig6``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import and_
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import mannwhitneyu

from joma.core.claim import (
    Claim,
    Criterion,
    Statement,
    above,
    at_least,
    below,
    equal,
    statements,
    withhold,
    within_error,
)
from joma.core.tables import rows
from joma.experiments.joma_paper.fig6 import Fig6
from joma.experiments.joma_paper.fig6.remarks import remarks
from joma.experiments.joma_paper.fig6.run import SHUFFLED, UNTRAINED_QK
from joma.experiments.shared.curve_settings import TOGETHER
from joma.experiments.shared.curves import MEASURED, REAL, answer_about
from joma.experiments.shared.recorded import agrees

LEAST_DIP = 0.5
LEAST_REBOUND = 0.2
SIGNIFICANT = 0.05
FEWEST = 3
"""Seeds of a depth that a claim about learning needs."""
PART = 0.1
"""Of the logits' variance: what a law accounts for that says something of them."""


SOURCE = "JoMA Fig. 6, Sec. 4"

STATEMENTS = statements(
    {
        "fig6.falls": f"{SOURCE} | the top layer's attention entropy falls first: attention becomes sparse",
        "fig6.rebound": f"{SOURCE} | after the dip the top layer's attention entropy rises again: attention "
        "becomes dense",
        "fig6.fall_size": f"a size of joma's own choice, {LEAST_DIP} nats (not in the paper) | the top "
        f"layer's attention entropy falls by at least {LEAST_DIP} nats",
        "fig6.rebound_size": f"a size of joma's own choice, {LEAST_REBOUND} nats (not in the paper) | after "
        f"the dip the top layer's attention entropy rises by at least {LEAST_REBOUND} nats",
        "fig6.beyond_shuffled": f"{SOURCE} | the top layer's entropy rebounds further than with {SHUFFLED}",
        "fig6.beyond_untrained_qk": f"{SOURCE} | the top layer's entropy rebounds further than with "
        f"{UNTRAINED_QK}",
        "fig6.rank_falls": f"{SOURCE} | the stable rank of the top lower MLP layer falls as attention "
        "becomes sparse",
        "fig6.rank_rebounds": f"{SOURCE} | the stable rank of the top lower MLP layer rises again, as the "
        "entropy does",
        "fig6.rank_of_change_rebounds": f"{SOURCE} | the stable rank of what the top lower MLP layer has "
        "learnt, W - W(0), falls and rises again, as the entropy does",
        "fig6.authors": "JoMA Fig. 6, authors' recorded curves | the top layer's entropy over training has "
        "the shape of the authors' own curve",
        "fig6.early": "authors' recorded curves at learning rate 1e-6 (not in the paper) | a smaller dip "
        "that recovers comes before the main dip (hidden when one samples every 1000 steps)",
        "fig6.bottom": "JoMA Fig. 6 | in deep models the bottom layer's entropy rebounds less than the top "
        "layer's",
        "fig6.block_law": "JoMA Eq. 6, corrected, put to a trained decoder | the bounce is the one that the "
        "block's law makes of the decoder's own kappa and mu",
    }
)


def claims(settings: Fig6, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """What Fig. 6 and its text say, each against its null; from fewer than three seeds nothing."""
    everything = tables["bounces"]
    bounces = rows(everything, variant=REAL)
    curves = rows(tables["curves"], variant=REAL)
    seeds = bounces.groupby("depth")["run"].nunique().min()
    top = bounces[bounces["layer"] == bounces["depth"] - 1]
    entropy, rank, change = (rows(top, metric=metric) for metric in MEASURED)
    found = [
        *_directions(everything, entropy, rank, change),
        *_sizes(everything, entropy),
        exceeds_null(everything, SHUFFLED, STATEMENTS["fig6.beyond_shuffled"]),
        exceeds_null(everything, UNTRAINED_QK, STATEMENTS["fig6.beyond_untrained_qk"]),
        early_transient(entropy, bool(settings.recorded)),
        bottom_bounces_less(bounces),
        block_law(entropy, curves),
        *remarks(of_tops(everything), curves),
        agrees(settings, tables["authors"], STATEMENTS["fig6.authors"]),
    ]
    if seeds >= FEWEST:
        return found
    return withhold(found, f"seeds = {seeds}: a claim about learning needs {FEWEST}")


def exceeds_null(bounces: pd.DataFrame, variant: str, statement: Statement) -> Claim:
    """Whether the decoders rebound further than those of a null, seed against seed."""
    tops = rows(of_tops(bounces), metric="attention_entropy")
    rebounds = tops.set_index(["variant", "depth"])["rebound"]
    if variant not in rebounds.index:
        return statement.not_tested("these nulls were not trained; --preset evidence trains them")
    found = _exceedances(rebounds, variant)
    worst = max(found)
    return statement.judge(
        below(SIGNIFICANT, worst[0], of="exact p of the ranks of the rebounds", across="at every depth"),
        measured=worst[1],
        null=worst[2],
        null_description=f"median rebound with {variant}",
        evidence=f"medians of {worst[3]} seeds each, in nats; exact p {worst[0]:.2g} (the largest of "
        f"{len(found)} depths)",
    )


def of_tops(bounces: pd.DataFrame) -> pd.DataFrame:
    """The rows of every decoder's top layer."""
    return bounces[bounces["layer"] == bounces["depth"] - 1]


def _exceedances(values: pd.Series, variant: str) -> list[tuple[float, float, float, int]]:
    """Of each depth: exact p of the ranks of real values above a null's, both medians, and how many.

    ``values`` are indexed by variant and depth.
    """
    found = []
    for depth in sorted(values.index.get_level_values("depth").unique()):
        real, null = (values.loc[[(one, depth)]].to_numpy() for one in (REAL, variant))
        chance = mannwhitneyu(real, null, alternative="greater", method="exact").pvalue
        found.append((float(chance), float(np.median(real)), float(np.median(null)), len(real)))
    return found


def _directions(
    bounces: pd.DataFrame, entropy: pd.DataFrame, rank: pd.DataFrame, change: pd.DataFrame
) -> list[Claim]:
    """Falls and rebounds: beyond noise, and, of what a null was trained for, further than in the null."""
    return [
        _moves(entropy, ("dip",), STATEMENTS["fig6.falls"], _than_nulls(bounces, entropy, SHUFFLED)),
        _moves(entropy, ("rebound", "dip"), STATEMENTS["fig6.rebound"]),
        _moves(
            rank,
            ("dip",),
            STATEMENTS["fig6.rank_falls"],
            _than_nulls(bounces, rank, SHUFFLED, UNTRAINED_QK),
        ),
        _moves(rank, ("rebound", "dip"), STATEMENTS["fig6.rank_rebounds"]),
        _moves(change, ("rebound", "dip"), STATEMENTS["fig6.rank_of_change_rebounds"]),
    ]


def _sizes(bounces: pd.DataFrame, entropy: pd.DataFrame) -> list[Claim]:
    """How far: thresholds that are joma's own, apart from whether it moves at all."""
    found = []
    for name, column, least in (
        ("fall_size", "depth_of_dip", LEAST_DIP),
        ("rebound_size", "rebound", LEAST_REBOUND),
    ):
        statement, size = STATEMENTS[f"fig6.{name}"], entropy[column]
        beyond = _than_nulls(bounces, entropy, SHUFFLED, column=column)
        null, described = _null_size(bounces, entropy, column)
        criterion = at_least(
            least, size, of="size over the smoothed curve", across="in every run", unit="nats"
        )
        found.append(
            statement.judge(
                criterion if beyond is None else criterion & beyond,
                null=null,
                null_description=described,
                evidence=f"{size.min():.3g} to {size.max():.3g} nats in {len(size)} runs",
            )
        )
    return found


def _null_size(bounces: pd.DataFrame, entropy: pd.DataFrame, column: str) -> tuple[float, str]:
    found = rows(of_tops(bounces), metric="attention_entropy", variant=SHUFFLED)[column]
    if not found.empty:
        return float(found.max()), f"largest with {SHUFFLED}"
    noise = "dip_null" if column == "depth_of_dip" else "rebound_null"
    return float(entropy[noise].max()), "size that noise alone exceeds once in twenty"


def _than_nulls(
    bounces: pd.DataFrame, curves: pd.DataFrame, *variants: str, column: str = "depth_of_dip"
) -> Criterion | None:
    """That a fall is further than a null's, by the ranks of the seeds; None where no null was trained."""
    if curves.empty or not set(variants) <= set(bounces["variant"]):
        return None
    tops = rows(of_tops(bounces), metric=curves["metric"].iloc[0]).set_index(["variant", "depth"])
    found = [
        below(
            SIGNIFICANT,
            [chance for chance, *_ in _exceedances(tops[column], variant)],
            of=f"exact p of the ranks of these beside {variant}",
            across="at every depth",
        )
        for variant in variants
    ]
    return reduce(and_, found)


def _moves(
    curves: pd.DataFrame, what: tuple[str, ...], statement: Statement, beyond: Criterion | None = None
) -> Claim:
    """A dip or rebound beyond noise in every run; a rebound needs a dip, else it is a rise."""
    if curves.empty:
        return statement.not_tested("the curves hold no such measurement")
    of_entropy = bool((curves["metric"] == "attention_entropy").all())
    unit = "nats" if of_entropy else "of its start"
    whole = 1.0 if of_entropy else curves["start"]
    first = what[0]
    size = curves["depth_of_dip" if first == "dip" else "rebound"] / whole
    probability = curves[f"{first}_probability"]
    noise = probability >= SIGNIFICANT
    if first == "rebound" and noise.any() and curves["cannot_tell"][noise].all() and (size > 0).all():
        reason = f"{noise.sum()} of {len(curves)} curves cannot tell: slow noise is not excluded"
        return statement.not_tested(f"{reason} (largest p {probability.max():.2g})")
    moved = [
        below(SIGNIFICANT, curves[f"{one}_probability"], of=f"p of the {one}", across="in every run")
        for one in what
    ]
    return statement.judge(
        reduce(and_, [*moved, *([] if beyond is None else [beyond])]),
        measured=float(size.min()),
        null=(curves[f"{first}_null"] / whole).max(),
        null_description=f"mean {first} from which on the runs' spread excludes noise (1 in 20)"
        if curves[f"{first}_null"].nunique() == curves["depth"].nunique() < len(curves)
        or len(curves) >= TOGETHER
        else f"{first} that 1 in 20 curves of noise alone, as slow as these allow, exceeds",
        evidence=f"measured is the smallest {first} of {len(curves)} runs ({unit}); from "
        f"{curves['start'].mean():.3g} to {curves['dip_value'].mean():.3g} at steps "
        f"{curves['dip_step'].min():g} to {curves['dip_step'].max():g}; largest p {probability.max():.2g}"
        + ("" if beyond is not None or first != "dip" else "; the nulls were not trained"),
    )


def early_transient(entropy: pd.DataFrame, recorded: bool) -> Claim:
    """The small dip before the main one."""
    statement = STATEMENTS["fig6.early"]
    if recorded:
        return statement.not_tested("the record has a point every 1000 steps, which hides it")
    learning_rate = float(entropy["learning_rate"].iloc[0])
    seen = entropy["transient_step"].notna()
    smallest = (
        entropy.loc[seen, ["transient_depth", "transient_rebound"]].min(axis=1).min() if seen.any() else 0.0
    )
    when = entropy.loc[seen, "transient_step"]
    where = (
        f"at learning rate x step {learning_rate * when.min():.2g} to {learning_rate * when.max():.2g}"
        if seen.any()
        else "none"
    )
    return statement.judge(
        equal(
            len(entropy),
            seen.sum(),
            of="number of runs with a dip and recovery above three standard deviations of the noise",
            than="that of all",
        ),
        measured=smallest,
        null=3 * entropy["noise_of_all"].max(),
        null_description="three standard deviations of the noise",
        evidence=f"{int(seen.sum())} of {len(entropy)} runs, {where}; "
        "measured is the smaller of dip and recovery, in nats",
    )


def bottom_bounces_less(bounces: pd.DataFrame) -> Claim:
    """The rebounds of bottom and top layers of deep models."""
    statement = STATEMENTS["fig6.bottom"]
    deep = bounces[(bounces["metric"] == "attention_entropy") & (bounces["depth"] > 1)]
    if deep.empty:
        return statement.not_tested("no model with more than one layer was trained (setting layers)")
    bottom = rows(deep, layer=0).set_index("run")
    top = deep[deep["layer"] == deep["depth"] - 1].set_index("run")
    gain, null = top["rebound"] - bottom["rebound"], deep["rebound_null"].max()
    what = "rebound of top minus bottom layer"
    return statement.judge(
        above(null, gain.mean(), of=f"mean {what}", than="the null", unit="nats")
        & above(0, gain, of=what, across="in every run", unit="nats"),
        null=null,
        null_description="rebound that 1 in 20 flat curves exceed under noise as slow as the curve allows",
        evidence=f"mean of {len(gain)} runs in nats; smallest {gain.min():.3f}",
    )


def block_law(entropy: pd.DataFrame, curves: pd.DataFrame) -> Claim:
    """Whether kappa and mu of the trained decoder, put into the block's law, give the rebound that it had."""
    statement = STATEMENTS["fig6.block_law"]
    if not (curves["metric"] == "kappa").any():
        return statement.not_tested("the curves hold no kappa")
    keys = ["run", "layer"]
    measured = entropy.set_index(keys)["rebound"]

    def of(metric: str) -> pd.DataFrame:
        wide = rows(curves, metric=metric).pivot_table(index="step", columns=keys, values="value")
        return wide[measured.index]

    last = {m: of(m).iloc[-1] for m in ("kappa", "kappa_share", "block_rebound", "block_rebound, shuffled")}
    error = {m: (last[m] / measured - 1).abs() for m in ("block_rebound", "block_rebound, shuffled")}
    kappa, share = of("kappa"), of("kappa_share")
    positive = (kappa > 0) & (share > PART)
    until = max((int(steps.index[steps].max()) for _, steps in positive.items() if steps.any()), default=0)
    dip = float(entropy["dip_step"].min())
    return statement.judge(
        within_error(
            0.5, error["block_rebound"], of="relative error of the predicted rebound", across="in every run"
        )
        & above(
            0.5, error["block_rebound, shuffled"], of="that with shuffled weights", across="in every run"
        ),
        null=error["block_rebound, shuffled"].min(),
        null_description="the same with the squares of the weights shuffled over the tokens",
        evidence=f"predicted {last['block_rebound'].min():.3g} to {last['block_rebound'].max():.3g} nats, "
        f"measured {measured.min():.3g} to {measured.max():.3g}; kappa at the end {last['kappa'].min():.2g} "
        f"to {last['kappa'].max():.2g}, which accounts for {last['kappa_share'].min():.1%} to "
        f"{last['kappa_share'].max():.1%} of the logits' variance (a kappa that is not positive predicts no "
        f"rebound); positive and above {PART:.0%} until step {until}, the dip is at {dip:g} or later",
    )


def answer(settings: Fig6, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """Dip and rebound of the top layer's entropy, whether the stable rank follows, and how much was run."""
    bounces = tables["bounces"]
    top = bounces[(bounces["layer"] == bounces["depth"] - 1) & (bounces["variant"] == REAL)]
    entropy = rows(top, metric="attention_entropy")
    rank = rows(top, metric="stable_rank")
    runs = f"{len(entropy)} run{'s' if len(entropy) > 1 else ''}"
    where = "the authors' record" if settings.recorded else Path(settings.corpus).name
    ranks = (
        ""
        if rank.empty
        else f" The stable rank of the lower MLP fell from {rank['start'].mean():.0f} to "
        f"{rank['end'].mean():.0f} and rose again by {rank['rebound'].max():.1f} at most."
    )
    cells = len(entropy) if settings.recorded else len(settings.cells())
    return [
        f"Attention's entropy fell by {entropy['depth_of_dip'].min():.2f} nats or more and rose again by "
        f"{entropy['rebound'].min():.3g} or more in {runs} on {where}; noise alone "
        f"would raise it by {entropy['rebound_null'].max():.2f} in 1 of 20 runs "
        f"(largest p {entropy['rebound_probability'].max():.2g}).{ranks}",
        answer_about(tables["curves"], cells, "layers 1, 2, 5, 10 on WikiText-2 and WikiText-103 at 1e-4"),
    ]
