"""What JoMA Fig. 8 and its text say, each judged from the tables of ``joma.experiments.joma_paper.fig8``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joma.core.arguments import Array
from joma.core.claim import Claim, at_least, below, equal, statements, withhold
from joma.core.tables import rows
from joma.experiments.joma_paper.fig8 import PAPER_RATES, Fig8
from joma.experiments.joma_paper.fig8.run import BOUNCES, COLLAPSED, COLLAPSES, FALLS, SIGNIFICANT, STAYS
from joma.experiments.shared.curves import answer_about
from joma.experiments.shared.recorded import agrees

LEAST_REBOUND = 0.2
FEWEST = 3
"""Seeds of a cell that a claim about learning needs."""
SHUFFLES = 5000
CHANCES = 500
"""Shuffles of the courses, for the first sentence of the answer."""
COURSES = {BOUNCES: "bounces", COLLAPSES: "collapses", FALLS: "falls", STAYS: "stays within noise"}

STATEMENTS = statements(
    {
        "fig8.large_rate_collapses": "JoMA Sec. 5.1 (Fig. 8), 'with large learning rate, attention becomes "
        "extremely sparse' | at the largest learning rate the top layer's attention becomes extremely sparse",
        "fig8.rates_differ": "JoMA Sec. 5.1 (Fig. 8), 'different learning rate leads to different attention "
        "sparsity patterns' | the learning rate decides how sparse the top layer's attention is in the end",
        "fig8.some_rate_bounces": "JoMA Fig. 8, Sec. 4 | at one learning rate at least, attention first "
        "becomes sparse and then dense again",
        "fig8.bounce_is_best": "JoMA Fig. 8, 'the attention patterns consistent with our theoretical "
        "analysis give the lowest validation losses' | the more a decoder's attention rebounds, the lower "
        "its validation loss, and the best rate of every depth is one that bounces",
        "fig8.authors": "JoMA Fig. 8, authors' recorded curves | at every depth and rate the top layer's "
        "entropy has the shape of the authors' own",
    }
)


def claims(settings: Fig8, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """What Fig. 8 and its text say, each against its null; from fewer than three seeds nothing."""
    decoders = tables["decoders"]
    asked = {(depth, rate) for depth in settings.layers for rate in settings.learning_rate}
    present = set(decoders[["depth", "learning_rate"]].itertuples(index=False, name=None))
    missing = set() if settings.recorded else asked - present
    found = [
        large_rate_collapses(decoders),
        rates_differ(decoders, settings.seed),
        some_rate_bounces(decoders),
        bounce_is_best(decoders, settings.seed),
        agrees(settings, tables["authors"], STATEMENTS["fig8.authors"]),
    ]
    fewest = decoders.groupby(["depth", "learning_rate"]).size().median()
    if fewest >= FEWEST and not missing:
        return found
    reason = f"most cells have fewer than {FEWEST} seeds, which a claim about learning needs"
    if missing:
        named = ", ".join(f"{depth} layers at {rate:g}" for depth, rate in sorted(missing))
        reason = f"no decoder of {named} was trained to its end, and what remains is no fair choice"
    return withhold(found, reason)


def large_rate_collapses(decoders: pd.DataFrame) -> Claim:
    """What is left of the entropy at the largest rate."""
    statement = STATEMENTS["fig8.large_rate_collapses"]
    left = decoders["end"] / decoders["start"]
    largest = decoders["learning_rate"].max()
    at, others = left[decoders["learning_rate"] == largest], left[decoders["learning_rate"] < largest]
    if others.empty:
        return statement.not_tested("there is one learning rate; train at several")
    what = "share of the entropy that is left"
    return statement.judge(
        below(COLLAPSED, at, of=what, across="in every decoder")
        & below(others.min(), at, of=what, than="the least at other rates", across="in every decoder"),
        null=others.min(),
        null_description="the same at the other rates, least",
        evidence=f"{len(at)} decoders at {largest:g}: {at.min():.2g} to {at.max():.2g} of the start is left; "
        f"{int((at < COLLAPSED).sum())} of them collapse, and {int((others < COLLAPSED).sum())} of "
        f"{len(others)} at the other rates",
    )


def rates_differ(decoders: pd.DataFrame, seed: int) -> Claim:
    """The share of the end's variation, in ranks within a depth, that the rates account for."""
    statement = STATEMENTS["fig8.rates_differ"]
    if decoders["learning_rate"].nunique() < 2:
        return statement.not_tested("there is one learning rate; train at several")
    ranks = decoders.groupby("depth")["end"].rank(pct=True).to_numpy()
    labels = decoders["learning_rate"].to_numpy()
    depths = decoders["depth"].to_numpy()
    random = np.random.default_rng(seed)

    def share(of: Array) -> float:
        means = pd.Series(ranks).groupby([depths, of]).transform("mean").to_numpy()
        centre = pd.Series(ranks).groupby(depths).transform("mean").to_numpy()
        return float(((means - centre) ** 2).sum() / max(((ranks - centre) ** 2).sum(), 1e-300))

    def relabel() -> Array:
        new: Array = labels.copy()
        for depth in np.unique(depths):
            new[depths == depth] = random.permutation(labels[depths == depth])
        return new

    measured = share(labels)
    null = np.array([share(relabel()) for _ in range(SHUFFLES // 10)])
    chance = (1 + int((null >= measured).sum())) / (1 + null.size)
    return statement.judge(
        below(
            SIGNIFICANT, chance, of="p of the share of the variation in rank, the decoders' rates shuffled,"
        ),
        measured=measured,
        null=np.quantile(null, 0.95),
        null_description="share that 1 in 20 shuffles within a depth exceed",
        evidence=f"{len(decoders)} decoders; p {chance:.2g}",
    )


def some_rate_bounces(decoders: pd.DataFrame) -> Claim:
    """The rate at which the rebound is clearest, chosen among all of them, and paid for."""
    by_rate = decoders.groupby("learning_rate").agg(
        rebound=("rebound", "mean"),
        null=("rebound_null", "max"),
        chance=("rebound_probability", "max"),
        count=("run", "size"),
    )
    tried = len(by_rate)
    best = by_rate.sort_values(["chance", "rebound"], ascending=[True, False]).iloc[0]
    chance = min(1.0, tried * best["chance"])
    return STATEMENTS["fig8.some_rate_bounces"].judge(
        at_least(LEAST_REBOUND, best["rebound"], of="mean rebound", unit="nats")
        & below(SIGNIFICANT, chance, of=f"p times {tried} rates tried"),
        null=best["null"],
        null_description="rebound that noise alone exceeds once in twenty",
        evidence=f"at {best.name:g}, the clearest of {tried} rates, {best['count']:.0f} decoders; p "
        f"{chance:.2g} ({tried} x {best['chance']:.2g})",
    )


def bounce_is_best(decoders: pd.DataFrame, seed: int) -> Claim:
    """Rebound and lowest held-out loss, ranked within each depth; the null gives the rates' losses away."""
    # A rate is one draw, however many seeds and depths it has: it is the rates that change places.
    statement = STATEMENTS["fig8.bounce_is_best"]
    everywhere = decoders.groupby("learning_rate")["depth"].nunique() == decoders["depth"].nunique()
    decoders = decoders[decoders["learning_rate"].map(everywhere)].reset_index(drop=True)
    if "dip_loss" not in decoders:
        return statement.not_tested(
            "the run does not hold the loss at each decoder's dip, and rates that end before the loss at "
            "which others dip are no fair comparison; run it again"
        )
    every = sorted(decoders["learning_rate"].unique())
    decoders = at_common_loss(decoders)
    rates = sorted(decoders["learning_rate"].unique())
    if math.factorial(len(rates)) < 1 / SIGNIFICANT:
        correlation = _correlation_within(decoders["rebound"], decoders["lowest_loss"], decoders["depth"])
        return statement.not_tested(
            f"{len(rates)} learning rates cannot be tested: even a perfect order of them has "
            f"p = {1 / math.factorial(len(rates)):.2g}; use at least four (rank correlation "
            f"{correlation:.2f} over {len(decoders)} decoders)"
        )
    measured, null = _order_of_rates(decoders, rates, seed)
    chance = (1 + int((null <= measured).sum())) / (1 + null.size)
    mean = decoders.groupby(["depth", "learning_rate"])["lowest_loss"].mean()
    best = mean.groupby("depth").idxmin()
    share = decoders.groupby(["depth", "learning_rate"])["course"].agg(lambda c: (c == BOUNCES).mean())
    bouncing = [key for key in best if share[key] > 0.5]
    return statement.judge(
        below(0, measured, of="rank correlation")
        & below(SIGNIFICANT, chance, of="p among the same rates in other orders")
        & equal(
            len(best),
            len(bouncing),
            of="number of depths where most decoders bounce at the rate with the lowest loss",
            than="that of all",
        ),
        null=np.quantile(null, 0.05),
        null_description="rank correlation that 1 in 20 orders of the rates' losses fall below",
        evidence=f"{len(decoders)} decoders of {len(rates)} of {len(every)} rates, without those that end "
        f"before the loss at which others dip, ranked within {len(best)} depths; p {chance:.2g}; at the "
        f"rate with the lowest loss ({', '.join(f'{depth} layers: {rate:g}' for depth, rate in best)}) "
        f"most bounce at {len(bouncing)} of {len(best)} depths",
    )


def at_common_loss(decoders: pd.DataFrame) -> pd.DataFrame:
    """The decoders without those of rates that end before the loss at which others dip.

    That loss is, of each depth, the median over its bouncing decoders at their dips. A rate below all that
    bounce whose lowest loss is still above it, at most depths, has had no time to rebound, and has a high
    loss for the same reason. (A rate that is too large got as far as it will.)
    """
    bouncing = decoders[decoders["course"] == BOUNCES]
    if bouncing.empty:
        return decoders
    dips = bouncing.groupby("depth")["dip_loss"].median()
    lowest = decoders.groupby(["depth", "learning_rate"])["lowest_loss"].mean().unstack("learning_rate")
    got = lowest.loc[dips.index].le(dips, axis=0).mean() > 0.5
    small = got.index < bouncing["learning_rate"].min()
    early = set(got.index[small & ~got.to_numpy()])
    return decoders[~decoders["learning_rate"].isin(early)].reset_index(drop=True)


def _correlation_within(x: pd.Series, y: pd.Series, groups: pd.Series) -> float:
    """Rank correlation within groups, over all of them."""
    ranks = [
        v.groupby(groups.to_numpy()).rank(pct=True)
        for v in (x.reset_index(drop=True), y.reset_index(drop=True))
    ]
    centred = [r - r.groupby(groups.to_numpy()).transform("mean") for r in ranks]
    scale = math.sqrt(float((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    return float((centred[0] * centred[1]).sum() / scale) if scale else 0.0


def _order_of_rates(decoders: pd.DataFrame, rates: list[float], seed: int) -> tuple[float, Array]:
    """The rank correlation, and the same with the rates' losses in other orders: all, or many at random."""
    losses = decoders.pivot_table(index=["depth", "seed"], columns="learning_rate", values="lowest_loss")
    # A decoder that is missing lends the mean of its rate, where it must lend anything.
    losses = losses.fillna(losses.groupby("depth").transform("mean"))
    if math.factorial(len(rates)) <= SHUFFLES:
        orders = list(itertools.permutations(range(len(rates))))[1:]
    else:
        random = np.random.default_rng(seed)
        orders = [tuple(random.permutation(len(rates))) for _ in range(SHUFFLES)]
    places = pd.MultiIndex.from_frame(decoders[["depth", "seed"]])
    columns = np.searchsorted(rates, decoders["learning_rate"])
    values = losses.loc[places].to_numpy()

    def correlation(order: NDArray[np.int64]) -> float:
        y = pd.Series(values[np.arange(len(decoders)), order[columns]])
        return _correlation_within(decoders["rebound"], y, decoders["depth"])

    measured = correlation(np.arange(len(rates)))
    return measured, np.array([correlation(np.array(order)) for order in orders])


def answer(settings: Fig8, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """What the attention does at each rate, which rate learns best, and how much of the grid was run."""
    decoders = tables["decoders"]
    where = "in the authors' record" if settings.recorded else f"on {Path(settings.corpus).name}"
    correlation = _correlation_within(decoders["rebound"], decoders["lowest_loss"], decoders["depth"])
    cells = len(decoders) if settings.recorded else len(settings.cells())
    collapsing = rows(decoders, course=COLLAPSES)
    loss = (
        collapsing["lowest_loss"].mean() - decoders.loc[decoders["course"] != COLLAPSES, "lowest_loss"].min()
    )
    cost = (
        f"; a collapse costs {loss:.2f} nats beside the best" if len(collapsing) and np.isfinite(loss) else ""
    )
    return [
        _say_courses(decoders, where, settings.seed),
        f"{_say_best(decoders)}; "
        f"rebound and loss have a rank correlation of {correlation:.2f} over all decoders{cost}.",
        answer_about(
            tables["curves"],
            cells,
            f"{len(PAPER_RATES)} rates; the authors recorded 141 of 147 runs on WikiText-2",
        ),
    ]


def _say_courses(decoders: pd.DataFrame, where: str, seed: int) -> str:
    """What attention does at each rate; that the rates differ only where they do so beyond chance."""
    counts = decoders.groupby("learning_rate")["course"].value_counts().unstack(fill_value=0)
    several = len(counts) > 1
    if counts.shape[1] == 1:
        course = f"{COURSES[counts.columns[0]]} in all {len(decoders)} decoders"
        return f"The top layer's attention {course}, at {'every' if several else 'the only'} rate {where}."
    said = [
        f"at {rate:g} it "
        + ", ".join(f"{COURSES[course]} in {count}" for course, count in own[own > 0].items())
        + f" of {own.sum()}"
        for rate, own in counts.iterrows()
    ]
    chance = _chance_of_courses(decoders, seed) if several else 1.0
    if chance < SIGNIFICANT:
        begin = f"What the top layer's attention does depends on the learning rate {where} (p = {chance:.2g})"
    elif several:
        begin = (
            f"The top layer's attention differs between the learning rates {where} by no more than chance "
            f"(p = {chance:.2g})"
        )
    else:
        begin = f"The top layer's attention was seen at one learning rate {where}"
    return f"{begin}: {'; '.join(said)}."


def _chance_of_courses(decoders: pd.DataFrame, seed: int) -> float:
    """How often courses that are shuffled within each depth differ between the rates as much as these do."""
    rates, courses = (pd.factorize(decoders[name])[0] for name in ("learning_rate", "course"))
    size = np.bincount(rates)

    def differ(order: NDArray[np.int64]) -> float:
        table = np.zeros((rates.max() + 1, courses.max() + 1))
        np.add.at(table, (rates, order), 1)
        return float((table**2 / size[:, None] / table.sum(axis=0)).sum())

    measured, random = differ(courses), np.random.default_rng(seed)
    places = [np.flatnonzero(decoders["depth"] == depth) for depth in decoders["depth"].unique()]
    more = 0
    for _ in range(CHANCES):
        shuffled = courses.copy()
        for place in places:
            shuffled[place] = random.permutation(courses[place])
        more += differ(shuffled) >= measured - 1e-9
    return (1 + more) / (1 + CHANCES)


def _say_best(decoders: pd.DataFrame) -> str:
    """The rates of the lowest losses, and whether these losses differ beyond their spread over seeds."""
    best = set[float]()
    apart = True
    for _, own in decoders.groupby("depth"):
        found = own.groupby("learning_rate")["lowest_loss"].agg(["mean", "std", "size"]).sort_values("mean")
        error = found["std"] / np.sqrt(found["size"])
        near = (found["mean"] - found["mean"].iloc[0]) <= 2 * np.hypot(error, error.iloc[0])
        near.iloc[0] = True
        # One seed has no spread: nothing tells two rates apart.
        near |= found["size"] < 2
        best |= set(found.index[near])
        apart &= int(near.sum()) == 1
    rates = " or ".join(f"{rate:g}" for rate in sorted(best))
    if apart or decoders["learning_rate"].nunique() == 1:
        return f"The lowest held-out loss comes with the rate {rates}"
    return f"The lowest held-out losses, at the rates {rates}, do not differ beyond their spread over seeds"
