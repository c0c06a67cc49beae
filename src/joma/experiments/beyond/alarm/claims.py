"""What joma's alarm must reach, judged on bases whose seeds no constant was fixed on."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, Criterion, above, at_least, at_most, equal, statements
from joma.core.tables import rows
from joma.experiments.beyond.alarm import Alarm
from joma.experiments.beyond.alarm.branches import BORN_BAD, CONTINUE, HEALTHY, MAIN, OTHERS
from joma.experiments.beyond.alarm.detection import OURS, WHOLE
from joma.experiments.beyond.alarm.intervals import median_bounds, rate_bound, share_bounds
from joma.experiments.beyond.alarm.rules import KURTOSIS, LOSS_CUSUM

FEWEST = 59
"""Bases from which on a bound of 5 % can be shown: 0 of 59."""
DETECTED = 55 / 59
"""Of the damaged runs."""
DETECTS = "by a rule that detects a ramp of W_Q and W_K"
QUIET = "by a rule that is quiet in healthy runs"
"""A rule that never alarms has no false alarms, and one that always does misses nothing: each half of what an
alarm must reach is judged with the other."""
FAST, SLOW = "attention ramp 15", "attention ramp 45"
STATEMENTS = statements(
    {
        f"alarm.{name}": f"joma.Monitor's alarm | {words}"
        for name, words in {
            "false_alarms": "a healthy run that goes on as it was alarms with probability at most 5 %, once "
            f"armed, {DETECTS}",
            "false_rate": f"such runs alarm at most once in 10,000 armed steps, {DETECTS}",
            "armed": "at least four fifths of a run's steps are armed",
            "valid": "at least four fifths of healthy runs are judged, and at most a fifth of them declared "
            "not valid",
            "early": f"early learning, where entropy falls by itself, raises no alarm, {DETECTS}",
            "detected": "a rate of W_Q and W_K that doubles every 15 steps is detected within 100 steps, "
            f"{QUIET}",
            "before": f"its alarm comes before the loss's onset, {QUIET}",
            "lead": f"its median lead is at least 12 steps on the onset, 20 on the loss's CUSUM, {QUIET}",
            "slow_lead": f"where it doubles every 45 steps, at least 30 and 45, {QUIET}",
            "rate_ramp": "on a ramp of all rates the whole monitor is not later than the loss's CUSUM, "
            f"{QUIET}, {DETECTS}",
            "rate_jump": "on a jump of all rates the whole monitor is not later than the loss's CUSUM, "
            f"{QUIET}, {DETECTS}",
            "born_bad": "a run that is born bad gets a state message within 100 steps, by a rule that is "
            "silent in healthy ones",
            "state_in_healthy": "at most 5 % of healthy runs of the same network get a state message, by a "
            "rule that finds those born bad",
        }.items()
    }
)


def claims(settings: Alarm, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """False alarms, arming, early learning, leads, rate faults, born bad; all for looks at every step."""
    main = rows(tables["alarms"], setting=MAIN.name, cadence=1)
    healthy = rows(tables["validity"], setting=MAIN.name, cadence=1, branch=CONTINUE.name)
    if (bases := healthy["base"].nunique()) < FEWEST:
        reason = f"{bases} bases; {FEWEST} show a bound of 5 %"
        return [statement.not_tested(reason) for statement in STATEMENTS.values()]
    return [
        _false_alarms(main),
        _false_rate(main, healthy),
        _judge_arming(healthy),
        _valid(healthy),
        _early(main),
        _judge_detection(main),
        *_leads(main),
        *_rate_faults(main),
        *_born_bad(tables["runs"], tables["states"]),
    ]


def _of(alarms: pd.DataFrame, branch: str, rule: str) -> pd.DataFrame:
    return rows(alarms, branch=branch, rule=rule).sort_values("base")


def _false_alarms(main: pd.DataFrame) -> Claim:
    """A run is a base with its healthy continuation: one alarm in either counts."""
    said = _healthy_alarms(main, WHOLE)
    published = {rule: int(_healthy_alarms(main, rule).sum()) for rule in (KURTOSIS, LOSS_CUSUM)}
    return STATEMENTS["alarm.false_alarms"].judge(
        _quiet(main, WHOLE) & _detects(main),
        null=share_bounds(published[KURTOSIS], len(said))[1],
        null_description="the same bound for the published kurtosis rule (3 MAD)",
        evidence=f"{int(said.sum())} of {len(said)} bases, from scratch to the end of the continuation; "
        f"{LOSS_CUSUM}: {published[LOSS_CUSUM]}, {KURTOSIS}: {published[KURTOSIS]}. Changes that "
        f"do no harm are told as changes: {harmless(main)}.",
    )


def _quiet(main: pd.DataFrame, rule: str) -> Criterion:
    """That a rule alarms in at most 5 % of healthy bases."""
    said = _healthy_alarms(main, rule)
    _, high = share_bounds(int(said.sum()), len(said))
    return at_most(0.05, high, of="upper 95 % bound of the share of bases with a false alarm")


def _detects(main: pd.DataFrame) -> Criterion:
    """That the network's alarm finds the fast ramp of W_Q and W_K."""
    own = _damaged_runs(_of(main, FAST, OURS))
    share = int((own["step"] < 100).sum()) / max(len(own), 1)
    return at_least(DETECTED, share, of="share of the damaged runs detected in time")


def harmless(main: pd.DataFrame) -> str:
    """In how many bases each change that does no harm raises an alarm."""
    bases = main["base"].nunique()
    counts = {one.name: _of(main, one.name, WHOLE)["step"].notna().sum() for one in HEALTHY[1:]}
    return ", ".join(f"{name} {count}" for name, count in counts.items()) + f" of {bases} bases"


def _healthy_alarms(main: pd.DataFrame, rule: str) -> pd.Series[bool]:
    own = rows(main, branch=["base", CONTINUE.name], rule=rule)
    return own.groupby("base")["step"].apply(lambda steps: bool(steps.notna().any()))


def _false_rate(main: pd.DataFrame, healthy: pd.DataFrame) -> Claim:
    own = rows(main, branch=["base", CONTINUE.name])
    counted = own.dropna(subset="step").groupby("rule").size()
    events, published = (int(counted.get(rule, 0)) for rule in (WHOLE, KURTOSIS))
    share = healthy["armed_share"].fillna(0.0)
    length = own.groupby("branch")["steps"].first().sum()
    steps = int((share * length).sum())
    bound = rate_bound(events, steps)
    return STATEMENTS["alarm.false_rate"].judge(
        at_most(1, bound, of="upper 95 % bound of false alarms per 10,000 armed steps") & _detects(main),
        null=rate_bound(published, steps),
        null_description="the same bound for the first alarms of the kurtosis rule (3 MAD)",
        evidence=f"{events} in {steps:,} armed steps of healthy bases.",
    )


def _judge_arming(healthy: pd.DataFrame) -> Claim:
    least = healthy["armed_share"].min()
    return STATEMENTS["alarm.armed"].judge(
        at_least(0.8, least, of="armed share of the steps of base and continuation", across="in every base"),
        evidence=f"first armed at step {healthy['armed_at'].max():g}.",
    )


def _valid(healthy: pd.DataFrame) -> Claim:
    judged = healthy["valid"].dropna()
    return STATEMENTS["alarm.valid"].judge(
        at_most(0.2, (judged == 0).mean(), of="share of the judged healthy bases declared not valid")
        & at_least(0.8, len(judged) / max(len(healthy), 1), of="share of healthy bases that are judged"),
        evidence=f"{len(judged)} of {len(healthy)} bases judged; "
        f"largest drift {healthy['drift'].max():.2f}, variance {healthy['variance'].max():.2f}.",
    )


def _early(main: pd.DataFrame) -> Claim:
    said = _of(main, "base", WHOLE)["step"].notna()
    return STATEMENTS["alarm.early"].judge(
        equal(0, said.sum(), of="number of bases with an alarm on their way from scratch") & _detects(main),
        null=float(_of(main, "base", KURTOSIS)["step"].notna().sum()),
        null_description="the published kurtosis rule (3 MAD) on the same bases",
        evidence=f"{int(said.sum())} of {len(said)} bases.",
    )


def _judge_detection(main: pd.DataFrame) -> Claim:
    own = _damaged_runs(_of(main, FAST, OURS))
    count = int((own["step"] < 100).sum())
    return STATEMENTS["alarm.detected"].judge(
        _detects(main) & at_least(FEWEST, len(own), of="number of damaged runs") & _quiet(main, OURS),
        null=float(_of(main, CONTINUE.name, OURS)["step"].lt(100).mean()),
        null_description="share of the same bases that alarm where nothing is changed",
        evidence=f"{count} of {len(own)}; lower 95 % bound {share_bounds(count, len(own))[0]:.3f}. Alarms "
        "that were withdrawn count as not detected.",
    )


def _damaged_runs(own: pd.DataFrame) -> pd.DataFrame:
    return rows(own, label=["degraded", "collapsed"])


def _leads(main: pd.DataFrame) -> list[Claim]:
    fast = _damaged_runs(_of(main, FAST, OURS))
    before = int((fast["step"] < fast["onset"]).sum())
    loss = {branch: _damaged_runs(_of(main, branch, LOSS_CUSUM)) for branch in (FAST, SLOW)}
    found = [
        STATEMENTS["alarm.before"].judge(
            at_least(0.8, before / max(len(fast), 1), of="share of the damaged runs whose alarm comes before")
            & _quiet(main, OURS),
            null=float((loss[FAST]["step"] < loss[FAST]["onset"]).mean()),
            null_description="share of the same runs in which the loss's CUSUM comes before it",
            evidence=f"{before} of {len(fast)}.",
        )
    ]
    for name, branch, onset, cusum in (("lead", FAST, 12, 20), ("slow_lead", SLOW, 30, 45)):
        own = _damaged_runs(_of(main, branch, OURS))
        on_onset = own["lead_on_onset"].dropna().to_numpy()
        on_cusum = own["lead_on_cusum"].dropna().to_numpy()
        lower = [median_bounds(values)[0] for values in (on_onset, on_cusum)]
        medians = [float(pd.Series(values).median()) for values in (on_onset, on_cusum)]
        factor = int(branch.rpartition(" ")[2])
        found.append(
            STATEMENTS[f"alarm.{name}"].judge(
                at_least(onset, medians[0], of="median lead on the onset", unit="steps")
                & at_least(cusum, medians[1], of="median lead on the loss's CUSUM", unit="steps")
                & above(0, lower, of="lower 95 % bound of the median", across="for both", unit="steps")
                & _quiet(main, OURS),
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
        own = _damaged_runs(_of(main, branch, WHOLE))
        later = own["lead_on_cusum"] < 0
        found.append(
            STATEMENTS[f"alarm.{name}"].judge(
                equal(
                    0, later.sum(), of="number of damaged runs in which the monitor is later than the CUSUM"
                )
                & above(0, len(own), of="number of damaged runs")
                & _quiet(main, WHOLE)
                & _detects(main),
                null=float((_damaged_runs(_of(main, branch, OURS))["lead_on_cusum"] < 0).sum()),
                null_description="runs in which the network's alarm alone is later",
                evidence=f"{len(own)} damaged runs; median lead {own['lead_on_cusum'].median():g} steps; "
                "attention alone is claimed to lead nothing here.",
            )
        )
    return found


def _born_bad(runs: pd.DataFrame, states: pd.DataFrame) -> list[Claim]:
    table = runs.merge(states, on=["setting", "branch", "base"])
    scratch = rows(table, branch="base")
    bad = _damaged_runs(rows(scratch, setting=[s.name for s in BORN_BAD if "qk-norm" not in s.name]))
    count = int((bad["step"] < 100).sum())
    share = count / max(len(bad), 1)
    healthy = rows(scratch, setting=MAIN.name)
    false = int(healthy["step"].notna().sum())
    finds = at_least(0.95, share, of="share of the damaged runs at rate 1e-1 with a message within 100 steps")
    silent = at_most(0.05, false / max(len(healthy), 1), of="share of the bases with a state message")
    return [
        STATEMENTS["alarm.born_bad"].judge(
            finds & silent,
            null=false / max(len(healthy), 1),
            null_description="share of healthy runs from scratch with a state message",
            evidence=f"{count} of {len(bad)}; lower 95 % bound {share_bounds(count, len(bad))[0]:.3f}.",
        ),
        STATEMENTS["alarm.state_in_healthy"].judge(
            silent & finds,
            null=share,
            null_description="share of the runs that are born bad",
            evidence=f"{false} of {len(healthy)}; upper bound {share_bounds(false, len(healthy))[1]:.3f}.",
        ),
    ]


def answer(settings: Alarm, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """False alarms and leads, in numbers."""
    every = rows(tables["alarms"], cadence=1)
    main = rows(every, setting=MAIN.name)
    healthy = _healthy_alarms(main, WHOLE)
    ramp = _damaged_runs(_of(main, FAST, OURS))
    told = [
        f"The whole monitor alarmed falsely in {int(healthy.sum())} of {len(healthy)} healthy bases; of "
        f"{len(ramp)} damaged by a ramp of W_Q and W_K it found {int(ramp['step'].notna().sum())}, in the "
        f"median {ramp['lead_on_onset'].median():g} steps before the loss rose."
    ]
    others = {one.name: _healthy_alarms(rows(every, setting=one.name), WHOLE) for one in OTHERS}
    if any(len(said) for said in others.values()):
        counted = ", ".join(
            f"{name} {int(said.sum())} of {len(said)}" for name, said in others.items() if len(said)
        )
        told.append(f"In other settings, for which no constant was chosen, it alarmed falsely: {counted}.")
    return told
