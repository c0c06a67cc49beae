"""What joma's alarm must reach, judged on bases whose seeds no constant was fixed on."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, Facts, judge, not_tested
from joma.experiments.beyond.alarm import Alarm
from joma.experiments.beyond.alarm.branches import BORN_BAD, CONTINUE, HEALTHY, MAIN, OTHERS
from joma.experiments.beyond.alarm.detection import OURS, WHOLE
from joma.experiments.beyond.alarm.intervals import median_bounds, rate_bound, share_bounds
from joma.experiments.beyond.alarm.rules import KURTOSIS, LOSS_CUSUM

FEWEST = 59
"""Bases from which on a bound of 5 % can be shown: 0 of 59."""
SOURCE = "joma.Monitor's alarm"
FAST, SLOW = "attention ramp 15", "attention ramp 45"


def claims(settings: Alarm, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """False alarms, arming, early learning, leads, rate faults, born bad; all for looks at every step."""
    alarms = tables["alarms"]
    main = alarms[(alarms["setting"] == MAIN.name) & (alarms["cadence"] == 1)]
    validity = tables["validity"]
    healthy = validity[
        (validity["setting"] == MAIN.name)
        & (validity["cadence"] == 1)
        & (validity["branch"] == CONTINUE.name)
    ]
    if healthy["base"].nunique() < FEWEST:
        return [
            not_tested(**facts, reason=f"{healthy['base'].nunique()} bases; {FEWEST} show a bound of 5 %")
            for facts in _STATED.values()
        ]
    return [
        _false_alarms(main),
        _false_rate(main, healthy),
        _armed(healthy),
        _valid(healthy),
        _early(main),
        _detected(main),
        *_leads(main),
        *_rate_faults(main),
        *_born_bad(tables["runs"], tables["states"]),
    ]


def _fact(name: str, statement: str) -> Facts:
    return {"id": f"alarm.{name}", "source": SOURCE, "statement": statement}


_STATED: Mapping[str, Facts] = {
    fact["id"].partition(".")[2]: fact
    for fact in (
        _fact(
            "false_alarms",
            "a healthy run that goes on as it was alarms with probability at most 5 %, once armed",
        ),
        _fact("false_rate", "such runs alarm at most once in 10,000 armed steps"),
        _fact("armed", "at least four fifths of a run's steps are armed"),
        _fact("valid", "at most a fifth of healthy runs are declared not valid"),
        _fact("early", "early learning, where entropy falls by itself, raises no alarm"),
        _fact("detected", "a rate of W_Q and W_K that doubles every 15 steps is detected within 100 steps"),
        _fact("before", "its alarm comes before the loss's onset"),
        _fact("lead", "its median lead is at least 12 steps on the onset, 20 on the loss's CUSUM"),
        _fact("slow_lead", "where it doubles every 45 steps, at least 30 and 45"),
        _fact("rate_ramp", "on a ramp of all rates the whole monitor is not later than the loss's CUSUM"),
        _fact("rate_jump", "on a jump of all rates the whole monitor is not later than the loss's CUSUM"),
        _fact("born_bad", "a run that is born bad gets a state message within 100 steps"),
        _fact("state_in_healthy", "at most 5 % of healthy runs of the same network get a state message"),
    )
}


def _of(alarms: pd.DataFrame, branch: str, rule: str) -> pd.DataFrame:
    return alarms[(alarms["branch"] == branch) & (alarms["rule"] == rule)].sort_values("base")


def _false_alarms(main: pd.DataFrame) -> Claim:
    """A run is a base with its healthy continuation: one alarm in either counts."""
    said = _healthy_alarms(main, WHOLE)
    _, high = share_bounds(int(said.sum()), len(said))
    published = {rule: int(_healthy_alarms(main, rule).sum()) for rule in (KURTOSIS, LOSS_CUSUM)}
    return judge(
        high <= 0.05,
        **_STATED["false_alarms"],
        expected="upper 95 % bound of the share of bases with a false alarm at most 5 %",
        measured=high,
        tolerance=0.05,
        null=share_bounds(published[KURTOSIS], len(said))[1],
        null_description="the same bound for the published kurtosis rule (3 MAD)",
        evidence=f"{int(said.sum())} of {len(said)} bases, from scratch to the end of the continuation; "
        f"{LOSS_CUSUM}: {published[LOSS_CUSUM]}, {KURTOSIS}: {published[KURTOSIS]}. Changes that "
        f"do no harm are told as changes: {harmless(main)}.",
    )


def harmless(main: pd.DataFrame) -> str:
    """In how many bases each change that does no harm raises an alarm."""
    bases = main["base"].nunique()
    counts = {one.name: _of(main, one.name, WHOLE)["step"].notna().sum() for one in HEALTHY[1:]}
    return ", ".join(f"{name} {count}" for name, count in counts.items()) + f" of {bases} bases"


def _healthy_alarms(main: pd.DataFrame, rule: str) -> pd.Series[bool]:
    own = main[main["branch"].isin(("base", CONTINUE.name)) & (main["rule"] == rule)]
    return own.groupby("base")["step"].apply(lambda steps: bool(steps.notna().any()))


def _false_rate(main: pd.DataFrame, healthy: pd.DataFrame) -> Claim:
    own = main[main["branch"].isin(("base", CONTINUE.name))]
    counted = own.dropna(subset="step").groupby("rule").size()
    events, published = (int(counted.get(rule, 0)) for rule in (WHOLE, KURTOSIS))
    share = healthy["armed_share"].fillna(0.0)
    length = own.groupby("branch")["steps"].first().sum()
    steps = int((share * length).sum())
    bound = rate_bound(events, steps)
    return judge(
        bound <= 1.0,
        **_STATED["false_rate"],
        expected="upper 95 % bound of false alarms per 10,000 armed steps at most 1",
        measured=bound,
        tolerance=1.0,
        null=rate_bound(published, steps),
        null_description="the same bound for the first alarms of the kurtosis rule (3 MAD)",
        evidence=f"{events} in {steps:,} armed steps of healthy bases.",
    )


def _armed(healthy: pd.DataFrame) -> Claim:
    least = float(healthy["armed_share"].min())
    return judge(
        least >= 0.8,
        **_STATED["armed"],
        expected="armed share of the steps of base and continuation at least 0.8",
        measured=least,
        tolerance=0.8,
        evidence=f"first armed at step {healthy['armed_at'].max():g}.",
    )


def _valid(healthy: pd.DataFrame) -> Claim:
    share = float((~healthy["valid"].astype(bool)).mean())
    return judge(
        share <= 0.2,
        **_STATED["valid"],
        expected="share of healthy bases declared not valid at most 0.2",
        measured=share,
        tolerance=0.2,
        evidence=f"largest drift {healthy['drift'].max():.2f}, variance {healthy['variance'].max():.2f}.",
    )


def _early(main: pd.DataFrame) -> Claim:
    said = _of(main, "base", WHOLE)["step"].notna()
    return judge(
        not said.any(),
        **_STATED["early"],
        expected="no base with an alarm on its way from scratch",
        measured=float(said.sum()),
        tolerance=0.0,
        null=float(_of(main, "base", KURTOSIS)["step"].notna().sum()),
        null_description="the published kurtosis rule (3 MAD) on the same bases",
        evidence=f"{int(said.sum())} of {len(said)} bases.",
    )


def _detected(main: pd.DataFrame) -> Claim:
    own = _damaged(_of(main, FAST, OURS))
    count = int((own["step"] < 100).sum())
    return judge(
        count >= 55 / 59 * len(own) and len(own) >= FEWEST,
        **_STATED["detected"],
        expected="at least 55 of 59 runs that were damaged",
        measured=count / max(len(own), 1),
        tolerance=55 / 59,
        null=float(_of(main, CONTINUE.name, OURS)["step"].lt(100).mean()),
        null_description="share of the same bases that alarm where nothing is changed",
        evidence=f"{count} of {len(own)}; lower 95 % bound {share_bounds(count, len(own))[0]:.3f}. Alarms "
        "that were withdrawn count as not detected.",
    )


def _damaged(own: pd.DataFrame) -> pd.DataFrame:
    return own[own["label"].isin(("degraded", "collapsed"))]


def _leads(main: pd.DataFrame) -> list[Claim]:
    fast = _damaged(_of(main, FAST, OURS))
    before = int((fast["step"] < fast["onset"]).sum())
    loss = {branch: _damaged(_of(main, branch, LOSS_CUSUM)) for branch in (FAST, SLOW)}
    found = [
        judge(
            before >= 0.8 * len(fast),
            **_STATED["before"],
            expected="at least 48 of 60 damaged runs",
            measured=before / max(len(fast), 1),
            tolerance=0.8,
            null=float((loss[FAST]["step"] < loss[FAST]["onset"]).mean()),
            null_description="share of the same runs in which the loss's CUSUM comes before it",
            evidence=f"{before} of {len(fast)}.",
        )
    ]
    for name, branch, onset, cusum in (
        ("lead", FAST, 12, 20),
        ("slow_lead", SLOW, 30, 45),
    ):
        own = _damaged(_of(main, branch, OURS))
        on_onset = own["lead_on_onset"].dropna().to_numpy()
        on_cusum = own["lead_on_cusum"].dropna().to_numpy()
        lower = [median_bounds(values)[0] for values in (on_onset, on_cusum)]
        medians = [float(pd.Series(values).median()) for values in (on_onset, on_cusum)]
        factor = int(branch.rpartition(" ")[2])
        found.append(
            judge(
                medians[0] >= onset and medians[1] >= cusum and min(lower) > 0,
                **_STATED[name],
                expected=f"medians of at least {onset} and {cusum} steps, lower 95 % bounds above 0",
                measured=medians[0],
                tolerance=float(onset),
                null=float(loss[branch]["lead_on_onset"].median()),
                null_description="median lead of the loss's CUSUM on the onset, the same runs",
                evidence=f"medians {medians[0]:g} and {medians[1]:g} steps, lower bounds {lower[0]:g} and "
                f"{lower[1]:g}, {len(own)} damaged runs. {medians[0]:g} steps are a factor of "
                f"{2 ** (medians[0] / factor):.2g} in the rate, and {medians[0] / own['steps'].max():.0%} of "
                "the branch.",
            )
        )
    return found


def _rate_faults(main: pd.DataFrame) -> list[Claim]:
    found = []
    for name, branch in (("rate_ramp", "rate ramp 20"), ("rate_jump", "rate jump")):
        own = _damaged(_of(main, branch, WHOLE))
        later = own["lead_on_cusum"] < 0
        found.append(
            judge(
                not later.any() and len(own) > 0,
                **_STATED[name],
                expected="no damaged run in which the whole monitor is later than the loss's CUSUM",
                measured=float(later.sum()),
                tolerance=0.0,
                null=float((_damaged(_of(main, branch, OURS))["lead_on_cusum"] < 0).sum()),
                null_description="runs in which the network's alarm alone is later",
                evidence=f"{len(own)} damaged runs; median lead {own['lead_on_cusum'].median():g} steps; "
                "attention alone is claimed to lead nothing here.",
            )
        )
    return found


def _born_bad(runs: pd.DataFrame, states: pd.DataFrame) -> list[Claim]:
    table = runs.merge(states, on=["setting", "branch", "base"])
    scratch = table[table["branch"] == "base"]
    bad = scratch[
        scratch["setting"].isin([setting.name for setting in BORN_BAD])
        & scratch["label"].isin(("degraded", "collapsed"))
        & ~scratch["setting"].str.contains("qk-norm")
    ]
    count = int((bad["step"] < 100).sum())
    share = count / max(len(bad), 1)
    healthy = scratch[scratch["setting"] == MAIN.name]
    false = int(healthy["step"].notna().sum())
    return [
        judge(
            share >= 0.95 and len(bad) > 0,
            **_STATED["born_bad"],
            expected="at least 95 % of the runs at rate 1e-1 that end 0.15 nats above their twin",
            measured=share,
            tolerance=0.95,
            null=false / max(len(healthy), 1),
            null_description="share of healthy runs from scratch with a state message",
            evidence=f"{count} of {len(bad)}; lower 95 % bound {share_bounds(count, len(bad))[0]:.3f}.",
        ),
        judge(
            false <= 0.05 * len(healthy),
            **_STATED["state_in_healthy"],
            expected="at most 5 % of the bases",
            measured=false / max(len(healthy), 1),
            tolerance=0.05,
            null=share,
            null_description="share of the runs that are born bad",
            evidence=f"{false} of {len(healthy)}; upper bound {share_bounds(false, len(healthy))[1]:.3f}.",
        ),
    ]


def answer(settings: Alarm, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """False alarms and leads, in numbers."""
    alarms = tables["alarms"]
    every = alarms[alarms["cadence"] == 1]
    main = every[every["setting"] == MAIN.name]
    healthy = _healthy_alarms(main, WHOLE)
    ramp = _damaged(_of(main, FAST, OURS))
    told = [
        f"The whole monitor alarmed falsely in {int(healthy.sum())} of {len(healthy)} healthy bases; of "
        f"{len(ramp)} damaged by a ramp of W_Q and W_K it found {int(ramp['step'].notna().sum())}, in the "
        f"median {ramp['lead_on_onset'].median():g} steps before the loss rose."
    ]
    others = {one.name: _healthy_alarms(every[every["setting"] == one.name], WHOLE) for one in OTHERS}
    if any(len(said) for said in others.values()):
        counted = ", ".join(
            f"{name} {int(said.sum())} of {len(said)}" for name, said in others.items() if len(said)
        )
        told.append(f"In other settings, for which no constant was chosen, it alarmed falsely: {counted}.")
    return told
