"""Where a monitor's numbers go. Trackers that are installed are used; the others are tried in environments of
their own, with this file."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from joma.instruments.monitor.alarms.messages import Message
from joma.instruments.monitor.monitor import Monitor
from joma.instruments.monitor.sinks import sink_of

NAME = "joma/attention_entropy/layer0/min"
SPIKE = Message(3, "spike", "loss", "loss", "the loss rose and has come back", 2, "a loss that recovered")
STATE = Message(4, "state", "layer 0, head 1", "largest_logit", "its largest logit is 200", 4, "a level")


def watched(log: object) -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True)
    with torch.no_grad():
        model.self_attn.in_proj_weight[:16] *= 400
    with Monitor(model, every=2, log=log) as monitor:  # type: ignore[arg-type]
        for step in range(3):
            monitor.step(step, loss=model(torch.randn(2, 5, 8)).square().mean())
    assert monitor.messages


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_numbers_and_alerts_reach_a_tracker(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[int, dict[str, float]]] = []
    alerts: list[tuple[str, str, str]] = []
    tracker = types.ModuleType(name)
    tracker.log = lambda numbers, step: logged.append((step, numbers))  # type: ignore[attr-defined]
    tracker.alert = lambda title, text, level: alerts.append((title, text, level))  # type: ignore[attr-defined]
    tracker.AlertLevel = types.SimpleNamespace(INFO="info", WARN="warn")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, tracker)
    watched(name)
    assert [step for step, _ in logged] == [0, 2]
    assert NAME in logged[0][1]
    assert alerts[0][0].startswith("joma: state: all 2 heads")
    assert "To do:" in alerts[0][1]
    sink = sink_of(name)
    assert sink is not None
    sink.tell(SPIKE)
    sink.tell(STATE)
    assert [level for *_, level in alerts[-2:]] == ["info", "warn"]


def test_an_alert_that_is_refused_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = types.ModuleType("trackio")
    tracker.log = lambda numbers, step: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trackio", tracker)
    watched("trackio")  # it has no alerts


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))
    watched(writer)
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.step for event in events.Scalars(NAME)] == [0, 2]


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = wandb.init(project="joma", dir=str(tmp_path))
    watched("wandb")
    assert NAME in dict(run.summary)
    run.finish()


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        watched("mlflow")
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, NAME)
    assert [entry.step for entry in history] == [0, 2]


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    trackio = pytest.importorskip("trackio")
    trackio.init(project="joma", embed=False)
    watched("trackio")
    trackio.finish()
    assert any(tmp_path.rglob("*.db"))
