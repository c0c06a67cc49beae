"""Which predictions hold: each number with its interval over seeds, beside its threshold and its null."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import t as student

from joma.core.claim import Claim, Statement, above, at_least, at_most, statements, within_error
from joma.core.tables import rows
from joma.experiments.beyond.why_bounce import PREDICTIONS, WhyBounce
from joma.experiments.beyond.why_bounce.run import FORBIDDEN, FORWARD, HELD, ORDER
from joma.experiments.beyond.why_bounce.sets import EMBEDDINGS, MLP, NORMS, QUERIES_KEYS
from joma.instruments.branch import TWIN
from joma.measures.bounce import bounce

HALF = 0.5
"""Of the rise: the share from which on a mechanism makes most of it."""
SIGNIFICANT = 0.05
RESIDUAL = 0.05
"""Of the rise, that the first order may leave over."""
ROUNDING = 1e-9
"""Below it a share is nothing but rounding."""
CONTROLS = {HELD: FORWARD}
"""Branch -> the same loss term with another target, beyond whose cost its own is judged."""
WORTH = {"held": HELD, "forbidden": FORBIDDEN, "forward": FORWARD}
ANOTHER_ORDER = "the same number of twins that read the batches in another order, mean"
STATEMENTS = statements(
    {
        "why_bounce.bounces": "JoMA Sec. 4 | the top layer's attention entropy rises again after its dip "
        "(else nothing is tested)",
        "why_bounce.adds_up": "joma (the division does what it says) | to first order along the updates, the "
        "sets' shares of the rise add up to it",
        "why_bounce.driver": "joma | W_Q and W_K themselves drive the rise: of its first order along the "
        "updates, more than half is theirs",
        **{f"why_bounce.{name}": f"joma, a prediction | {words}" for name, words in PREDICTIONS.items()},
        "why_bounce.was_held": "joma (the intervention does what it says) | the loss term holds the entropy "
        "where it was at the dip",
        "why_bounce.held_costs": "JoMA Sec. 5, poster | the bounce helps: with the entropy held at the dip, "
        "more held-out loss is lost than with the same loss term aimed at the end's entropy (a control that "
        "was added after the first judged runs)",
        "why_bounce.forbidden_costs": "JoMA Sec. 5 (implied) | the dip helps: with the dip forbidden, "
        "held-out loss is lost",
        "why_bounce.forward_saves": "joma | with the entropy at the dip brought to the end's at once, "
        "held-out loss is saved",
    }
)


def interval(values: pd.Series[float]) -> tuple[float, float, float]:
    """Mean over seeds and its 95 % interval by Student's t; NaN bounds of one seed."""
    mean, count = float(values.mean()), len(values)
    half = student.ppf(0.975, count - 1) * values.std(ddof=1) / count**0.5 if count > 1 else np.nan
    return mean, mean - float(half), mean + float(half)


def in_words(values: pd.Series[float]) -> str:
    """``0.12 [0.08, 0.16]``; what is nothing but rounding is 0."""
    mean, low, high = (0.0 if abs(one) < ROUNDING else one for one in interval(values))
    return f"{mean:.3g} [{low:.3g}, {high:.3g}]"


def claims(settings: WhyBounce, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """All of the deepest decoders that were trained; a seed counts once."""
    depth = max(settings.layers)
    own = {name: rows(table, depth=depth) for name, table in tables.items()}
    bounces = _there_is_a_bounce(own)
    judged = [_adds_up(own["bounces"]), _driver(own["forces"]), *_mechanisms(own), *_worth(own)]
    if bounces.verdict == "holds":
        return [bounces, *judged]
    reason = "the decoders do not bounce beyond noise, so that nothing is to be explained"
    return [bounces, *(STATEMENTS[one.id].not_tested(reason) for one in judged)]


def answer(settings: WhyBounce, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """The rise, what it is divided into, and what is undecided."""
    found = claims(settings, tables)
    verdicts = {one.id.partition(".")[2]: one.verdict for one in found}
    depth = max(settings.layers)
    by_seed = rows(tables["bounces"], depth=depth).pivot(index="seed", columns="metric", values="value")
    told = {
        name: ", ".join(one for one in PREDICTIONS if verdicts[one] == verdict) or "none"
        for name, verdict in (("hold", "holds"), ("fail", "fails"), ("undecided", "not tested"))
    }
    return [
        f"From the dip at steps {by_seed['dip_step'].min():.0f} to {by_seed['dip_step'].max():.0f} the "
        f"entropy rises by {in_words(by_seed['rise'])} nats ({len(by_seed)} seeds, mean and 95 % interval).",
        f"Predictions that hold: {told['hold']}; that fail: {told['fail']}; undecided: {told['undecided']}.",
    ]


def _there_is_a_bounce(own: Mapping[str, pd.DataFrame]) -> Claim:
    curves = rows(own["curves"], branch=TWIN).pivot(index="seed", columns="step", values="value")
    found = bounce(curves.columns.to_numpy(), curves.to_numpy())
    by_seed = own["bounces"].pivot(index="seed", columns="metric", values="value")
    statement = STATEMENTS["why_bounce.bounces"]
    return statement.judge(
        at_most(SIGNIFICANT, found.rebound_probability, of="p of the rebound, all seeds together")
        & above(0.0, by_seed["rise"], of="rise", unit="nats", across="in every seed"),
        measured=float(by_seed["rise"].mean()),
        null=found.rebound_null,
        null_description="mean rebound from which on noise of the seeds' spread is excluded (1 in 20)",
        evidence=f"rise in nats {in_words(by_seed['rise'])}, from dips at steps "
        + ", ".join(f"{step:.0f}" for step in by_seed["dip_step"]),
    )


def _adds_up(bounces: pd.DataFrame) -> Claim:
    by_seed = bounces.pivot(index="seed", columns="metric", values="value")
    return STATEMENTS["why_bounce.adds_up"].judge(
        within_error(RESIDUAL, by_seed["residual"], of="residual over the rise", across="in every seed"),
        null=float(by_seed["residual_at_once"].median()),
        null_description="the gradient at the dip times the whole change since, median of the seeds",
        evidence="gradient at the midpoint of every update",
    )


def _driver(forces: pd.DataFrame) -> Claim:
    shares = {}
    for phase, part in forces.groupby("phase"):
        by_set = part.pivot(index="seed", columns="set", values="value")
        shares[phase] = by_set.div(by_set.sum(axis=1), axis=0)
    rise = shares["rise"]
    parts = "; ".join(f"{name} {in_words(rise[name])}" for name in rise if (rise[name] != 0).any())
    return _decide(
        STATEMENTS["why_bounce.driver"],
        rise[QUERIES_KEYS],
        HALF,
        of="W_Q and W_K's share of the rise",
        null=float(shares["fall"][QUERIES_KEYS].mean()),
        null_description="their share of the fall before the dip, mean",
        evidence=f"shares of the rise: {parts}",
    )


def _mechanisms(own: Mapping[str, pd.DataFrame]) -> list[Claim]:
    numbers = own["mechanisms"].pivot(index="seed", columns="metric", values="value")
    chance = float(-numbers[f"entropy, {ORDER}"].mean())
    ways = own["sets"][own["sets"]["time"] == "dip"].pivot_table(
        index="seed", columns=["way", "set"], values="value"
    )
    shares = {
        "queries_keys": ways["brought"][QUERIES_KEYS],
        "embeddings": ways["brought"][EMBEDDINGS],
        "scale": numbers["scale"],
        "memory": ways["frozen"][MLP],
        "norms": ways["frozen"][NORMS],
        "noise": numbers["noise"],
    }
    beside = {
        "queries_keys": f"put back at the end they take away {in_words(ways['put back'][QUERIES_KEYS])}; "
        f"frozen, {in_words(ways['frozen'][QUERIES_KEYS])}; with all else frozen "
        f"{in_words(ways['all else frozen'][QUERIES_KEYS])} comes",
        "embeddings": f"put back at the end they take away {in_words(ways['put back'][EMBEDDINGS])}; "
        f"frozen, {in_words(ways['frozen'][EMBEDDINGS])}; with all else frozen "
        f"{in_words(ways['all else frozen'][EMBEDDINGS])} comes",
        "scale": "the logits' spread at the end over that at the dip: "
        f"{in_words(numbers['spread_of_logits'])}",
        "noise": f"at a tenth of the learning rate {in_words(ways['slow'].iloc[:, 0])} of the rise does not "
        "come",
    }
    found = [
        _decide(
            STATEMENTS[f"why_bounce.{name}"],
            values,
            HALF,
            of="share of the rise",
            null=chance,
            null_description=ANOTHER_ORDER,
            evidence=f"share {in_words(values)}" + (f"; {beside[name]}" if name in beside else ""),
        )
        for name, values in shares.items()
    ]
    rises = {name: numbers[f"rise_{name}"] for name in ("rare", "middle", "frequent")}
    told = ", ".join(f"{name} {in_words(values)}" for name, values in rises.items())
    found.append(
        _decide(
            STATEMENTS["why_bounce.rare_tokens"],
            rises["rare"] - 2 * rises["frequent"],
            0.0,
            of="rise on rare queries less twice that on frequent ones, nats",
            null=float((rises["middle"] - 2 * rises["frequent"]).mean()),
            null_description="the same for the middle third of the text, mean",
            evidence=f"rises in nats by the frequency of the query's token: {told}",
        )
    )
    lost, back = numbers["mass_lost"], numbers["mass_lost_back"]
    found.append(
        _decide(
            STATEMENTS["why_bounce.catch_up"],
            lost - back,
            0.0,
            of="attention lost by salient keys, less that of the way back",
            null=float(back.mean()),
            null_description="attention that keys salient at the end lose on the way back to the dip, mean",
            evidence=f"keys salient at the dip lose {in_words(lost)} of attention",
        )
    )
    by_id = {one.id: one for one in found}
    return [by_id[f"why_bounce.{name}"] for name in PREDICTIONS]


def _worth(own: Mapping[str, pd.DataFrame]) -> list[Claim]:
    numbers = own["mechanisms"].pivot(index="seed", columns="metric", values="value")
    off = {name: (numbers[f"entropy, {name}"] + 1).abs() for name in (HELD, ORDER)}
    was_held = STATEMENTS["why_bounce.was_held"].judge(
        at_most(HALF, off[HELD], of="entropy off the dip's, over the rise,", across="in every seed"),
        null=float(off[ORDER].mean()),
        null_description="the same of twins in another order, mean",
    )
    all_losses = rows(own["losses"], text="held-out")
    by_kind = {
        name: rows(all_losses, branch=name).pivot(index="seed", columns="tokens", values="value")
        for name in (*WORTH.values(), ORDER)
    }
    spread = float((by_kind[ORDER]["all"] ** 2).mean() ** 0.5)
    found = [was_held]
    for short, name in WORTH.items():
        saves = short == "forward"
        losses = by_kind[name] * (-1 if saves else 1)
        control = CONTROLS.get(name, "")
        beyond = by_kind[control]["all"] if control else 0.0
        told = ", ".join(f"{kind} {in_words(losses[kind])}" for kind in losses)
        statement = STATEMENTS["why_bounce.forward_saves" if saves else f"why_bounce.{short}_costs"]
        found.append(
            _decide(
                statement,
                losses["all"] - beyond,
                0.0,
                of=f"held-out loss {'saved' if saves else 'lost'}, nats"
                + (f", beyond that of the entropy {control}" if control else ""),
                null=spread,
                null_description="difference of twins in another order, root mean square",
                evidence=f"nats, by kind of token and place in the window: {told}; on the training text "
                f"{in_words(_training_losses(own['losses'], name) * (-1 if saves else 1))}",
            )
        )
    return found


def _training_losses(losses: pd.DataFrame, name: str) -> pd.Series[float]:
    found: pd.Series[float] = rows(losses, branch=name, text="training", tokens="all").set_index("seed")[
        "value"
    ]
    return found


def _decide(
    statement: Statement,
    values: pd.Series[float],
    threshold: float,
    *,
    of: str,
    null: float,
    null_description: str,
    evidence: str,
) -> Claim:
    """By the interval over seeds: on one side of the threshold, or one cannot tell."""
    mean, low, high = interval(values)
    if low <= threshold <= high:
        return statement.not_tested(
            f"one cannot tell: {of} is {mean:.3g} [{low:.3g}, {high:.3g}], and {threshold:g} lies within; "
            f"null {null:.3g} ({null_description}); {evidence}"
        )
    criterion = at_least(threshold, low, of=f"lower end of the 95 % interval of the {of}")
    return statement.judge(
        criterion, measured=mean, null=null, null_description=null_description, evidence=evidence
    )
