from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.scan_snap.snap_fig4 import SnapFig4


@pytest.fixture(scope="module")
def tables():
    return SnapFig4().run(Progress(quiet=True))


def test_attention_starts_at_the_probabilities_and_always_sums_to_one(tables):
    mass = tables["tokens"].query("metric == 'attention mass'")
    start = mass[(mass["step"] == 0) & (mass["data"] == "real")]
    np.testing.assert_allclose(start["value"], start["probability"], atol=1e-15)
    totals = mass[mass["data"] == "real"].groupby(["run", "length", "step", "next_token"])["value"].sum()
    np.testing.assert_allclose(totals, 1.0, atol=1e-12)


def test_claims(tables):
    claims = {claim.id: claim for claim in SnapFig4().claims(tables)}
    assert claims["snap_fig4.common_suppressed"].verdict == "holds"
    assert claims["snap_fig4.distinct_rise"].verdict == "holds"
    assert claims["snap_fig4.graded"].verdict == "holds"
    assert claims["snap_fig4.graded"].null < 0.6
    assert all(claim.null < 0.95 for claim in claims.values())
    # sequences of 128 see the rarest tokens less than twice: some of these do not rise
    assert claims["snap_fig4.distinct_rise_finite"].verdict == "fails"
    assert claims["snap_fig4.distinct_rise_finite"].measured > 0.8


def test_claims_fail_on_untrained_attention(tables):
    start = tables["tokens"][tables["tokens"]["step"] == 0]
    untrained = [start, start.assign(step=100)]
    claims = SnapFig4().claims({"tokens": pd.concat(untrained)})
    assert {claim.verdict for claim in claims} == {"fails"}


def test_same_seed_same_tables_bit_for_bit():
    small = {"seeds": 2, "steps": 6, "batch": 8, "length": 16}
    one, two = (SnapFig4(**small).run(Progress(quiet=True))["tokens"] for _ in range(2))
    pd.testing.assert_frame_equal(one, two, check_exact=True)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure_is_drawn(tables, theme):
    with style(theme):
        figure = SnapFig4().draw(tables)
        figure.canvas.draw()
    assert len(figure.axes) == 3
