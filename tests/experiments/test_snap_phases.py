from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.data.next_token import graded_tokens
from joma.dynamics.token_flow import token_flow
from joma.experiments.scan_snap.snap_phases import SnapPhases
from joma.experiments.scan_snap.snap_phases.run import RATIOS, _peak, drive, start_constant

SMALL = SnapPhases(
    next_tokens=(2,),
    common_weights=(5.0,),
    distinct=4,
    eta_y=(0.1, 1.0),
    eta_z=(0.001, 0.1),
    horizon=1e4,
)


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    return SMALL.run(Progress(quiet=True))


@pytest.fixture(scope="module")
def claims(tables):
    return {claim.id: claim for claim in SMALL.claims(tables)}


def test_same_settings_same_tables(tables) -> None:
    again = dataclasses.replace(SMALL).run(Progress(quiet=True))
    for name, table in tables.items():
        pd.testing.assert_frame_equal(table, again[name])


def test_gain_is_the_integral_of_its_rate(tables) -> None:
    curve = tables["gain"].pivot_table(index=["run", "time"], columns="metric", values="value")
    for _, run in curve.groupby(level="run"):
        time = run.index.get_level_values("time").to_numpy()
        rate = run["gain rate"].to_numpy()
        integral = ((rate[1:] + rate[:-1]) / 2 * np.diff(time)).sum()
        assert integral == pytest.approx(run["gain"].iloc[-1], rel=0.02)


def test_start_constant_gives_the_first_curvature_of_the_gain() -> None:
    data = graded_tokens(next_per_last=3, common=1, distinct=4, common_weight=2.0)
    time = 1e-3
    flow = token_flow(data, eta_y=2.0, eta_z=0.7, times=[0.0, time])
    law = 2.0 * 0.7 * time**2 / (2 * data.classes * start_constant(data))
    assert flow.gain[-1] == pytest.approx(np.full(3, law), rel=1e-3)


def test_drive_is_the_same_for_every_distinct_token_where_theorem_1_holds() -> None:
    data = graded_tokens(next_per_last=2, common=1, distinct=3)
    flow = token_flow(data, eta_y=1.0, eta_z=0.0, times=[0.0, 1.0, 10.0])
    state = flow.at(2)
    own = np.flatnonzero(data.distinct[0])
    xi = data.prior[0] * state.attention[0, own] / state.features[0, own] ** 2
    assert xi == pytest.approx(np.full(3, drive(flow)[2]), rel=1e-6)


def test_theorem_3_is_the_better_the_larger_the_ratio(tables) -> None:
    laws = tables["laws"]
    error = laws[laws["metric"] == "theorem 3, error"].set_index("rate_ratio")["value"]
    assert error[list(RATIOS)].is_monotonic_increasing


def test_verdicts(claims) -> None:
    verdicts = {name.removeprefix("snap_phases."): claim.verdict for name, claim in claims.items()}
    assert verdicts["scanning"] == "corrected"
    assert verdicts["closed_form"] == "fails"
    for name in ("rates_scanning", "phase_transition", "snap_time"):
        assert verdicts[name] == "holds"


def test_claims_follow_the_tables(tables) -> None:
    wrong = dict(tables)
    phases = tables["phases"].copy()
    phases.loc[phases["metric"] == "law t^2, error", "value"] = 0.5
    wrong["phases"] = phases
    verdicts = {claim.id: claim.verdict for claim in SMALL.claims(wrong)}
    assert verdicts["snap_phases.scanning"] == "fails"


def test_claims_without_runs_that_could_test_them() -> None:
    lonely = dataclasses.replace(SMALL, eta_y=(1.0,), eta_z=(1.0,), horizon=1e3)
    verdicts = {claim.id: claim.verdict for claim in lonely.claims(lonely.run(Progress(quiet=True)))}
    assert verdicts["snap_phases.eta_y_snapping"] == "not tested"
    assert verdicts["snap_phases.snap_time"] == "not tested"


def test_distinct_tokens_can_fall_where_attention_is_not_slow(tables) -> None:
    """One common token is not enough for Theorem 2a: here one class's distinct tokens lose in the end."""
    weights = np.zeros((2, 7))
    weights[0, :4] = 0.157, 0.262, 0.33, 0.251
    weights[1, [0, 4, 5, 6]] = 0.57, 0.113, 0.232, 0.085
    from joma.data.next_token import NextTokenData

    data = NextTokenData(weights / weights.sum(axis=1, keepdims=True), np.array([0, 0]))
    near = token_flow(data, eta_y=1.0, eta_z=0.18, times=[0.0, 50.0, 5000.0])
    far = token_flow(data, eta_y=1.0, eta_z=0.001, times=[0.0, 50.0, 5000.0])
    assert near.gain[1, 1] > 0.05
    assert near.gain[2, 1] < 0
    assert np.all(near.logits[2, 0, 4:] < 0)
    assert np.all(np.diff(far.gain, axis=0) > 0)


def test_draws(tables) -> None:
    with style("dark"):
        figure = SMALL.draw(tables)
    assert len(figure.axes) == 4
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)


@pytest.mark.parametrize(
    "settings", [{"next_tokens": (1,)}, {"eta_z": (0.0,)}, {"horizon": 10.0}, {"distinct": 1}]
)
def test_bad_settings(settings) -> None:
    with pytest.raises(InputError, match="out of range"):
        SnapPhases(**settings)


@pytest.mark.parametrize("at", [-0.3, 0.0, 0.45])
def test_the_peak_of_a_parabola_in_log_time_is_its_vertex(at):
    time = np.exp(np.linspace(0, 4, 9))  # spacing 1/2
    rate = 5 - (np.log(time) - (2 + 0.5 * at)) ** 2
    assert _peak(time, rate) == pytest.approx(np.exp(2 + 0.5 * at), rel=1e-12)
    assert _peak(time, np.log(time)) == time[-1]
