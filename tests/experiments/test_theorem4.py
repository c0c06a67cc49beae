from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.joma_paper.theorem4 import Theorem4
from joma.experiments.joma_paper.theorem4.run import deviation


@pytest.fixture(scope="module")
def tables():
    return Theorem4().run(Progress(quiet=True))


def test_claims(tables):
    (claim,) = Theorem4().claims(tables)
    assert claim.verdict == "holds"
    assert claim.null > 1e3 * claim.tolerance


def test_the_answer_says_that_it_is_about_equation_6(tables):
    first, second = Theorem4().answer(tables)
    assert "12.2 times" in first
    assert "not the flow of the block" in second


def test_no_attention_no_salience(tables):
    none = tables["ratio"].query("run == 'none'")["value"]
    assert none.to_numpy() == pytest.approx(np.ones(len(none)), rel=1e-6)


def test_a_wrong_law_would_be_seen(tables):
    """Speeds of another attention, or of none, passed off as exp attention's."""
    limits = tables["limits"].copy()
    rows = (limits["run"] == "exp") & (limits["metric"] == "ratio of speeds")
    for other in ("linear", "none"):
        speeds = limits[(limits["run"] == other) & (limits["metric"] == "ratio of speeds")]
        limits.loc[rows, "value"] = speeds["value"].to_numpy()
        (claim,) = Theorem4().claims({**tables, "limits": limits})
        assert claim.verdict == "fails"


def test_deviation_agrees_with_golden(golden):
    """Lambda at delta_k = .1 for mu = (3, 2), from the table's own curve."""
    entry = golden("thm4_ratio_.1")
    table = deviation(Theorem4(critical_points=(3.0, 2.0)))
    curve = table[table["metric"] == "Lambda"]
    found = np.interp(np.log(10), curve["log_inverse_delta_k"], curve["value"])
    assert found == pytest.approx(entry["expected"][1], rel=0.01)


def test_repeats_and_draws(tables, tmp_path):
    again = Theorem4().run(Progress(quiet=True))
    for name, table in tables.items():
        pd.testing.assert_frame_equal(table, again[name], check_exact=True)
    with style("light"):
        Theorem4().draw(tables).savefig(tmp_path / "figure.png")


def test_bad_settings():
    with pytest.raises(InputError, match="two components"):
        Theorem4(critical_points=(2.0,))
    with pytest.raises(InputError, match="skew"):
        Theorem4(skew=1.0)
