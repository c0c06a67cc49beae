"""The alarm of the monitor: the same as the pure detector, and what it says."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from joma.instruments.monitor.alarms.alarm import ChangeAlarm, LossAlarm
from joma.instruments.monitor.alarms.messages import states
from joma.measures.change.detector import LEARNING, SETTLING, add_look, began, comparable, fewest_looks
from joma.measures.change.e_detector import DRIFT, VARIANCE, threshold
from joma.measures.change.loss import THRESHOLD, WINDOW, LossCusum

HEADS = 4


def entropies(steps: int, seed: int = 0) -> np.ndarray:
    """(steps, heads) of a healthy run."""
    noise = np.random.default_rng(seed).standard_normal((steps, HEADS))
    return 1 / (1 + np.exp(-0.05 * noise))


def table(step: int, values: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "step": step,
            "layer": 3,
            "module": "attention",
            "call": 0,
            "head": range(len(values)),
            "metric": "normalised_entropy",
            "value": values,
        }
    ).astype({"layer": "Int64", "head": "Int64"})


def told(values: np.ndarray, alarm: ChangeAlarm, start: int = 0) -> list:
    return [message for k, row in enumerate(values) for message in alarm.look(table(start + k, row))]


def test_the_alarm_is_the_pure_detector() -> None:
    values = entropies(260)
    values[200:, :2] = comparable("normalised_entropy", values[200:, :2]) * 0 + 0.2
    alarm = ChangeAlarm(looks=300, alpha=0.05)
    (message,) = told(values, alarm)
    state, found = began(HEADS), None
    for step, row in enumerate(values):
        state, _ = add_look(state, comparable("normalised_entropy", row), step)
        if found is None and state.evidence.total() >= threshold(300, 0.05):
            found = step
    assert message.step == found
    assert (message.kind, message.metric) == ("alarm", "attention_entropy")
    assert message.where in ("layer 3, head 0", "layer 3, head 1")
    assert 195 <= message.since <= 200
    assert "probability at most 0.05" in message.sure
    assert state.armed_at == SETTLING


def test_it_is_armed_when_it_has_looked_often_enough_and_the_run_has_settled() -> None:
    for cadence, first in ((1, SETTLING), (10, 10 * LEARNING), (50, 50 * LEARNING)):
        state = began(2, 3)
        for step in range(0, first + 1, cadence):
            assert state.armed_at is None
            state, _ = add_look(state, np.ones((2, 3)), step)
        assert state.armed_at == first


def test_a_run_that_is_resumed_goes_on_as_if_it_had_not_stopped() -> None:
    values = entropies(240)
    values[215:] *= 0.4
    whole = ChangeAlarm(looks=300, alpha=0.05)
    expected = told(values, whole)
    first = ChangeAlarm(looks=300, alpha=0.05)
    assert not told(values[:210], first)
    second = ChangeAlarm(looks=300, alpha=0.05)
    second.restore(json.loads(json.dumps(first.as_state())))
    assert told(values[210:], second, start=210) == expected
    assert len(expected) == 1
    # A monitor that lost its state learns anew, and is blind to what happens meanwhile.
    assert not told(values[210:], ChangeAlarm(looks=300, alpha=0.05), start=210)


def test_a_run_that_stopped_before_anything_was_seen_is_resumed() -> None:
    fresh, resumed = (ChangeAlarm(looks=300, alpha=0.05) for _ in range(2))
    resumed.restore(json.loads(json.dumps(fresh.as_state())))
    values = entropies(30)
    assert told(values, resumed) == told(values, fresh)
    # NaN stands for a drift not yet measured, and is unequal to itself: their text is compared.
    assert json.dumps(resumed.as_state()) == json.dumps(fresh.as_state())


def test_a_run_that_drifts_gets_no_probability() -> None:
    values = entropies(400)
    values = 1 / (1 + np.exp(-(np.log(values / (1 - values)) - 0.002 * np.arange(400)[:, None])))
    alarm = ChangeAlarm(looks=400, alpha=0.05)
    told(values, alarm)
    assert float(alarm.watched.drift) > DRIFT
    assert "drifts by" in alarm.invalid()
    healthy = ChangeAlarm(looks=400, alpha=0.05)
    assert not told(entropies(400), healthy)
    assert healthy.invalid() == ""
    assert float(healthy.watched.variance) < VARIANCE


def test_armed_again() -> None:
    values = entropies(300)
    values[200:260] = 0.1
    alarm = ChangeAlarm(looks=300, alpha=0.05)
    assert len(told(values[:240], alarm)) == 1
    alarm.arm()
    assert alarm.raised is None
    assert not np.isfinite(float(alarm.watched.evidence.total()))


def test_one_nan_blinds_nothing() -> None:
    values = entropies(260)
    values[205:] *= 0.4
    holed = values.copy()
    holed[190] = np.nan
    plain, with_hole = (told(v, ChangeAlarm(looks=300, alpha=0.05)) for v in (values, holed))
    assert len(plain) == len(with_hole) == 1
    assert abs(plain[0].step - with_hole[0].step) <= 1


def test_the_losss_reference_follows_while_it_is_quiet() -> None:
    rng = np.random.default_rng(1)
    falling = 4 * np.exp(-np.arange(800) / 150) + 2 + 0.02 * rng.standard_normal(800)
    cusum = LossCusum()
    assert not any(cusum.add(loss) for loss in falling)
    risen = falling[-1] + 0.2 + 0.02 * rng.standard_normal(30)
    found = [cusum.add(loss) for loss in risen].index(True)
    # By hand: mean 0.02 above the end, deviation 0.025 with the trend; a step adds some 6 or more.
    assert found <= np.ceil(THRESHOLD / 6)
    # The first 200 losses of such a run would never let it alarm.
    first = falling[:WINDOW]
    assert ((risen - first.mean()) / first.std() < 0).all()


def test_a_loss_that_rises_and_comes_back_is_a_spike() -> None:
    rng = np.random.default_rng(2)
    losses = 2 + 0.02 * rng.standard_normal(400)
    losses[300:305] += 0.3
    losses[350] = np.nan
    alarm = LossAlarm()
    messages = []
    for step, loss in enumerate(losses):
        messages += alarm.step(step, float(loss))
        if step in (250, 302, 351):
            state = json.loads(json.dumps(alarm.as_state()))
            alarm = LossAlarm()
            alarm.restore(state)
    assert [message.kind for message in messages] == ["alarm", "spike", "alarm"]
    assert [messages[0].step, messages[0].since] == [300, 300]
    assert messages[1].since == 300
    assert messages[2].step == 350
    assert "nan" in messages[2].what


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_values_that_say_nothing(value: float) -> None:
    assert np.isnan(comparable("residual_rms", np.array([value]))[0]) or value == np.inf
    assert np.isfinite(comparable("normalised_entropy", np.array([0.0, 1.0]))).all()


def test_a_state_that_flickers_is_told_once_and_again_when_it_had_ended() -> None:
    since: dict[str, int] = {}
    course = [0.5, 0.09, 0.11, 0.08, 0.15, 0.09, 0.3, 0.05]
    said = [bool(states(table(step, np.array([value])), since)) for step, value in enumerate(course)]
    assert said == [False, True, False, False, False, False, False, True]


def test_no_change_is_told_sooner_than_the_fewest_looks() -> None:
    bound, values = threshold(300, 0.05), entropies(300)
    values[200:, 2] = 1e-6
    (alone,) = told(values, ChangeAlarm(looks=300, alpha=0.05))
    fewest = fewest_looks(bound, HEADS)
    # Evidence may have gathered by chance before, and the level follows the change.
    assert fewest - 2 <= alone.step - 200 + 1 <= fewest + 4
    values[200:] = 1e-6
    (together,) = told(values, ChangeAlarm(looks=300, alpha=0.05))
    assert together.step < alone.step
