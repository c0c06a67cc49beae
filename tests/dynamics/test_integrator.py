"""The integrator under all flows: textbook solutions, and every way in which a flow can end."""

from __future__ import annotations

import numpy as np
import pytest

from joma.core.errors import DivergenceError, InputError, UnfinishedError
from joma.dynamics.integrator import Parts, integrate, moments

TIGHT = {"rtol": 1e-11, "atol": 1e-13, "advice": "stop earlier"}


@pytest.mark.parametrize("method", ["DOP853", "RK45", "LSODA", "Radau", "BDF"])
def test_decay_is_exponential_by_every_method(method):
    times = np.array([0.5, 1.0, 3.0])
    found = integrate(
        "decay", lambda t, y: -y, np.array([1.0, 2.0]), times, begin=0.0, method=method, **TIGHT
    )
    np.testing.assert_allclose(found.states, np.exp(-times)[:, None] * [1.0, 2.0], rtol=1e-7)
    assert found.blow_up_time is None


def test_a_flow_that_runs_away_is_cut_at_its_blow_up():
    found = integrate(
        "tangent", lambda t, y: 1 + y * y, np.zeros(1), np.array([0.0, 1.0, 2.0]), speed_limit=1e9, **TIGHT
    )
    assert found.blow_up_time == pytest.approx(np.pi / 2, abs=1e-4)
    np.testing.assert_array_equal(found.times, [0.0, 1.0])
    np.testing.assert_allclose(found.states[-1], np.tan(1.0), rtol=1e-9)


def test_only_watched_components_count_as_a_blow_up():
    def velocity(t, y):
        return np.array([1.0, 100.0])

    found = integrate("f", velocity, np.zeros(2), np.array([0.0, 1.0]), speed_limit=10.0, watched=1, **TIGHT)
    assert found.blow_up_time is None
    np.testing.assert_allclose(found.states[-1], [1.0, 100.0])


def test_no_member_hides_in_the_batch():
    quick, idle = np.array([0.0, 50.0]), np.zeros(400)
    wave = lambda t, y: np.concatenate([[y[1], -2500 * y[0]], idle])  # noqa: E731
    start = np.concatenate([quick, idle])
    loose = {"rtol": 1e-6, "atol": 1e-9, "advice": ""}
    times = np.array([0.0, 2.0])
    error = [
        abs(integrate("w", wave, start, times, members=n, **loose).states[-1, 0] - np.sin(100.0))
        for n in (1, 201)
    ]
    assert error[1] < error[0] / 3


def test_divergence_and_a_spent_budget_are_told_with_the_time_and_the_advice():
    with pytest.raises(
        DivergenceError, match=r"tan: the integration stopped at t = .* of 2 .*; stop earlier"
    ):
        integrate("tan", lambda t, y: 1 + y * y, np.zeros(1), np.array([0.0, 2.0]), **TIGHT)
    with pytest.raises(
        UnfinishedError, match=r"max_evaluations = 50 were spent at t = .* of 100; stop earlier"
    ):
        integrate(
            "sin",
            lambda t, y: np.cos(t) + 0 * y,
            np.zeros(1),
            np.array([0.0, 100.0]),
            max_evaluations=50,
            **TIGHT,
        )


def test_no_time_is_the_start():
    found = integrate("rest", lambda t, y: y, np.ones(3), np.array([0.0]), **TIGHT)
    np.testing.assert_array_equal(found.states, np.ones((1, 3)))


@pytest.mark.parametrize("times", [[1.0, 0.5], [0.0, 0.0], [0.0, np.nan], [[0.0, 1.0]], [], ["a"]])
def test_times_that_make_no_sense_are_refused(times):
    with pytest.raises(InputError, match="f: times"):
        moments("f", times)


def test_times_before_the_start_are_refused():
    with pytest.raises(InputError, match="must not be negative"):
        moments("f", [-1.0, 1.0], from_zero=True)
    with pytest.raises(InputError, match="at least two"):
        moments("f", [1.0], least=2)


def test_parts_pack_and_unpack():
    parts = Parts((2, 3), (2,), (1,))
    vector = parts.pack(np.arange(6.0).reshape(2, 3), np.array([7.0, 8.0]), 9.0)
    first, second, third = parts.unpack(np.stack([vector, 10 * vector]))
    assert (first.shape, second.shape, third.shape) == ((2, 2, 3), (2, 2), (2, 1))
    np.testing.assert_array_equal(first[1], 10 * np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(third[:, 0], [9.0, 90.0])
