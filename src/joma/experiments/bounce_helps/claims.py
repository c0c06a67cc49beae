"""What bounce_helps claims, judged from its tables: costs against the seeds' spread and the other step."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from scipy.stats import t

from joma.claim import Claim, Facts, judge, not_tested
from joma.experiments.bounce_helps import WAYS, BounceHelps

SIGNIFICANT = 0.05


def claims(settings: BounceHelps, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Is there a bounce; what does stopping at the dip cost in one layer and in several?"""
    bounces, costs = tables["bounces"], tables["costs"]
    several = [depth for depth in settings.layers if depth > 1]
    return [
        there_is_a_bounce(bounces),
        useless_in_one_layer(costs),
        *(useful_in_several(costs, several, way) for way in WAYS),
        dip_is_special(costs, several),
        entropy_was_held(tables["curves"], bounces),
    ]


def _cost(costs: pd.DataFrame, depth: int | list[int], way: str, when: str) -> pd.Series[float]:
    depths = [depth] if isinstance(depth, int) else depth
    chosen = costs["depth"].isin(depths) & (costs["way"] == way) & (costs["when"] == when)
    return costs[chosen].groupby("seed")["cost"].mean()


def _uncertainty(values: pd.Series[float]) -> float:
    """Half of the one-sided 95 % interval of a mean over seeds (Student's t)."""
    return float(t.isf(SIGNIFICANT, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)


def there_is_a_bounce(bounces: pd.DataFrame) -> Claim:
    """Without a rebound in the untouched runs there is nothing to test."""
    return judge(
        bool((bounces["rebound_probability"] < SIGNIFICANT).all()),
        id="bounce_helps.bounces",
        source="JoMA Sec. 4",
        statement="the top layer's attention entropy rises again after its dip (else nothing is tested)",
        expected=f"a rebound that is not noise in every untouched run, p < {SIGNIFICANT}",
        measured=float(bounces["rebound"].min()),
        null=float(bounces["rebound_null"].max()),
        null_description="rebound that 1 in 20 flat curves exceed under noise as slow as the curve allows",
        evidence=f"smallest of {len(bounces)} runs, in nats; dips at steps {bounces['dip_step'].min():g} to "
        f"{bounces['dip_step'].max():g}; largest p {bounces['rebound_probability'].max():.2g}",
    )


def useless_in_one_layer(costs: pd.DataFrame) -> Claim:
    """Freezing at the dip costs nothing in one layer."""
    facts: Facts = {
        "id": "bounce_helps.one_layer",
        "source": "JoMA Sec. 5, poster",
        "statement": "in one layer the phase after the dip brings no clear benefit",
    }
    cost = _cost(costs, 1, "projections", "dip")
    if cost.empty:
        return not_tested(**facts, reason="no model of one layer was trained (setting layers)")
    spread = _uncertainty(cost)
    return judge(
        bool(cost.mean() <= spread),
        **facts,
        expected="queries and keys frozen at the dip cost no more than the seeds' uncertainty",
        measured=float(cost.mean()),
        tolerance=spread,
        null=float(_cost(costs, 1, "projections", "random").mean()),
        null_description="cost of freezing at a random other step",
        evidence=f"held-out loss in nats, mean of {len(cost)} seeds: {_listed(cost)}",
    )


def useful_in_several(costs: pd.DataFrame, several: list[int], way: str) -> Claim:
    """Stopping attention at the dip costs held-out loss in several layers, and more than in one."""
    facts: Facts = {
        "id": f"bounce_helps.several_layers_{way}",
        "source": "JoMA Sec. 5, poster",
        "statement": f"in several layers the phase after the dip helps: with {WAYS[way]} there, loss is lost",
    }
    cost = _cost(costs, several, way, "dip")
    if cost.empty:
        return not_tested(**facts, reason="no model of several layers was trained (setting layers)")
    spread = _uncertainty(cost)
    one = _cost(costs, 1, way, "dip")
    beside = f"; in one layer {one.mean():.4f}" if len(one) else ""
    return judge(
        bool(cost.mean() > spread and (one.empty or cost.mean() > one.mean())),
        **facts,
        expected="a cost above the seeds' uncertainty, and above that in one layer",
        measured=float(cost.mean()),
        tolerance=spread,
        null=float(_cost(costs, several, way, "random").mean()),
        null_description="cost of the same at a random other step",
        evidence=f"held-out loss in nats, mean of {len(cost)} seeds: {_listed(cost)}{beside}",
    )


def dip_is_special(costs: pd.DataFrame, several: list[int]) -> Claim:
    """Stopping at the dip against stopping at a random other step, seed by seed."""
    facts: Facts = {
        "id": "bounce_helps.dip_is_special",
        "source": "JoMA Sec. 5 (implied)",
        "statement": "in several layers, stopping attention at the dip costs more than at another time",
    }
    dip = _cost(costs, several, "projections", "dip")
    if dip.empty:
        return not_tested(**facts, reason="no model of several layers was trained (setting layers)")
    gap = dip - _cost(costs, several, "projections", "random")
    spread = _uncertainty(gap)
    steps = costs[costs["depth"].isin(several)].groupby("when")["stop"].mean()
    return judge(
        bool(gap.mean() > spread),
        **facts,
        expected="cost at the dip minus cost at the random step above the seeds' uncertainty",
        measured=float(gap.mean()),
        tolerance=spread,
        null=0.0,
        null_description="no difference between the times",
        evidence=f"nats, {len(gap)} seeds: {_listed(gap)}; mean step of the dip {steps['dip']:.0f}, of the "
        f"random stop {steps['random']:.0f} (an earlier stop leaves more unlearned, dip or not)",
    )


def entropy_was_held(curves: pd.DataFrame, bounces: pd.DataFrame) -> Claim:
    """The intervention does what it says: pinned heads keep their entropy."""
    entropy = curves[(curves["metric"] == "attention_entropy") & (curves["when"] != "random")]
    keys = ["depth", "seed", "layer", "head"]
    after = entropy[entropy["step"] > entropy["stop"]]
    pinned = entropy[entropy["way"] == "entropy"]
    at_stop = pinned[pinned["step"] == pinned["stop"]].set_index(keys)["value"]
    drift = after[after["way"] == "entropy"].groupby(keys)["value"].mean() - at_stop
    dips = bounces.set_index(["depth", "seed"])["dip_step"]
    plain = entropy[entropy["way"] == ""]
    later = (
        plain["step"].to_numpy() > dips.loc[list(zip(plain["depth"], plain["seed"], strict=True))].to_numpy()
    )
    free = (plain[later].groupby(keys)["value"].mean() - at_stop).abs()
    return judge(
        bool(drift.abs().max() < free.max()),
        id="bounce_helps.entropy_was_held",
        source="joma (the intervention does what it says)",
        statement="pinned attention keeps its entropy from the dip on, on held-out text too",
        expected="a mean drift below that of the untouched runs",
        measured=float(drift.abs().max()),
        null=float(free.max()),
        null_description="largest mean drift of the untouched runs after the dip",
        evidence=f"nats, largest of {len(drift)} heads",
    )


def _listed(values: pd.Series[float]) -> str:
    return ", ".join(f"{value:+.4f}" for value in values)
