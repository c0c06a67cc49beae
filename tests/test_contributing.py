"""The steps of CONTRIBUTING.md, followed as printed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from joma.cli import main as cli
from joma.experiments import beyond, catalog
from joma.runs.directory import read_run

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text("utf-8")


@pytest.fixture
def coin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The printed experiment, in a folder that joma finds experiments in."""
    blocks = re.findall(r'```python title="([\w/.]+)"\n(.*?)```', TEXT, re.DOTALL)
    assert [name for name, _ in blocks] == [
        f"coin/{part}.py" for part in ("__init__", "run", "figure", "claims")
    ]
    for name, code in blocks:
        path = tmp_path / "experiments" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    monkeypatch.setattr(beyond, "__path__", [*beyond.__path__, str(tmp_path / "experiments")])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("joma.experiments.beyond.coin")]:
        del sys.modules[name]


def test_the_printed_experiment_runs(coin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "coin" in catalog.names()
    assert cli.main(["run", "coin", "--throws", "400", "--out", str(coin / "out"), "--quiet"]) == 0
    assert "half of the throws show heads" in capsys.readouterr().out
    run = read_run(coin / "out")
    assert [claim.id for claim in run.claims] == ["coin.fair"]
    assert len(run.tables["throws"]) == 5
    assert (coin / "out" / "figure.png").exists()


def test_what_it_points_to_exists() -> None:
    root = Path(__file__).parents[1]
    for path in re.findall(r"\]\(([\w/.]+)\)", TEXT):
        assert (root / path).exists(), path
    for path in re.findall(r"`((?:src|tests|docs|measures|theory)/[\w/.]+)`", TEXT):
        assert (root / path).exists() or (root / "src" / "joma" / path).exists(), path
