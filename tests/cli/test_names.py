"""Names that others chose reach the terminal as text: none moves its cursor, colours it or forges a line."""

from __future__ import annotations

import itertools
import json
import unicodedata
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import attacks
import joma
import toy
from command_line import called
from joma.core.printing import harmless, one_line_of
from joma.core.progress import Progress
from joma.runs.directory import run_experiment

EVIL = "\x1b[31m\x1b]0;owned\x07\r\u202e\u2028\x9b\nFORGED: all is well"
OBEYED = {"Cc", "Cf", "Zl", "Zp", "Cs"}


def check(*texts: str) -> None:
    for text in texts:
        bad = [one for one in text if unicodedata.category(one) in OBEYED and one not in "\n\t"]
        assert not bad, (bad, text)
        assert not any(line.startswith("FORGED") for line in text.splitlines()), text


@pytest.fixture
def series(tmp_path: Path) -> Path:
    attacks.honest(tmp_path / "series")
    name = f"step2-{EVIL}"
    (tmp_path / "series" / name).mkdir()
    tensors = {attacks.UP: attacks.weight(2), f"{EVIL}.weight": attacks.weight(3)}
    save_file(tensors, tmp_path / "series" / name / "model.safetensors")
    bad = tmp_path / "series" / f"step4{EVIL}"
    bad.mkdir()
    (bad / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {EVIL: f"{EVIL}.safetensors"}})
    )
    return tmp_path / "series"


@pytest.mark.filterwarnings("ignore")
def test_of_checkpoints_tensors_and_files(series: Path, tmp_path: Path) -> None:
    hostile = sorted(str(path) for path in series.iterdir() if EVIL in path.name)
    for words in (
        ["track", str(series), "--out", str(tmp_path / "a")],
        ["track", str(series), "--plan"],
        ["track", str(series), "--revisions", EVIL],
        ["track", *hostile, "--out", str(tmp_path / "b")],
        ["probe", hostile[0], "--weights", "--out", str(tmp_path / "c")],
        ["probe", hostile[1], "--weights"],
        ["probe", EVIL, "--weights"],
        ["neurons", hostile[0], "--text", EVIL],
        ["report", str(tmp_path / "a"), "-o", str(tmp_path / "p.html")],
        ["report", hostile[0]],
        ["report", EVIL],
    ):
        done = called(words)
        assert done.returncode in (0, 1, 2)
        assert done.stdout or done.stderr
        check(done.stdout, done.stderr)


@pytest.mark.parametrize(
    "command", ["", "list", "check", "run", "sweep", "demo", "monitor", "report", "probe", EVIL]
)
def test_of_what_was_typed(command: str) -> None:
    for words in (
        [command, EVIL],
        [command, f"--{EVIL}"],
        [command, "--config", EVIL],
        [command, "--out", EVIL, "x"],
    ):
        if command == "demo" and "--out" in words:
            continue
        done = called([word for word in words if word])
        check(done.stdout, done.stderr)


def test_of_a_monitored_model(tmp_path: Path) -> None:
    model = nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True)
    with torch.no_grad():
        model.self_attn.in_proj_weight[:16] *= 400
    with joma.Monitor(model, every=2, folder=tmp_path / "live") as monitor:
        for step in range(3):
            monitor.step(step, loss=model(torch.randn(2, 5, 8)).square().mean())
    for name in ("monitor.json", "messages.json"):
        text = (tmp_path / "live" / name).read_text()
        text = text.replace("TransformerEncoderLayer", json.dumps(EVIL)[1:-1])
        (tmp_path / "live" / name).write_text(text.replace("state: ", json.dumps(EVIL)[1:-1]))
    done = called(["monitor", str(tmp_path / "live")])
    assert r"\x1b[31m" in done.stdout
    check(done.stdout, done.stderr)


@pytest.mark.usefixtures("no_pictures")
def test_of_a_run(tmp_path: Path) -> None:
    directory = tmp_path / f"run{EVIL}"
    run_experiment(toy.Toy(), directory)
    claims = directory / "claims.json"
    claims.write_text(claims.read_text().replace("a", json.dumps(EVIL)[1:-1]))
    for words in (["report", str(directory)], ["report", str(tmp_path)]):
        done = called(words)
        check(done.stdout, done.stderr)


def test_of_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    times = itertools.count(0.0, 40.0)
    list(Progress(clock=lambda: next(times)).track(range(3), EVIL))
    shown = capsys.readouterr().err
    assert "owned" in shown
    check(shown)


@given(st.text())
@example(EVIL)
@example("\ud800")
def test_what_is_harmless(text: str) -> None:
    check(harmless(text).replace("FORGED", ""), one_line_of(text))
    assert "\n" not in one_line_of(text)
    assert harmless(harmless(text)) == harmless(text)
    plain = "".join(one for one in text if one.isprintable() or one in "\n\t")
    assert harmless(plain) == plain
