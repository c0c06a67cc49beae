"""``joma branch``: its words, its named sets, its texts, and kills in the midst of it."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import joma.cli.main as cli
from joma.core.errors import InputError
from joma.core.progress import Progress
from joma.instruments.branch import DecoderBranchSettings
from joma.instruments.branch.interventions import Intervention
from joma.instruments.branch.run import parameter_names
from joma.models.decoder import Decoder

SMALL = {"at": 3, "steps": 3, "seeds": 2, "width": 8, "batch": 2, "length": 8, "orders": 0}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(np.random.default_rng(0).choice(list("abc de"), 3000)), "utf-8")
    return str(path)


def curves(text: str, *ways: str, **changed: object) -> pd.Series:
    settings = DecoderBranchSettings.of(**{**SMALL, "corpus": text, "interventions": ways, **changed})
    tables = settings.run(Progress(quiet=True))
    assert set(tables["curves"]["metric"]) == {"loss", "entropy_0"}
    return tables["curves"].set_index(["branch", "metric", "run", "step"])["value"]


def test_named_sets_and_texts(text: str) -> None:
    ways = (
        "same: none",
        "own: text " + text,
        "sets: freeze queries-keys norms",
        "names: freeze layers.*.in_projection.*[:16] layers.*norm.*",
        "mixed: shuffle-text",
    )
    found = curves(text, *ways)
    twin = found["twin"]
    assert (found["same"] == twin).all()
    assert (found["sets"] == found["names"]).all()
    assert (found["sets"]["loss"] != twin["loss"]).any()
    assert (found["mixed"]["loss"] != twin["loss"]).all()
    # Another text is read in windows of its own, here of the same one.
    assert not (found["own"]["loss"] == twin["loss"]).all()


def test_every_name_stands_for_parameters() -> None:
    model = Decoder(5, layers=2, width=8, hidden=8, longest=8)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    names = parameter_names(DecoderBranchSettings(width=8, layers=2))
    for name in ("queries-keys", "values", "mlp", "norms", "embeddings", "output"):
        for part in Intervention("", "freeze", names[name]).parts(model):
            part.of(model).add_(1.0)
    assert all(bool((parameter == 1).all()) for parameter in model.parameters())
    assert len(Intervention("", "freeze", names["layer-1"]).parts(model)) == 12


@pytest.mark.parametrize(
    ("ways", "message"),
    [
        (("frozen freeze mlp",), "is no intervention with a name of its own"),
        (("a: none", "a: none"), "repeats a value"),
        (("a:",), "is no intervention with a name of its own"),
        (("a: freeze mpl",), "names no parameter"),
        (("a: thaw mlp",), "thaw mlp"),
        (("a: text nowhere.txt",), "is neither a file nor a known corpus"),
    ],
)
def test_bad_words(text: str, ways: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        curves(text, *ways)


def test_a_branch_needs_an_intervention(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["branch"]) == 2
    error = capsys.readouterr().err
    assert "name at least one intervention" in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_twenty_kills_change_nothing(tmp_path: Path) -> None:
    import kills

    kills.write_inputs(tmp_path)
    words, chance = kills.COMMANDS["branch"], random.Random(3)
    (tmp_path / "quiet").mkdir()
    seconds = kills.finish(words, tmp_path / "quiet", tmp_path)
    struck = turn = 0
    while struck < 20:
        out = tmp_path / f"killed-{turn}"
        out.mkdir()
        for _ in range(kills.SAME_DIRECTORY):
            running = kills.start(words, out, tmp_path)
            time.sleep(chance.uniform(0.0, 0.8) * seconds)
            ended, _ = os.waitpid(running, os.WNOHANG)
            if not ended:
                os.kill(running, signal.SIGKILL)
                os.waitpid(running, 0)
                struck += 1
        kills.finish(words, out, tmp_path)
        assert kills.differences(out, tmp_path / "quiet") == []
        turn += 1
