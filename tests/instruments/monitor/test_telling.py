"""What a monitor says at its start, in which order it tells, what stops a training, where numbers go."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import nn

import made_monitors
from joma.instruments.monitor.alarms.alarm import LossAlarm
from joma.instruments.monitor.alarms.judge import Judge
from joma.instruments.monitor.alarms.messages import Message, states
from joma.instruments.monitor.alarms.telling import Teller
from joma.instruments.monitor.monitor import Monitor
from joma.instruments.monitor.page import _course
from joma.instruments.monitor.sinks import Destination, sink_of

STATE = Message(4, "state", "layer 0, head 1", "largest_logit", "the largest logit is 200", 4, "a level")
ALARM = Message(4, "alarm", "loss", "loss", "the loss rose to 5", 3, "CUSUM")
NUMBERS = {"joma/loss": 2.5, "joma/attention_entropy/layer0/min": 0.25, "joma/largest_logit/layer0/max": 7.0}


def test_a_state_stops_only_where_that_is_asked_for() -> None:
    assert Teller(None, "stop", None).stopper([STATE]) is None
    assert Teller(None, "stop", None).stopper([STATE, ALARM]) is ALARM
    assert Teller(None, "log", "stop").stopper([ALARM, STATE]) is STATE


def test_alarms_come_before_states_and_the_worst_state_first() -> None:
    course = made_monitors.healthy()
    course.entropy[100:] = 0.02
    course.logit[100:] = 300.0
    course.update[100:, 1] = 1e-9
    course.residual[100:, 2] = np.inf
    _, messages, _ = made_monitors.judge(course)
    at_once = [message.kind for message in messages if message.step >= 1000]
    assert "alarm" in at_once
    first = next(message.step for message in messages if message.kind == "alarm" and message.metric != "loss")
    kinds = [message.kind for message in messages if message.step == first]
    assert kinds == sorted(kinds)
    last = made_monitors.looks_of(course)[-1]
    last = last[last["metric"] != "loss"]
    worst = ["residual_rms", "attention_entropy", "largest_logit", "residual_update"]
    assert [state.metric for state in states(last, {})] == worst
    assert states(last, {})[1].where == "all 12 heads"


def test_a_cadence_at_which_nothing_can_alarm_is_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    possible, said = Judge(looks=6, alpha=0.05).when_possible(0, 50, 300)
    assert not possible
    assert said.startswith(
        "no change can be alarmed in 300 steps: at a look each 50 steps alarms are possible"
    )
    closer = int(said.partition("with every=")[2].split()[0])
    assert Judge(looks=300 // closer, alpha=0.05).when_possible(0, closer, 300)[0]
    with caplog.at_level(logging.INFO, "joma"), Monitor(nn.Linear(2, 2), every=50, steps=300):
        assert "no change can be alarmed in 300 steps" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "joma"), Monitor(nn.Linear(2, 2), every=50, steps=30_000):
        assert "alarms are possible from step " in caplog.text


def test_a_loss_that_was_never_finite_is_no_matter_of_statistics_or_of_a_checkpoint() -> None:
    (message,) = LossAlarm().step(0, float("nan"))
    assert "CUSUM" not in message.sentence()
    assert "checkpoint before" not in message.sentence()
    assert "check the data and the initial weights" in message.sentence()


def test_a_loss_that_is_as_it_was_did_not_fall() -> None:
    table = made_monitors.judge(made_monitors.healthy(12))[0]
    table.loc[table["metric"] == "loss", "value"] = np.linspace(3.2004, 3.1996, 111)
    assert _course(table, "loss", "the loss", "") == "the loss is 3.2, as it was"


class _Run:
    """Of W&B or trackio, or a Comet experiment: the method that each has."""

    def __init__(self, method: str, told: list[tuple[int, dict[str, float]]]) -> None:
        setattr(self, method, lambda numbers, *, step: told.append((step, numbers)))


def as_wandb(told: list[tuple[int, dict[str, float]]]) -> Any:
    def log(data: dict[str, float], step: int | None = None, commit: bool | None = None) -> None:
        told.append((step or 0, data))

    return log


@pytest.mark.parametrize(
    "form", ["step first", "as wandb.log", "a run", "an experiment of Comet", "one mapping"]
)
def test_what_people_pass_as_a_log_gets_step_and_numbers(form: str) -> None:
    told: list[tuple[int, dict[str, float]]] = []
    forms: dict[str, Any] = {
        "step first": lambda step, numbers: told.append((step, numbers)),
        "as wandb.log": as_wandb(told),
        "a run": _Run("log", told),
        "an experiment of Comet": _Run("log_metrics", told),
        "one mapping": lambda numbers: told.append((numbers.pop("step"), numbers)),
    }
    sink = sink_of(forms[form])
    assert isinstance(sink, Destination)
    sink.write(7, NUMBERS)
    assert told == [(7, NUMBERS)]


def test_print_gets_one_line_of_few_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    sink = sink_of(print)
    assert sink is not None
    sink.write(7, NUMBERS)
    line = "step 7, loss 2.5, least attention entropy 0.25, largest logit 7\n"
    assert capsys.readouterr().out == line


def test_the_trainer_says_how_many_steps_it_plans(caplog: pytest.LogCaptureFixture, tmp_path: Any) -> None:
    pytest.importorskip("transformers")
    from joma.hf import TrainingMonitor

    callback = TrainingMonitor()
    facts = {"output_dir": tmp_path, "world_size": 1, "average_tokens_across_devices": False}
    arguments = SimpleNamespace(**facts, torch_compile=False, label_smoothing_factor=0)
    state = SimpleNamespace(max_steps=300, global_step=0)
    callback.on_train_begin(arguments, state, SimpleNamespace(), model=nn.Linear(2, 2))  # type: ignore[arg-type]
    assert "no change can be alarmed in 300 steps" in caplog.text
    assert callback.monitor is not None
    callback.monitor.close()
