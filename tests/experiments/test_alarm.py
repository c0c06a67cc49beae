from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.beyond.alarm import Alarm, run, training
from joma.experiments.beyond.alarm import claims as judged_by
from joma.experiments.beyond.alarm.branches import (
    ALL,
    BORN_BAD,
    CONTINUE,
    MAIN,
    OTHERS,
    Branch,
    Group,
    groups,
)
from joma.experiments.beyond.alarm.detection import OURS, WHOLE
from joma.experiments.beyond.alarm.intervals import median_bounds, rate_bound, share_bounds
from joma.experiments.beyond.alarm.labels import RISE, at_end, became, onset
from joma.experiments.beyond.alarm.rules import LOSS_CUSUM, histories, with_nan
from joma.experiments.beyond.alarm.training import columns_of, train_group

BASE, BASES = 260, 6
COLUMNS = columns_of(2, 4)


def synthetic(setting: str, side: str, branch: Branch | None, rng: np.random.Generator) -> pd.DataFrame:
    """Series of six bases: quiet, or, in a fault, entropies that fall from step 20, a loss from step 60."""
    steps, start = (BASE, 0) if branch is None else (branch.steps, BASE)
    time = np.arange(steps)[:, None]
    parts = []
    for base in range(BASES):
        values = {name: np.full(steps, np.nan) for name in COLUMNS}
        fault = branch is not None and branch.kind != "healthy"
        bad = setting == BORN_BAD[0].name
        falls = 0.15 * np.maximum(time[:, 0] - 20, 0) * fault + 9 * bad
        for name in COLUMNS:
            noise = rng.standard_normal(steps)
            if name.startswith("normalised_entropy"):
                values[name] = 1 / (1 + np.exp(falls + 0.1 * noise))
            elif name.startswith("largest_logit"):
                values[name] = np.exp(2 + falls + 0.05 * noise)
            elif name.startswith("residual"):
                values[name] = np.exp(1 + 0.02 * noise)
            elif name.startswith("spectral"):
                values[name][::10] = 3 + 0.05 * noise[::10]
        values["loss"] = 2 + bad + 0.02 * rng.standard_normal(steps)
        values["loss"] += 0.02 * np.maximum(time[:, 0] - 60, 0) * fault
        values["gradient_norm"] = np.exp(0.1 * rng.standard_normal(steps))
        parts.append(pd.DataFrame(values).assign(base=base, step=np.arange(start, start + steps)))
    table = pd.concat(parts).assign(setting=setting, side=side, branch=branch.name if branch else "base")
    return table[["setting", "side", "base", "branch", "step", *COLUMNS]]


class Synthetic(Progress):
    """Hands out series as if they had been trained."""

    def parts(self, computations):
        rng = np.random.default_rng(0)
        found = {}
        for group in groups(SETTINGS):
            runs = [None, *group.branches()]
            tables = [synthetic(group.setting.name, group.side, branch, rng) for branch in runs]
            found[group.name] = pd.concat(tables, ignore_index=True)
        assert found.keys() == computations.keys()
        return found


SETTINGS = Alarm(bases=BASES, group=BASES, base_steps=BASE, corpus="python-reference")


@pytest.fixture(scope="module")
def tables():
    return run.run(SETTINGS, Synthetic(quiet=True))


def test_tables(tables) -> None:
    runs = tables["runs"]
    labels = runs[runs["setting"] == MAIN.name].groupby("branch")["label"].unique().map(set)
    assert labels["attention ramp 15"] == {"collapsed"}
    assert labels[CONTINUE.name] == labels["decay"] == labels["base"] == {"healthy"}
    assert labels["nan at one step"] == {"recovered"}
    assert set(runs[runs["setting"] == BORN_BAD[0].name]["label"]) == {"collapsed"}
    alarms = tables["alarms"]
    assert not alarms.duplicated(["setting", "branch", "base", "cadence", "rule"]).any()
    one = alarms[(alarms["cadence"] == 1) & (alarms["branch"] == "attention ramp 15")].set_index("rule")
    # Entropies have left by some deviations at step 25, the loss at step 65.
    assert one.loc[OURS, "step"].between(20, 35).all()
    assert one.loc[LOSS_CUSUM, "step"].between(60, 75).all()
    assert (one.loc[WHOLE, "lead_on_cusum"] > 0).all()
    at_50 = alarms[(alarms["cadence"] == 50) & (alarms["rule"] == OURS)]
    assert at_50["step"].isna().all()  # twenty looks are more than such a run has
    nan = alarms[(alarms["branch"] == "nan at one step") & (alarms["cadence"] == 1)].set_index("rule")
    assert (nan.loc[WHOLE, "step"] == 50).all()
    assert nan.loc[OURS, "step"].isna().all()


def test_a_threshold_is_above_every_healthy_calibration_run(tables) -> None:
    series = tables["series"]
    own = series[(series["setting"] == MAIN.name) & (series["side"] == "calibration")]
    own = own[own["branch"] != "base"]
    logits = own[[name for name in own if name.startswith("largest_logit")]].to_numpy()
    levels = tables["thresholds"].set_index(["rule", "cadence"])["value"]
    assert levels["largest logit, calibrated", 1] == pytest.approx(logits.max())
    assert levels["largest logit, calibrated", 1] > logits.max()
    assert levels["largest logit, calibrated", 10] <= levels["largest logit, calibrated", 1]


def repeated(tables, times: int = 10):
    """Every base, that many times: as many as a bound of 5 % takes."""
    found = {**tables}
    for name in ("alarms", "runs", "states", "validity"):
        copies = [tables[name].assign(base=tables[name]["base"] + BASES * k) for k in range(times)]
        found[name] = pd.concat(copies, ignore_index=True)
    return found


def test_claims_are_not_tested_with_few_bases_and_judged_with_many(tables, monkeypatch) -> None:
    found = SETTINGS.claims(tables)
    assert {claim.verdict for claim in found} == {"not tested"}
    many = {claim.id: claim for claim in SETTINGS.claims(repeated(tables))}
    holds = {
        "early",
        "detected",
        "before",
        "lead",
        "rate_ramp",
        "born_bad",
        "state_in_healthy",
        "false_alarms",
    }
    assert {many[f"alarm.{name}"].verdict for name in holds} == {"holds"}
    monkeypatch.setattr(judged_by, "FEWEST", BASES)
    again = {claim.id: claim for claim in SETTINGS.claims(tables)}
    assert again.keys() == {claim.id for claim in found}
    # Six bases without a false alarm do not show 5 %.
    assert again["alarm.false_alarms"].verdict == "fails"
    assert again["alarm.false_alarms"].measured == pytest.approx(1 - 0.05 ** (1 / 6))
    assert "0 of 6" in again["alarm.false_alarms"].evidence
    assert again["alarm.detected"].verdict == "fails"  # nor is a rule quiet of which that is not shown
    assert "in the median" in SETTINGS.answer(tables)[0]


def test_claims_can_fail(tables, monkeypatch) -> None:
    monkeypatch.setattr(judged_by, "FEWEST", BASES)
    alarms = tables["alarms"].copy()
    ours = alarms["rule"].isin((OURS, WHOLE))
    alarms.loc[ours & (alarms["branch"] == "base"), "step"] = 200.0
    late = ours & alarms["branch"].str.contains("ramp")
    alarms.loc[late, "step"] = 140.0
    alarms.loc[late, ["lead_on_onset", "lead_on_cusum"]] = -90.0
    states = tables["states"].copy()
    states["step"] = np.where(states["setting"] == MAIN.name, 10.0, np.nan)
    changed = {**tables, "alarms": alarms, "states": states}
    verdicts = {claim.id.partition(".")[2]: claim.verdict for claim in SETTINGS.claims(changed)}
    fail = ("early", "detected", "before", "lead", "slow_lead", "rate_ramp", "born_bad", "state_in_healthy")
    assert {verdicts[name] for name in fail} == {"fails"}


def test_half_of_what_an_alarm_must_reach_is_not_enough(tables) -> None:
    """One that always fires detects everything, one that never does is quiet: neither passes."""
    many = repeated(tables)
    for step, lead in ((0.0, 50.0), (np.nan, -50.0)):
        alarms, states = many["alarms"].copy(), many["states"].assign(step=step)
        ours = alarms["rule"].isin((OURS, WHOLE))
        alarms.loc[ours, "step"] = step
        alarms.loc[ours, ["lead_on_onset", "lead_on_cusum"]] = lead
        found = SETTINGS.claims({**many, "alarms": alarms, "states": states})
        others = {
            claim.id: claim.verdict for claim in found if claim.id not in ("alarm.armed", "alarm.valid")
        }
        assert set(others.values()) == {"fails"}, others


def test_validity_that_was_never_judged_is_none(tables) -> None:
    many = repeated(tables)
    never = {
        claim.id: claim
        for claim in SETTINGS.claims({**many, "validity": many["validity"].assign(valid=np.nan)})
    }
    assert never["alarm.valid"].verdict == "fails"
    assert "0 of 60 bases judged" in never["alarm.valid"].evidence
    good = {
        claim.id: claim for claim in SETTINGS.claims({**many, "validity": many["validity"].assign(valid=1.0)})
    }
    assert good["alarm.valid"].verdict == "holds"
    bad = {
        claim.id: claim for claim in SETTINGS.claims({**many, "validity": many["validity"].assign(valid=0.0)})
    }
    assert bad["alarm.valid"].verdict == "fails"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figure(tables, theme, tmp_path) -> None:
    with style(theme):
        SETTINGS.draw(tables).savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_histories_join_a_branch_to_its_own_base(tables) -> None:
    series = tables["series"]
    own = series[(series["setting"] == MAIN.name) & (series["side"] == "judged")]
    shuffled = histories(own.sample(frac=1, random_state=0))
    history = shuffled["decay"]
    assert history.start == BASE
    assert history.values["normalised_entropy"].shape == (BASE + 200, BASES, 8)
    one = own[(own["base"] == 4) & own["branch"].isin(("base", "decay"))].sort_values("step")
    assert np.array_equal(history.values["loss"][:, 4], one["loss"].to_numpy(np.float64))
    holed = with_nan(history)
    assert np.isnan(holed.values["largest_logit"][BASE + 50]).all()
    assert np.isfinite(history.values["largest_logit"]).all()


def test_training_is_repeated_and_does_not_depend_on_the_group(monkeypatch) -> None:
    monkeypatch.setattr(training, "SCRATCH_STEPS", 40)
    settings = Alarm(batch=1, corpus="python-reference")
    two, again, second = (
        train_group(
            settings,
            Group(setting=BORN_BAD[1], side="judged", first=first, bases=bases),
            Progress(quiet=True),
        )
        for first, bases in ((0, 2), (0, 2), (1, 1))
    )
    pd.testing.assert_frame_equal(two, again, check_exact=True)
    assert list(two.columns[5:]) == COLUMNS
    assert len(two) == 2 * 40
    assert set(second["base"]) == {1}
    early = two[(two["base"] == 1) & (two["step"] < 8)].drop(columns=[c for c in two if "spectral" in c])
    own = second[second["step"] < 8][early.columns]
    np.testing.assert_allclose(
        early.to_numpy()[:, 5:].astype(float), own.to_numpy()[:, 5:].astype(float), rtol=1e-3
    )
    spectrum = two.set_index("step")["spectral_entropy.0"]
    assert spectrum.notna().groupby(level=0).all().pipe(lambda known: list(known.index[known])) == list(
        range(10, 40, 10)
    )


def test_branches_do_what_their_names_say() -> None:
    by_name = {branch.name: branch for branch in ALL}
    ramp = by_name["attention ramp 15"]
    assert ramp.factor(14, "attention") == pytest.approx(2.0)
    assert ramp.factor(44, "attention") == pytest.approx(8.0)
    assert ramp.factor(44, "mlp") == ramp.factor(44, "rest") == 1.0
    assert by_name["mlp ramp 20"].factor(19, "mlp") == 2.0
    assert by_name["rate ramp 20"].factor(19, "rest") == 2.0
    assert by_name["rate jump"].factor(0, "rest") == by_name["rate jump"].factor(99, "attention") == 25.0
    assert [by_name["spike"].factor(step, "rest") for step in (0, 2, 3)] == [10.0, 10.0, 1.0]
    assert [by_name["decay"].factor(step, "mlp") for step in (0, 100)] == [1.0, 0.5]
    assert by_name["end of warm-up"].factor(24, "mlp") == 0.5
    assert max(branch.steps for branch in ALL) == CONTINUE.steps
    assert {group.setting for group in groups(Alarm(other_bases=2))} == {MAIN, *BORN_BAD, *OTHERS}


def test_labels_come_from_the_loss_and_its_twin_alone() -> None:
    rng = np.random.default_rng(1)
    past, twin = 2 + 0.01 * rng.standard_normal(100), 2 + 0.01 * rng.standard_normal(200)
    loss = twin[:150].copy()
    assert became(loss, twin, past).label == "healthy"
    spike = loss.copy()
    spike[50:60] += 1
    found = became(spike, twin, past)
    assert (found.label, found.onset) == ("recovered", 51)
    risen = loss.copy()
    risen[100:] += 0.26
    assert (became(risen, twin, past).label, became(risen, twin, past).onset) == ("degraded", 105)
    risen[100:] += 0.5
    assert became(risen, twin, past).label == "collapsed"
    risen[140] = np.nan
    assert became(risen, twin, past).label == "collapsed"
    assert at_end(loss, twin[:150]).label == "healthy"
    assert onset(np.full(30, 2.0)) is None


def test_intervals() -> None:
    assert share_bounds(0, 59)[1] == pytest.approx(1 - 0.05 ** (1 / 59))
    assert share_bounds(0, 59)[1] < 0.05 < share_bounds(0, 58)[1]
    assert share_bounds(20, 20)[0] == pytest.approx(0.05 ** (1 / 20))
    assert share_bounds(0, 0) == (0.0, 1.0)
    assert rate_bound(0, 30_000) == pytest.approx(-np.log(0.05) / 3)
    assert rate_bound(3, 0) == np.inf
    assert median_bounds(np.arange(4.0)) == (-np.inf, np.inf)
    rng = np.random.default_rng(2)
    samples = np.sort(rng.exponential(size=(4000, 15)), axis=1)
    lower = np.array([median_bounds(sample)[0] for sample in samples])
    assert (lower > np.log(2)).mean() < 0.05


def test_bad_settings() -> None:
    with pytest.raises(InputError, match="among which their twins are"):
        Alarm(bases=2, other_bases=3)
    with pytest.raises(InputError, match="base_steps"):
        Alarm(base_steps=100)


@pytest.mark.parametrize(("steps", "verdict"), [(5000, "holds"), (1000, "fails")])
def test_no_false_alarm_in_many_steps_is_needed(steps: int, verdict: str) -> None:
    own = {"rule": WHOLE, "step": np.nan, "steps": steps}
    damaged = {"branch": judged_by.FAST, "rule": OURS, "step": 20.0, "steps": steps, "label": "collapsed"}
    main = pd.DataFrame(
        [{**own, "base": base, "branch": "base"} for base in range(10)]
        + [{**damaged, "base": base} for base in range(10)]
    )
    healthy = pd.DataFrame({"armed_share": [0.8] * 10})
    claim = judged_by._false_rate(main, healthy)
    assert (claim.verdict, claim.measured) == (verdict, pytest.approx(rate_bound(0, int(0.8 * steps * 10))))


def test_the_onset_is_where_the_mean_of_ten_reaches_its_least_and_rise() -> None:
    loss = np.concatenate([np.linspace(1, 0, 30), np.zeros(20), np.full(20, 1.0001 * RISE)])
    assert onset(loss) == 59
    assert onset(np.concatenate([loss[:50], np.full(20, 0.99 * RISE)])) is None
    assert onset(np.concatenate([loss[:50], [np.nan]])) == 50
    # 0.1 nats a step: the sum of the ten is .1 + .2 + ... and reaches 1.5 at the fifth.
    assert onset(np.concatenate([np.zeros(20), 0.1 * np.arange(1, 20)])) == 20 + 4
