from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import solve_ivp

from joma.core.errors import InputError
from joma.theory.winner_take_all import (
    WinnerTakeAll,
    erf_invariant,
    printed_invariant,
    softmax_weights,
)

DRIVE = np.array([1.0, 0.6, -0.3])


def integrate(flow: WinnerTakeAll, drive, weights, logits, end: float) -> tuple[np.ndarray, np.ndarray]:
    """The joint (v, z) flow of Eq. 2, which knows nothing of Theorem 1."""
    nodes, tokens = drive.shape

    def velocity(_: float, state: np.ndarray) -> np.ndarray:
        v, z = state[:-tokens].reshape(nodes, tokens), state[-tokens:]
        pull = drive * np.exp(z / flow.temperature) / flow.normaliser
        dz = flow.attention_rate / flow.temperature * (pull * v).sum(axis=0)
        return np.concatenate([flow.weight_rate * pull.ravel(), dz])

    start = np.concatenate([weights.ravel(), logits])
    final = solve_ivp(velocity, (0, end), start, method="DOP853", rtol=1e-12, atol=1e-13).y[:, -1]
    return final[:-tokens].reshape(nodes, tokens), final[-tokens:]


@pytest.mark.parametrize("id", ["thm2_v_1.0_1", "thm2_v_.6_1", "thm2_v_-.3_1", "thm2_v_.6_2"])
def test_golden_trajectories(golden, id: str) -> None:
    entry = golden(id)
    case = entry["inputs"]
    flow = WinnerTakeAll(drive=[case["Delta"]], normaliser=case["A"])
    np.testing.assert_allclose(flow.weights(case["t"]), [entry["expected"]], rtol=entry["rtol"])


def test_golden_blow_up_and_limits(golden) -> None:
    entry = golden("thm2_blowup")
    flow = WinnerTakeAll(drive=[entry["inputs"]["Delta_max"], 0.2], normaliser=entry["inputs"]["A"])
    assert flow.blow_up_time == pytest.approx(entry["expected"], rel=entry["rtol"])
    entry = golden("thm2_loser_limits")
    limits = WinnerTakeAll(drive=entry["inputs"]["Delta"], normaliser=2).limits()
    assert limits[0] == np.inf
    np.testing.assert_allclose(limits[1:], entry["expected"], rtol=entry["rtol"])


def test_golden_printed_invariant_is_not_one(golden) -> None:
    entry = golden("thm2_printed_wrong")
    case = entry["inputs"]
    weights = WinnerTakeAll(drive=case["Delta"], normaliser=case["A"]).weights(case["t"])
    np.testing.assert_allclose(
        printed_invariant(weights, case["Delta"]), entry["expected"], rtol=entry["rtol"]
    )
    np.testing.assert_allclose(
        erf_invariant(weights, case["Delta"]), np.sqrt(2 / np.pi) * case["t"] / case["A"], rtol=1e-14
    )


numbers = st.floats(-2, 2).filter(lambda x: abs(x) > 0.05)


@given(
    drive=arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(1, 4)), elements=numbers),
    seed=st.integers(0, 2**32 - 1),
    rates=st.tuples(*[st.floats(0.3, 2.0)] * 4),
    fraction=st.floats(0.05, 0.98),
)
def test_any_start_rates_and_nodes_against_the_joint_flow(drive, seed, rates, fraction) -> None:
    rng = np.random.default_rng(seed)
    weights, logits = rng.normal(size=drive.shape), rng.normal(size=drive.shape[1])
    normaliser, attention_rate, weight_rate, temperature = rates
    flow = WinnerTakeAll(
        drive=drive,
        normaliser=normaliser,
        attention_rate=attention_rate,
        weight_rate=weight_rate,
        temperature=temperature,
        initial_weights=weights,
        initial_logits=logits,
    )
    end = fraction * flow.blow_up_time
    v, z = integrate(flow, drive, weights, logits, end)
    np.testing.assert_allclose(flow.weights(end), v, rtol=2e-8, atol=2e-8)
    np.testing.assert_allclose(flow.logits(flow.weights(end)), z, rtol=2e-8, atol=2e-8)


@given(
    drive=arrays(np.float64, 4, elements=numbers),
    kappa=st.floats(0.1, 5),
    fraction=st.floats(1e-9, 0.999999),
)
def test_invariant_is_one_number_and_grows_linearly(drive, kappa, fraction) -> None:
    flow = WinnerTakeAll(drive=drive, attention_rate=kappa)
    time = fraction * flow.blow_up_time
    np.testing.assert_allclose(
        erf_invariant(flow.weights(time), drive, kappa=kappa),
        np.sqrt(2 * kappa / np.pi) * time,
        rtol=3e-13,
    )


@pytest.mark.parametrize("exponent", [1, 5, 12, 20, 100, 300])
def test_winner_follows_the_remaining_time_to_high_precision(exponent: int) -> None:
    with mpmath.workdps(exponent + 40):
        share = mpmath.mpf(10.0**-exponent) / (mpmath.sqrt(mpmath.pi / 2) * 2)
        exact = mpmath.sqrt(2) * mpmath.erfinv(1 - share)
        weights = WinnerTakeAll(drive=DRIVE, normaliser=2).weights_before_blow_up(10.0**-exponent)
        assert weights[0] == pytest.approx(float(exact), rel=2e-14)


def test_time_reaches_to_1e_12_before_the_blow_up() -> None:
    flow = WinnerTakeAll(drive=DRIVE, normaliser=2)
    time = flow.blow_up_time - 1e-12
    with mpmath.workdps(50):
        exact = mpmath.sqrt(2) * mpmath.erfinv(mpmath.sqrt(2 / mpmath.pi) * mpmath.mpf(time) / 2)
    # t* itself is rounded: its last bit is 4e-4 of the remaining 1e-12, and 7 * dv = d(remaining)/remaining.
    assert flow.weights(time)[0] == pytest.approx(float(exact), abs=1e-4)


def test_first_steps_keep_their_digits() -> None:
    flow = WinnerTakeAll(drive=DRIVE, normaliser=2)
    np.testing.assert_allclose(flow.weights(1e-200), DRIVE * 0.5e-200, rtol=1e-14)


def test_start_far_on_either_side() -> None:
    """From v = -45 the way out takes longer than float64 can say; from 30 it is over at once."""
    flow = WinnerTakeAll(drive=[1.0, 0.6], initial_weights=[-45.0, -3.0])
    assert flow.blow_up_times[0] == np.inf
    assert flow.winners().tolist() == [False, True]
    with mpmath.workdps(600):
        there = mpmath.ncdf(-45) + mpmath.exp(-(mpmath.mpf(45) ** 2) / 2) * 200 / mpmath.sqrt(2 * mpmath.pi)
        exact = mpmath.findroot(lambda q: mpmath.ncdf(q) / there - 1, -44.8)
    assert flow.weights(200.0)[0] == pytest.approx(float(exact), rel=1e-13)
    assert WinnerTakeAll(drive=[1.0], initial_weights=[30.0]).blow_up_time == pytest.approx(
        0.0332964191, rel=1e-8
    )


def test_ties_blow_up_together_with_their_signs() -> None:
    flow = WinnerTakeAll(drive=[-1.0, 0.5, 1.0])
    assert flow.winners().tolist() == [True, False, True]
    assert flow.limits()[[0, 2]].tolist() == [-np.inf, np.inf]
    late = flow.weights_before_blow_up(1e-200)
    assert late[0] == -late[2] < -30
    assert late[1] == pytest.approx(flow.limits()[1], rel=1e-13)


def test_winner_of_several_nodes_is_the_longest_drive_not_the_largest_entry() -> None:
    drive = np.array([[1.0, 0.8, 0.0], [0.0, 0.8, 0.1]])
    flow = WinnerTakeAll(drive=drive)
    assert flow.winners().tolist() == [False, True, False]
    assert np.isinf(flow.limits()[:, 1]).all()
    assert np.isfinite(flow.limits()[:, [0, 2]]).all()
    late = flow.weights_before_blow_up(1e-3)
    np.testing.assert_allclose(late[:, 1] / drive[:, 1], late[0, 1] / drive[0, 1], rtol=1e-14)


def test_initial_logits_can_make_a_weak_token_win() -> None:
    flow = WinnerTakeAll(drive=[1.0, 0.6], initial_logits=[0.0, 1.0])
    assert flow.winners().tolist() == [False, True]


def test_without_drive_nothing_moves() -> None:
    flow = WinnerTakeAll(drive=[0.0, 0.0], initial_weights=[1.0, -2.0])
    assert flow.blow_up_time == np.inf
    assert flow.weights(1e6).tolist() == flow.limits().tolist() == [1.0, -2.0]
    assert not flow.winners().any()


def test_shapes_follow_times_and_drive() -> None:
    flow = WinnerTakeAll(drive=np.ones((2, 3)))
    assert flow.weights(np.zeros((4, 5))).shape == (4, 5, 2, 3)
    assert WinnerTakeAll(drive=[1.0, 2.0]).weights([0.1, 0.2]).shape == (2, 2)


@given(
    drive=arrays(np.float64, 3, elements=numbers),
    frequency=arrays(np.float64, 3, elements=st.floats(0.05, 1)),
    kappa=st.floats(0.3, 2),
    time=st.floats(0.01, 6),
)
def test_softmax_clock_against_integration(drive, frequency, kappa, time) -> None:
    def velocity(_: float, v: np.ndarray) -> np.ndarray:
        exponent = kappa * v**2 / 2
        gain = np.exp(exponent - exponent.max())
        return drive * gain / (frequency @ gain)

    end = solve_ivp(velocity, (0, time), np.zeros(3), method="DOP853", rtol=1e-11, atol=1e-12).y[:, -1]
    closed = softmax_weights(WinnerTakeAll(drive=drive, attention_rate=kappa), frequency, time)
    np.testing.assert_allclose(closed, end, rtol=1e-7, atol=1e-8)


def test_softmax_never_blows_up_and_its_losers_stop_where_those_of_exp_do() -> None:
    flow = WinnerTakeAll(drive=[*DRIVE, 0.0])
    frequency = np.array([0.3, 0.2, 0.4, 0.1])
    late = softmax_weights(flow, frequency, [0.0, 1e3, 1e4])
    assert late[0].tolist() == [0.0] * 4
    np.testing.assert_allclose(late[2, 1:], flow.limits()[1:], rtol=1e-12)
    assert (late[2, 0] - late[1, 0]) / 9e3 == pytest.approx(DRIVE[0] / frequency[0], rel=1e-10)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"drive": [[[1.0]]]}, "shape"),
        ({"drive": []}, "shape"),
        ({"drive": [np.nan]}, "finite"),
        ({"drive": [1.0], "normaliser": 0.0}, "normaliser"),
        ({"drive": [1.0], "temperature": -1.0}, "temperature"),
        ({"drive": [1.0], "attention_rate": np.inf}, "attention_rate"),
        ({"drive": [1.0], "initial_weights": [1.0, 2.0]}, "initial_weights"),
        ({"drive": [1.0], "initial_logits": [[1.0]]}, "initial_logits"),
        ({"drive": [1.0], "initial_logits": [1000.0]}, "overflows"),
    ],
)
def test_bad_settings(arguments, words: str) -> None:
    with pytest.raises(InputError, match=words):
        WinnerTakeAll(**arguments)


def test_times_that_do_not_exist_are_refused_and_the_blow_up_named() -> None:
    flow = WinnerTakeAll(drive=DRIVE, normaliser=2)
    with pytest.raises(InputError, match=r"t\* = 2\.506628274631"):
        flow.weights([1.0, 2.6])
    with pytest.raises(InputError, match="blow-up"):
        flow.weights(flow.blow_up_time)
    with pytest.raises(InputError, match="negative"):
        flow.weights(-1.0)
    with pytest.raises(InputError, match="remaining"):
        flow.weights_before_blow_up(0.0)
    with pytest.raises(InputError, match="no token"):
        WinnerTakeAll(drive=[0.0]).weights_before_blow_up(1.0)
    with pytest.raises(InputError, match="time holds"):
        flow.weights(np.nan)


def test_other_bad_input() -> None:
    flow = WinnerTakeAll(drive=DRIVE)
    with pytest.raises(InputError, match="drive's"):
        erf_invariant([1.0, 2.0], DRIVE)
    with pytest.raises(InputError, match="without drive"):
        erf_invariant([1.0, 2.0], [1.0, 0.0])
    with pytest.raises(InputError, match="does not end"):
        flow.logits([1.0, 2.0])
    with pytest.raises(InputError, match="frequency must"):
        softmax_weights(flow, [0.1, -0.2, 0.3], 1.0)
    with pytest.raises(InputError, match="negative"):
        softmax_weights(flow, [0.1, 0.2, 0.3], -1.0)
    with pytest.raises(InputError, match="positive frequency"):
        softmax_weights(flow, [0.0, 0.2, 0.3], 1.0)
    with pytest.raises(InputError, match="normaliser"):
        softmax_weights(WinnerTakeAll(drive=DRIVE, normaliser=2), [0.1, 0.2, 0.3], 1.0)
