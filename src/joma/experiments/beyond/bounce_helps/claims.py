"""What bounce_helps claims, judged from its tables: costs against the seeds' spread and the other step."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from scipy.stats import t

from joma.core.claim import Claim, above, at_most, below, statements
from joma.core.tables import rows
from joma.experiments.beyond.bounce_helps import LEAST_SEEDS, WAYS, BounceHelps

SIGNIFICANT = 0.05
BENEFIT = 0.02
"""Nats of held-out loss (2 % in perplexity) from which on a benefit is one to speak of."""
UNCERTAINTY = "the seeds' uncertainty"
STATEMENTS = statements(
    {
        "bounce_helps.bounces": "JoMA Sec. 4 | the top layer's attention entropy rises again after its dip "
        "(else nothing is tested)",
        "bounce_helps.one_layer": "JoMA Sec. 5, poster | in one layer the phase after the dip brings no "
        "clear benefit",
        **{
            f"bounce_helps.several_layers_{way}": "JoMA Sec. 5, poster | in several layers the phase after "
            f"the dip helps, and more than in one: with {how} there, loss is lost"
            for way, how in WAYS.items()
        },
        "bounce_helps.dip_is_special": "JoMA Sec. 5 (implied) | in several layers, stopping attention at the "
        "dip costs more than at another time",
        "bounce_helps.entropy_was_held": "joma (the intervention does what it says) | pinned attention keeps "
        "its entropy from the dip on, on held-out text too",
    }
)


def claims(settings: BounceHelps, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Is there a bounce; what does stopping at the dip cost in one layer and in several?"""
    bounces = tables["bounces"]
    bouncing = bounces[bounces["rebound_probability"] < SIGNIFICANT]
    costs = tables["costs"].merge(bouncing[["depth", "seed"]], on=["depth", "seed"])
    several = [depth for depth in settings.layers if depth > 1]
    return [
        there_is_a_bounce(bounces),
        useless_in_one_layer(costs),
        *(useful_in_several(costs, several, way) for way in WAYS),
        dip_is_special(costs, several),
        entropy_was_held(tables["curves"], bounces),
    ]


def _cost(costs: pd.DataFrame, depths: list[int], way: str, *times: str) -> pd.Series[float]:
    """Cost by seed, mean over these depths and times; seeds that were not stopped at each are left out."""
    chosen = rows(costs, depth=depths, way=way, when=list(times))
    by_seed = chosen.pivot_table(index="seed", columns=["depth", "when"], values="cost")
    return by_seed.dropna().mean(axis=1)


def _uncertainty(values: pd.Series[float]) -> float:
    """Half of the one-sided 95 % interval of a mean over seeds (Student's t)."""
    return float(t.isf(SIGNIFICANT, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)


def _too_few(seeds: pd.Series[float], layers: str) -> str:
    """Why nothing can be said of these seeds; empty where something can."""
    if len(seeds) >= LEAST_SEEDS:
        return ""
    return (
        f"{len(seeds)} seeds of {layers} count: all of a depth must rebound beyond noise together (p < "
        f"{SIGNIFICANT}) and each leave room to stop before and after its dip; {LEAST_SEEDS} are needed"
    )


def there_is_a_bounce(bounces: pd.DataFrame) -> Claim:
    """Without a rebound in the untouched runs there is nothing to test."""
    statement = STATEMENTS["bounce_helps.bounces"]
    depths = bounces.groupby("depth")
    probability, rebound = depths["rebound_probability"].first(), depths["rebound"].mean()
    null = depths["rebound_null"].first()
    told = "; ".join(
        f"{depth} layers: from their own dips at steps {steps.min():g} to {steps.max():g} the seeds rise by "
        f"{rebound[depth]:.2f} nats in the mean, together p = {probability[depth]:.2g}"
        for depth, steps in depths["dip_step"]
    )
    missing = probability >= SIGNIFICANT
    if missing.any() and (rebound > null)[missing].all():
        return statement.not_tested(f"one cannot tell of seeds that do not rise at one time; {told}")
    return statement.judge(
        below(SIGNIFICANT, probability, of="p of the rebound, all seeds together,", across="at every depth"),
        measured=float(rebound.min()),
        null=float(null.max()),
        null_description="mean rebound from which on noise of the seeds' spread is excluded (1 in 20)",
        evidence=told,
    )


def useless_in_one_layer(costs: pd.DataFrame) -> Claim:
    """Freezing at the dip costs nothing in one layer: equivalence, not the absence of significance."""
    statement = STATEMENTS["bounce_helps.one_layer"]
    cost, other = (
        _cost(costs, [1], "projections", "dip"),
        _cost(costs, [1], "projections", "earlier", "later"),
    )
    reason = _too_few(other, "one layer")
    if not reason and cost.mean() - _uncertainty(cost) <= BENEFIT < cost.mean() + _uncertainty(cost):
        reason = f"one cannot tell: the cost is {cost.mean():.4f} +- {_uncertainty(cost):.4f} nats"
    if reason:
        return statement.not_tested(reason)
    return statement.judge(
        at_most(BENEFIT, cost.mean() + _uncertainty(cost), of=f"cost and {UNCERTAINTY}", unit="nats"),
        measured=float(cost.mean()),
        null=float(other.mean()),
        null_description="cost of freezing as far before and after the dip, mean of the two",
        evidence=f"held-out loss, mean of {len(cost)} seeds: {_list_values(cost)}",
    )


def useful_in_several(costs: pd.DataFrame, several: list[int], way: str) -> Claim:
    """Stopping attention at the dip costs held-out loss in several layers, and more than in one."""
    statement = STATEMENTS[f"bounce_helps.several_layers_{way}"]
    cost, one = _cost(costs, several, way, "dip"), _cost(costs, [1], way, "dip")
    other = _cost(costs, several, way, "earlier", "later")
    more = (cost - one).dropna()
    reason = _too_few(other, "several layers") or _too_few(more, "one layer and of several")
    if reason:
        return statement.not_tested(reason)
    return statement.judge(
        above(_uncertainty(cost), cost.mean(), of="cost", than=UNCERTAINTY, unit="nats")
        & above(_uncertainty(more), more.mean(), of="cost less one layer's", than=UNCERTAINTY, unit="nats"),
        null=float(one.mean()),
        null_description="cost of the same in one layer",
        evidence=f"held-out loss in nats, mean of {len(cost)} seeds: {_list_values(cost)}; more than in one "
        "layer by "
        f"{more.mean():.4f} +- {_uncertainty(more):.4f}; as far before and after the dip {other.mean():.4f}",
    )


def dip_is_special(costs: pd.DataFrame, several: list[int]) -> Claim:
    """Stopping at the dip against stopping as far before and after it, seed by seed."""
    statement = STATEMENTS["bounce_helps.dip_is_special"]
    dip, other = (_cost(costs, several, "projections", *times) for times in (("dip",), ("earlier", "later")))
    gap = (dip - other).dropna()
    reason = _too_few(gap, "several layers")
    if reason:
        return statement.not_tested(reason)
    return statement.judge(
        above(_uncertainty(gap), gap.mean(), of="cost less the null's", than=UNCERTAINTY, unit="nats"),
        measured=float(dip.mean()),
        null=float(other.mean()),
        null_description="cost of stopping as far before and after the dip, mean of the two",
        evidence=f"nats, {len(gap)} seeds; differences {_list_values(gap)}",
    )


def entropy_was_held(curves: pd.DataFrame, bounces: pd.DataFrame) -> Claim:
    """The intervention does what it says: pinned heads keep their entropy."""
    entropy = rows(curves, metric="attention_entropy", when=["", "dip"])
    keys = ["depth", "seed", "layer", "head"]
    after = entropy[entropy["step"] > entropy["stop"]]
    pinned = rows(entropy, way="entropy")
    at_stop = pinned[pinned["step"] == pinned["stop"]].set_index(keys)["value"]
    drifts = rows(after, way="entropy").groupby(keys)["value"].mean() - at_stop
    dips = bounces.set_index(["depth", "seed"])["dip_step"]
    plain = rows(entropy, way="")
    later = (
        plain["step"].to_numpy() > dips.loc[list(zip(plain["depth"], plain["seed"], strict=True))].to_numpy()
    )
    free = float((plain[later].groupby(keys)["value"].mean() - at_stop).abs().max())
    drift = float(drifts.abs().max())
    return STATEMENTS["bounce_helps.entropy_was_held"].judge(
        below(free / 2, drift, of="largest mean drift", than="half the untouched runs'", unit="nats"),
        null=free,
        null_description="largest mean drift of the untouched runs after the dip",
        evidence=f"nats, largest of {len(drifts)} heads",
    )


def _list_values(values: pd.Series[float]) -> str:
    return ", ".join(f"{value:+.4f}" for value in values)
