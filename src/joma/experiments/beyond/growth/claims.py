"""What the rule between looks must reach, on kinds of networks that no constant was chosen on."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, above, at_least, at_most, statements
from joma.core.tables import rows
from joma.experiments.beyond.alarm.intervals import share_bounds
from joma.experiments.beyond.growth import Growth
from joma.experiments.beyond.growth.kinds import BRANCHES, RAMP

FEWEST, FEWEST_FORECASTS = 59, 60
"""Bases from which on a bound of 5 % can be shown, and collapses of which forecasts are judged."""
DOUBLED = "rate x2"
STATEMENTS = statements(
    {
        "growth.quiet": "joma.Monitor | in healthy runs of kinds that no constant was chosen on the growth "
        "of W_Q^T W_K is told in at most 5 % of bases, by a rule that finds ramps",
        "growth.doubled": "joma.Monitor | a doubled learning rate whose run stays healthy is told in at most "
        "10 %, by a rule that finds ramps",
        "growth.detected": "joma.Monitor | of the runs that a ramp of the rates of W_Q and W_K damages at "
        "least 90 % are found, whatever the cadence of looks, by a rule that is quiet in healthy runs",
        "growth.before": "joma.Monitor | at least three quarters of them are found before the loss's onset, "
        "by such a rule",
        "growth.lead": "joma.Monitor | the median lead on the loss's CUSUM is at least ten steps, by such a "
        "rule",
        "growth.forecast": "joma.Monitor | of the forecast intervals of eight in ten, seven to nine hold",
    }
)


def claims(settings: Growth, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """False alarms, ramps found, leads, forecasts; all over bases of every kind together."""
    runs = tables["runs"]
    bases = len(runs[["kind", "base"]].drop_duplicates())
    if settings.kinds != "judged" or bases < FEWEST:
        reason = f"{bases} bases; {FEWEST} show a bound of 5 %" if settings.kinds == "judged" else "chosen on"
        return [statement.not_tested(reason) for statement in STATEMENTS.values()]
    said, of = quiet_bases(runs)
    ramps = rows(tables["rates"], kind="all", branch=RAMP).set_index("metric")
    found, before = (ramps.loc[f"damaged runs alarmed{words}"] for words in ("", " before the onset"))
    quiet = at_most(
        0.05, share_bounds(said, of)[1], of="upper 95 % bound of the share of bases with an alarm"
    )
    detects = at_least(0.9, float(found["value"]), of="share of the damaged runs found")
    lead = tables["leads"].set_index("metric").loc["lead_on_cusum"]
    doubled = runs[(runs["branch"] == DOUBLED) & ~runs["label"].isin(("degraded", "collapsed"))]
    share = float(doubled["alarm"].notna().mean())
    null = "a rule that always alarms" if said < of else "none"
    return [
        STATEMENTS["growth.quiet"].judge(
            quiet & detects,
            null=1.0,
            null_description=f"the same of {null}",
            evidence=f"{said} of {of} bases, from scratch to the ends of their healthy branches.",
        ),
        STATEMENTS["growth.doubled"].judge(
            at_most(0.1, share, of="share of the runs that stay healthy with an alarm") & detects,
            evidence=f"{int(doubled['alarm'].notna().sum())} of {len(doubled)} runs.",
        ),
        STATEMENTS["growth.detected"].judge(
            detects & quiet, evidence=f"{int(found['count'])} of {int(found['of'])} damaged runs."
        ),
        STATEMENTS["growth.before"].judge(
            at_least(0.75, float(before["value"]), of="share of the damaged runs alarmed before the onset")
            & quiet,
            evidence=f"{int(before['count'])} of {int(before['of'])} damaged runs.",
        ),
        STATEMENTS["growth.lead"].judge(
            at_least(10, float(lead["value"]), of="median lead", unit="steps")
            & above(0, float(lead["low"]), of="its lower 95 % bound", unit="steps")
            & quiet,
            evidence=f"{int(lead['of'])} damaged runs.",
        ),
        _judge_forecasts(runs),
    ]


def quiet_bases(runs: pd.DataFrame) -> tuple[int, int]:
    """Bases with an alarm in a healthy run (a doubled rate aside), and all bases."""
    names = {"base", *(branch.name for branch in BRANCHES if branch.kind == "healthy")} - {DOUBLED}
    healthy = runs[runs["branch"].isin(names)]
    said = healthy.groupby(["kind", "base"])["alarm"].apply(lambda alarms: bool(alarms.notna().any()))
    return int(said.sum()), len(said)


def held_forecasts(runs: pd.DataFrame) -> tuple[int, int]:
    """Forecasts of a head's logit of 100 whose interval held it, and all of heads that reached it."""
    told = runs.dropna(subset=["forecast", "logit_100"])
    held = (told["logit_100"] >= told["low"]) & (told["logit_100"] <= told["high"])
    return int(held.sum()), len(told)


def _judge_forecasts(runs: pd.DataFrame) -> Claim:
    held, of = held_forecasts(runs)
    if of < FEWEST_FORECASTS:
        return STATEMENTS["growth.forecast"].not_tested(
            f"{held} of {of} intervals held; {FEWEST_FORECASTS} collapses judge them"
        )
    share = held / of
    return STATEMENTS["growth.forecast"].judge(
        at_least(0.7, share, of="share that held") & at_most(0.9, share, of="share that held"),
        evidence=f"{held} of {of} intervals.",
    )


def answer(settings: Growth, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """What was found, in two sentences."""
    runs = tables["runs"]
    said, of = quiet_bases(runs)
    ramps = rows(tables["rates"], kind="all", branch=RAMP).set_index("metric")
    found = ramps.loc["damaged runs alarmed"]
    return [
        f"The growth of W_Q^T W_K was told in {said} of {of} healthy bases and in {int(found['count'])} of "
        f"{int(found['of'])} runs that a ramp of the rates of W_Q and W_K damaged.",
        f"Of {held_forecasts(runs)[1]} forecasts {held_forecasts(runs)[0]} held.",
    ]
