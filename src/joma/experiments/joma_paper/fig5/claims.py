"""The order of association, whether the rest follow, and the linear control."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import pandas as pd
from scipy.stats import rankdata, spearmanr

from joma.core.claim import Claim, at_least, at_most, below, equal, statements, within_error
from joma.core.tables import rows
from joma.experiments.joma_paper.fig5 import RUNS, Fig5
from joma.experiments.joma_paper.fig5.permutations import distinct_permutations
from joma.experiments.joma_paper.fig5.rate_ratios import threshold

SIGNIFICANT = 0.05
LEAST_REBOUND = 0.1
STATIONARY = 0.25
TO_PREDICT = 0.05
"""Nats above which a rebound of the trained block has to be predicted."""
LEVEL = 0.01
"""Nats at which the block counts as bouncing, where the onset in eta_z/eta_w is sought."""
REBOUND_ERROR, THRESHOLD_ERROR = 0.25, 0.2
"""Relative errors within which the rebounds and that onset are right."""
WINNER = 0.99

STATEMENTS = statements(
    {
        "fig5.block_law": "JoMA Eq. 6, corrected, on Fig. 5's data | How far attention spreads again in the "
        "trained block, and from which eta_z/eta_w on, follows from the corrected law with the drift of the "
        "tree's contexts under uniform attention.",
        "fig5.rest_follows_in_equation_6": "JoMA Sec. 5, Fig. 5(b), Eq. 6 | Under Eq. 6 attention spreads "
        "again: it gradually reaches out to the tokens that co-occur less.",
        "fig5.rest_follows_in_block": "JoMA Sec. 5, Fig. 5(b) | In the block itself, trained through ReLU "
        "with the feedback of its loss at equal rates (eta_z = eta_w), attention spreads again.",
        "fig5.linear_control": "JoMA Thm 2 | With linear activation and constant g the sibling takes all "
        "attention and the rest never follow.",
        "fig5.nonlinearity_alone": "JoMA Sec. 4, Sec. 5 | It is the nonlinearity that lets the rest follow: "
        "with the same constant g, ReLU rebounds where linear does not.",
        "fig5.gradients_are_stationary": "JoMA Assumption 1 | Back-propagated gradients stay what they "
        f"were along the joint training of the block ({RUNS['relu-feedback']}).",
        "fig5.order_{run}": "JoMA Sec. 5, Fig. 5(b) | Tokens under the query's lowest ancestor are "
        "associated first ({described}).",
    }
)


def claims(settings: Fig5, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Order for each run; whether the rest follow, in Eq. 6 and in the block; the linear control."""
    rebounds = {run: _rebound(part) for run, part in tables["entropy"].groupby("run")}
    shares = {run: _sibling_share(part) for run, part in tables["curves"].groupby("run")}
    associated = rows(tables["order"], run="eq6")["time"].notna().mean()
    start = _sibling_share(rows(tables["curves"], run="linear-constant"), at="first")
    return [
        *(_order_claim(run, tables["order"]) for run in RUNS),
        STATEMENTS["fig5.rest_follows_in_equation_6"].not_tested(
            "by construction: every weight of Eq. 6 ends at the mu that is put in, so attention ends "
            f"as spread as these are (here the entropy rises by {rebounds['eq6']:.3g} nats after its dip and "
            f"{associated:.0%} of the tokens are associated); what the block itself does is another claim"
        ),
        STATEMENTS["fig5.rest_follows_in_block"].judge(
            at_least(
                LEAST_REBOUND,
                rebounds["relu-feedback"],
                of="rise of the attention entropy after its dip",
                unit="nats",
            ),
            null=rebounds["linear-feedback"],
            null_description="the same with linear activation",
            evidence=f"nats; with constant g {rebounds['relu-constant']:.3g}",
        ),
        _stationary(tables["gradients"], settings.level),
        _block_law(tables["rate_ratios"], tables["uniform"]["value"]),
        STATEMENTS["fig5.linear_control"].judge(
            at_least(WINNER, shares["linear-constant"], of="the sibling's share of the attention at the end")
            & below(LEAST_REBOUND, rebounds["linear-constant"], of="rebound", unit="nats"),
            null=start,
            null_description="its share at the start",
            evidence=f"rebound {rebounds['linear-constant']:.3g} nats, up to the blow-up",
        ),
        STATEMENTS["fig5.nonlinearity_alone"].judge(
            at_least(LEAST_REBOUND, rebounds["relu-constant"], of="rebound with ReLU", unit="nats")
            & below(
                LEAST_REBOUND, rebounds["linear-constant"], of="rebound with linear activation", unit="nats"
            ),
            null=rebounds["linear-constant"],
            null_description="rebound with linear activation",
            evidence=f"the sibling ends with {shares['relu-constant']:.3f} of the attention under ReLU, "
            f"{shares['linear-constant']:.3f} under linear",
        ),
    ]


def _stationary(gradients: pd.DataFrame, level: float) -> Claim:
    """Assumption 1 along the joint training of the block with its loss's feedback."""
    table = gradients.pivot_table(index="time", columns="metric", values="value")
    change = table["change"]
    associated = table.index[table["sibling"] >= level]
    then = (
        f"{change[associated[0]]:.2f} when the sibling is associated" if len(associated) else "sibling never"
    )
    return STATEMENTS["fig5.gradients_are_stationary"].judge(
        at_most(
            STATIONARY,
            change,
            of="root mean square change, in units of their size at the start,",
            across="at all times",
        ),
        null=table["change, contexts shuffled"].max(),
        null_description="the same with gradients dealt to other contexts",
        evidence=f"{then}, {change.iloc[-1]:.2f} at the end",
    )


def _block_law(table: pd.DataFrame, mu: pd.Series) -> Claim:
    """The block's rebound at other rates, beside that of the law with the contexts' own drift."""
    statement = STATEMENTS["fig5.block_law"]
    rebounds = table.pivot_table(index="kappa", columns="run", values="value")
    deep = rebounds[rebounds["trained"] > TO_PREDICT]
    if deep.empty:
        return statement.not_tested(
            f"the trained block spreads again by at most {rebounds['trained'].max():.2g} nats at every "
            "eta_z/eta_w of the run: there is nothing to predict"
        )
    errors = {law: (deep[law] / deep["trained"] - 1).abs() for law in ("drift", "rest")}
    kappas = rebounds.index.to_numpy()
    reached = {
        run: threshold(kappas, rebounds[run].to_numpy(), LEVEL) for run in ("trained", "drift", "rest")
    }
    listed = {
        run: ", ".join(f"{value:.3f}" for value in rebounds[run]) for run in ("trained", "drift", "rest")
    }
    return statement.judge(
        within_error(
            REBOUND_ERROR,
            errors["drift"],
            of="relative error of the rebound",
            across=f"at every eta_z/eta_w where the block's exceeds {TO_PREDICT:g} nats",
        )
        & within_error(
            THRESHOLD_ERROR,
            abs(reached["drift"] / reached["trained"] - 1),
            of=f"relative error of the eta_z/eta_w at which it reaches {LEVEL:g} nats",
        ),
        null=errors["rest"].max(),
        null_description="relative error of the rebound by C = I about where uniform attention ends",
        evidence=f"eta_z/eta_w = {', '.join(f'{kappa:g}' for kappa in kappas)}: rebound in nats of the block "
        f"{listed['trained']}, law {listed['drift']}, C = I {listed['rest']}; {LEVEL:g} nats at "
        f"{reached['trained']:.3g}, {reached['drift']:.3g}, {reached['rest']:.3g}; uniform attention ends at "
        f"|mu| from {mu.abs().min():.3g} to {mu.abs().max():.3g}",
    )


def _order_claim(run: str, order: pd.DataFrame) -> Claim:
    """Rank correlation of height and moment, against every way to shuffle the tree."""
    part = rows(order, run=run)
    heights, times = part["height"].to_numpy(), part["time"].to_numpy()
    # Moments that differ by the solver's error are the same moment: the tokens of one height are alike.
    moments = np.array([float(f"{t:.6g}") if np.isfinite(t) else np.inf for t in times])
    ranks = rankdata(moments)
    if len(set(ranks)) < 2:
        found, shuffled = 0.0, np.zeros(1)
    else:
        found = float(spearmanr(heights, ranks).statistic)
        shuffled = np.array([spearmanr(h, ranks).statistic for h in distinct_permutations(heights)])
    by_height = part.assign(time=moments).groupby("height")["time"].mean()
    probability = float(np.mean(shuffled >= found - 1e-9))
    listed = ", ".join(f"H = {h}: {t:.3g}" for h, t in by_height.items())
    return (
        STATEMENTS["fig5.order_{run}"]
        .fill(run=run.replace("-", "_"), described=RUNS[run])
        .judge(
            below(
                SIGNIFICANT, probability, of="share of shuffled trees whose heights order the moments as well"
            )
            & equal(
                heights.min(),
                heights[moments == moments.min()],
                of="height of the tokens associated first",
                than="that of the sibling",
            ),
            measured=found,
            null=np.quantile(shuffled, 1 - SIGNIFICANT),
            null_description="rank correlation that 1 in 20 shuffled trees exceeds",
            evidence=f"moments {listed} (inf: never); p = {probability:.2g} of {len(shuffled)} trees",
        )
    )


def _rebound(entropy: pd.DataFrame) -> float:
    value = entropy.sort_values("time")["value"].to_numpy()
    return float(value[value.argmin() :].max() - value.min())


def _sibling_share(curves: pd.DataFrame, at: Literal["first", "last"] = "last") -> float:
    moment = curves["time"].min() if at == "first" else curves["time"].max()
    there = curves[(curves["time"] == moment) & (curves["height"] == curves["height"].min())]
    return float(there["attention"].sum())
