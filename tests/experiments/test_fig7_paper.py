"""Fig. 7's preset paper from its settings to its page, on made curves of the paper's shapes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from joma.core.progress import Progress
from joma.experiments.joma_paper.fig7 import Fig7
from joma.experiments.joma_paper.fig7 import run as fig7_run

SHAPES = {"EleutherAI/pythia-70m": 6, "EleutherAI/pythia-1.4b": 24, "EleutherAI/pythia-6.9b": 32}
"""Layers of the paper's models that have revisions; of layers 6 to 23 two of the three have one."""
NO_REVISIONS = "facebook/opt-2.7b: it has no revisions"


def made_curves(model: str, *, bounces: bool = True) -> pd.DataFrame:
    """Stable ranks and entropies of 20 log-spaced revisions; upper layers rise again at the end."""
    depth, random = SHAPES[model], np.random.default_rng(len(model))
    steps = np.unique(np.geomspace(1, 143_000, 20).round()).astype(int)
    moments = np.linspace(0.0, 20.0, steps.size)
    rows = []
    for layer in range(depth):
        curve = 10 - 5 / (1 + np.exp(-(moments - 4 - 3 * layer / depth)))
        if bounces and layer >= depth / 2:
            curve += 0.4 * np.clip(moments - 12, 0, None)
        curve += 0.02 * random.standard_normal(steps.size)
        for metric, matrix in (("stable_rank", "lower"), ("attention_entropy", "attention")):
            rows += [(int(s), layer, metric, matrix, v) for s, v in zip(steps, curve, strict=True)]
    return pd.DataFrame(rows, columns=["step", "layer", "metric", "matrix", "value"])


def _hub(settings: Fig7, model: str, progress: Progress) -> pd.DataFrame:
    return made_curves(model)


def _hub_only_falls(settings: Fig7, model: str, progress: Progress) -> pd.DataFrame:
    return made_curves(model, bounces=False)


def _download(settings: Fig7, model: str) -> dict[str, object]:
    if model in SHAPES:
        return {"model": model, "members": 20, "bytes": 10**9, "note": ""}
    return {"model": model, "members": None, "bytes": None, "note": NO_REVISIONS}


@pytest.mark.parametrize(("hub", "verdict"), [(_hub, "holds"), (_hub_only_falls, "fails")])
def test_the_preset_paper_finishes(hub, verdict, monkeypatch):
    monkeypatch.setattr(fig7_run, "_hub", hub)
    monkeypatch.setattr(fig7_run, "_download", _download)
    settings = Fig7.from_preset("paper")
    tables = settings.run(Progress(quiet=True))
    assert tables["curves"].groupby("run")["layer"].nunique().tolist() == [6, 24, 32]
    assert (tables["layers"]["runs"] == 1).all()
    found = {claim.id: claim for claim in settings.claims(tables)}
    assert found["fig7.top_layers"].verdict == verdict
    assert found["fig7.wave"].verdict == "not tested"
    answer = settings.answer(tables)
    assert "3 runs" in answer[0]
    assert NO_REVISIONS in answer[1]
    figure = settings.draw(tables)
    assert figure.axes
