from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import joma
import made_monitors
from joma.cli import main as cli


def test_monitor_says_where_a_run_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True)
    with torch.no_grad():
        model.self_attn.in_proj_weight[:16] *= 400
    with joma.Monitor(model, every=2, folder=tmp_path / "live") as monitor:
        for step in range(3):
            loss = model(torch.randn(2, 5, 8)).square().mean()
            monitor.step(step, loss=loss)
    assert cli.main(["monitor", str(tmp_path / "live")]) == 0
    shown = capsys.readouterr().out
    assert "TransformerEncoderLayer at step 2, looked at every 2 steps" in shown
    assert "STATE     step 0: " in shown
    assert "least attention entropy" in shown
    assert "No alarm is possible before step 150" in shown
    assert "The run is not healthy: all 2 heads: attention is on one key" in shown
    assert cli.main(["monitor", str(tmp_path)]) == 0  # a Trainer's folder holds its monitor's
    assert capsys.readouterr().out == shown
    assert cli.main(["monitor", str(tmp_path / "live"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["step"] == 2
    assert {message["kind"] for message in told["messages"]} == {"state"}


def test_the_guarantee_is_said_in_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made_monitors.write(made_monitors.healthy(40), tmp_path / "live")
    assert cli.main(["monitor", str(folder)]) == 0
    said = r"Alarms are active since step (\d+)\. A change confined to one head needs at least (\d+) looks "
    found = re.search(said + r"\((\d+) steps\) to be noticed\.", capsys.readouterr().out)
    assert found is not None
    since, looks, steps = map(int, found.groups())
    assert since < 400
    assert steps == looks * made_monitors.EVERY


def test_a_folder_of_another_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    joma.Monitor(nn.Linear(2, 2), folder=tmp_path / "live").close()
    facts = tmp_path / "live" / "monitor.json"
    facts.write_text(json.dumps({**json.loads(facts.read_text()), "version": 1}))
    for words in (
        ["monitor", str(tmp_path / "live")],
        ["report", str(tmp_path), "-o", str(tmp_path / "p.html")],
    ):
        assert cli.main(words) == 2
        assert "written in version 1 of a monitor's folder" in capsys.readouterr().err


def test_no_monitors_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["monitor", str(tmp_path)]) == 2
    assert "not a monitor folder" in capsys.readouterr().err
    assert cli.main(["monitor"]) == 2
    assert "name the folder" in capsys.readouterr().err


def test_the_page_of_a_monitored_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True), 2, enable_nested_tensor=False
    )
    with joma.Monitor(model, every=2, ranks_every=2, folder=tmp_path / "live") as monitor:
        for step in range(9):
            loss = model(torch.randn(2, 5, 8)).square().mean()
            monitor.step(step, loss=loss * torch.nan if step == 5 else loss)
    capsys.readouterr()
    assert cli.main(["monitor", str(tmp_path / "live")]) == 0
    assert "The loss is read at every step that reported one" in capsys.readouterr().out
    page = tmp_path / "page.html"
    assert cli.main(["report", str(tmp_path), "-o", str(page)]) == 0
    shown = page.read_text()
    assert "TransformerEncoder, watched while it trained" in shown
    assert "Up to step 8: 1 alarm and no state messages; the loss " in shown
    assert "the loss is nan" in shown
    assert "go back to a checkpoint before this step" in shown
    assert shown.count("data:image/webp;base64") == 2
    assert (tmp_path / "live" / "figure.png").stat().st_size > 10_000
    # The folder is still its monitor's: the run can be continued.
    with joma.Monitor(model, every=2, folder=tmp_path / "live") as monitor:
        assert monitor.last == 8
    bare = tmp_path / "bare"
    joma.Monitor(model, folder=bare / "live").close()
    assert cli.main(["report", str(bare)]) == 0
    assert "Nothing was looked at yet." in (bare / "report.html").read_text()
