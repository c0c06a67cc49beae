"""The study of the growth of W_Q^T W_K: no kind is both chosen on and judged on, and its tables are right."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from growth_study.judge import held_forecasts, quiet_bases, tables_of
from growth_study.kinds import BRANCHES, CHOSEN_ON, JUDGED_ON, RAMP, TWIN
from growth_study.networks import CLASSES, LENGTH, PATCHES, SIDE, Network


def test_no_kind_is_chosen_on_and_judged_on() -> None:
    chosen, judged = ({kind.name for kind in kinds} for kinds in (CHOSEN_ON, JUDGED_ON))
    assert not chosen & judged
    # Not under another name either.
    without = [{replace(kind, name="") for kind in kinds} for kinds in (CHOSEN_ON, JUDGED_ON)]
    assert not without[0] & without[1]
    assert (len(without[0]), len(without[1])) == (len(CHOSEN_ON), len(JUDGED_ON))
    assert len(JUDGED_ON) >= 8


@pytest.mark.parametrize("kind", [*CHOSEN_ON, *JUDGED_ON], ids=lambda kind: kind.name)
def test_every_kind_learns_from_its_whole_self(kind) -> None:
    torch.manual_seed(0)
    model = Network(kind, 31)
    if kind.task == "patches":
        batch = torch.randn(3, PATCHES, SIDE**2), torch.randint(CLASSES, (3,))
    else:
        batch = torch.randint(31, (2, LENGTH)), torch.randint(31, (2, LENGTH))
    loss = model.loss(*batch)
    loss.backward()
    assert loss.item() == pytest.approx(np.log(CLASSES if kind.task == "patches" else 31), rel=0.15)
    parts = model.parts()
    assert sum(map(len, parts.values())) == len(list(model.parameters()))
    assert len(parts["attention"]) == 2 * len(model.attentions())
    for attention in model.attentions():
        assert attention.query.weight.grad is not None
        assert attention.seen is not None
        assert attention.seen.largest_logit.shape == (kind.heads,)
        assert (attention.seen.normalised_entropy <= 1 + 1e-6).all()


def series(*, grows: str = "") -> pd.DataFrame:
    """A base of two heads and its branches, of which one grows in a head from its first step on."""
    parts = []
    for name, steps, start in (("base", 400, 0), *((one.name, one.steps, 400) for one in BRANCHES)):
        step = np.arange(start, start + steps)
        rise = np.maximum(step - 400, 0) * np.log(2) / 10 if name == grows else np.zeros(steps)
        loss = 2.0 + (np.maximum(step - 450, 0) * 0.05 if name == grows else 0.0)
        parts.append(
            pd.DataFrame(
                {
                    "kind": "kind",
                    "base": 0,
                    "branch": name,
                    "step": step,
                    "loss": loss + 0.01 * np.sin(step),
                    "largest_logit.0.0": 1.0,
                    "largest_logit.0.1": 5 * np.exp(rise),
                    "log_norm.0.0": 1.0,
                    "log_norm.0.1": 1.0 + rise,
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def test_the_tables_say_what_the_rule_saw() -> None:
    tables = tables_of([series(grows=RAMP)])
    runs = tables["runs"].set_index("branch")
    assert runs["alarm"].notna().sum() == 1
    assert runs.loc[RAMP, "alarm"] == 15.0  # 0.7 = 10.1 steps of doubling every ten
    assert runs.loc[RAMP, "label"] == "collapsed"
    assert runs.loc[TWIN.name, "label"] == "healthy"
    assert quiet_bases(tables["runs"]) == (0, 1)
    assert runs.loc[RAMP, "logit_100"] == 44.0  # 5 * 2^(t/10) = 100
    assert held_forecasts(tables["runs"])[1] == 1
    rates = tables["rates"].query("kind == 'all' and branch == @RAMP").set_index("metric")
    assert rates.loc["damaged runs alarmed before the onset", "count"] == 1
    assert tables["leads"].set_index("metric").loc["lead_on_onset", "value"] > 0
    assert quiet_bases(tables_of([series(grows="resumed")])["runs"]) == (1, 1)
