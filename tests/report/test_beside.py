"""Two runs side by side."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

import toy
from joma.cli.main import main
from joma.report.beside import pair_of
from joma.runs.directory import Run, run_experiment


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("beside")
    return [
        run_experiment(toy.Toy(), folder / "x" / "run"),
        run_experiment(toy.Toy(parts=9, sizes=(3,)), folder / "y" / "run"),
    ]


def test_settings_claims_and_layers_are_laid_beside_each_other(runs: list[Run]) -> None:
    tables = [
        pd.DataFrame({"layer": [0, 1], "entropy": [2.0, 1.0], "only": 1.0}),
        pd.DataFrame({"layer": [1, 2], "entropy": [3.0, 4.0]}),
    ]
    both = [
        dataclasses.replace(run, tables={**run.tables, "layers": table})
        for run, table in zip(runs, tables, strict=True)
    ]
    pair = pair_of(both)
    assert pair is not None
    assert pair.names == ("x/run", "y/run")
    assert {name for name, *_ in pair.settings} == {"parts", "sizes"}
    assert [a.id for a, _ in pair.claims] == [b.id for _, b in pair.claims] == [c.id for c in runs[0].claims]
    assert pair.layers is not None
    expected = {
        "layer": [0, 1, 2],
        "entropy, x/run": [2.0, 1.0, float("nan")],
        "entropy, y/run": [float("nan"), 3.0, 4.0],
    }
    pd.testing.assert_frame_equal(pair.layers, pd.DataFrame(expected))


def test_others_are_no_pair(runs: list[Run]) -> None:
    assert pair_of(runs[:1]) is None
    other = dataclasses.replace(runs[1], settings={**runs[1].settings, "experiment": "other"})
    assert pair_of([runs[0], other]) is None
    assert pair_of([*runs, runs[0]]) is None


def test_the_page_of_two(runs: list[Run], tmp_path: Path) -> None:
    page = tmp_path / "both.html"
    directories = [str(run.directory) for run in runs]
    assert main(["report", *directories, "--out", str(page)]) == 0
    text = page.read_text("utf-8")
    beside = text[text.index('id="beside"') : text.index('id="run-0"')]
    assert beside.count("<picture>") == text.count("<picture>") == 2
    assert "<h3>x/run</h3>" in beside
    assert "Settings that differ" in beside
    assert "<td>parts</td>" in beside
    assert "Claim by claim" in beside
    alone = tmp_path / "alone.html"
    assert main(["report", directories[0], "--out", str(alone)]) == 0
    assert "Side by side" not in alone.read_text("utf-8")
