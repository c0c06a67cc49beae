"""Run directories read back, and what users hold, as they show themselves."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import joma
from joma.core.errors import InputError, RunDirectoryError
from joma.core.files import write_text
from joma.experiments import catalog
from joma.instruments.probe import ProbeSettings
from joma.runs.directory import run_experiment, write_claims


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "fig9"
    run_experiment(catalog.find("fig9").of(seed=3), directory, quiet=True)
    return directory


def test_a_run_is_given_back(run: Path) -> None:
    found = joma.read(run)
    assert found.name == "fig9"
    assert found.settings["seed"] == 3
    assert found.job() == catalog.find("fig9").of(seed=3)
    for name, table in found.tables.items():
        pd.testing.assert_frame_equal(table, pd.read_parquet(run / f"{name}.parquet"))
    assert found.verdicts()["id"].tolist() == [claim.id for claim in found.claims]
    figure = found.plot()
    assert figure.axes
    plt.close(figure)
    assert found.answer()
    assert str(run) in repr(found)
    page = found._repr_html_()
    assert "data:image/png" in page
    assert found.claims[0].id in page


def test_every_instrument_and_experiment_is_known() -> None:
    from joma.report.results import _kind

    assert _kind("probe") is ProbeSettings
    for name in catalog.names():
        assert _kind(name).name() == name


def test_what_is_no_run_is_said(tmp_path: Path, run: Path) -> None:
    with pytest.raises(RunDirectoryError, match="not a run directory"):
        joma.read(tmp_path)
    write_claims(tmp_path / "check", name="check", title="checks", compute=list)
    checks = joma.read(tmp_path / "check")
    assert checks.claims == []
    with pytest.raises(InputError, match="no experiment 'check'"):
        checks.plot()
    other = tmp_path / "older"
    other.mkdir()
    for file in run.iterdir():
        if file.is_file() and not file.name.startswith("."):
            (other / file.name).write_bytes(file.read_bytes())
    text = (other / "settings.yaml").read_text()
    write_text(other / "settings.yaml", text.replace("\n  seed:", "\n  sown: 1\n  seed:", 1))
    with pytest.raises(InputError, match="has the setting 'sown', which fig9 has no more"):
        joma.read(other).job()


def test_what_users_hold_is_short_in_a_terminal() -> None:
    query = torch.randn(1, 2, 8, 4)
    model = nn.MultiheadAttention(8, 2)
    tokens = torch.randn(5, 1, 8)
    with joma.watch(model) as seen:
        assert "0 attentions" in repr(seen)
        model(tokens, tokens, tokens)
    curve = 3 + np.cos(np.arange(60) / 60 * 2 * np.pi)
    held = [
        joma.attention_entropy(query, query),
        joma.stable_rank_estimate(torch.randn(8, 5)),
        joma.bounce(range(60), curve),
        seen,
        joma.ProbeResult(ProbeSettings(), {"layers": pd.DataFrame({"layer": [0], "entropy": [1.5]})}),
    ]
    for one in held:
        assert len(repr(one)) < 300, repr(one)
        assert "\n" not in repr(one)
    assert "falls by 1.995 to 2.003 at step 30" in repr(held[2])
    assert "1 attentions in 1 passes" in repr(seen)
    assert "<table" in seen._repr_html_()


def test_pages_in_a_notebook_are_escaped() -> None:
    table = pd.DataFrame({"<b>": ["<script>alert(1)</script>"]})
    page = joma.ProbeResult(ProbeSettings(), {"layers": table})._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
