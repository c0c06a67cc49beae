from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.joma_paper.fig3 import Fig3

SMALL = {"runs": 2, "record_every": 200}


@pytest.fixture(scope="module")
def tables():
    return Fig3(**SMALL).run(Progress(quiet=True))


def test_tables_are_tidy_and_repeat_bit_for_bit(tables):
    tiny = {"runs": 2, "steps": 40, "classes": 5, "distinct": 3, "common": 3}
    one, two = (Fig3(**tiny).run(Progress(quiet=True)) for _ in range(2))
    for name, table in one.items():
        pd.testing.assert_frame_equal(table, two[name], check_exact=True)
    assert set(tables["components"]["attention"]) == {"trained", "frozen"}
    assert not tables["components"]["value"].isna().any()
    assert not tables["final"]["value"].isna().any()
    assert tables["components"]["step"].max() == 4000


def test_limits_of_losers_are_those_of_theorem_2(tables):
    wide = tables["final"].query("attention == 'trained' and run == 0")
    wide = wide.pivot_table(index="token", columns="metric", values="value", dropna=False)
    share = wide["drive"] / wide["drive"].max()
    from scipy.special import erfinv

    losers = share < 1
    expected = np.sqrt(2 / 4.0) * erfinv(share[losers])  # kappa = 1 / T^2 = 4
    np.testing.assert_allclose(wide["norm_limit"][losers], expected, rtol=1e-10)
    assert np.isinf(wide["norm_limit"][~losers]).all()


def test_attention_makes_components_saturate_and_nothing_else_does(tables):
    claims = {claim.id: claim for claim in Fig3(**SMALL).claims(tables)}
    assert claims["fig3.saturation"].verdict == "holds"
    assert claims["fig3.saturation"].measured > 0.8
    assert claims["fig3.saturation"].null == 0.0
    assert claims["fig3.losers_order"].verdict == "holds"
    assert abs(claims["fig3.losers_order"].null) < 0.5
    # Both ends of the smooth classes win, and softmax's losers go beyond the limits for exp attention.
    assert claims["fig3.one_winner"].verdict == "fails"
    assert "2 to 2 tokens still grow" in claims["fig3.one_winner"].evidence
    assert claims["fig3.losers_limits"].verdict == "fails"


@pytest.mark.parametrize(("attention", "share"), [("trained", 1.0), ("trained", 0.5), ("frozen", 0.55)])
def test_saturation_is_of_most_and_needs_attention(tables, attention, share):
    final = tables["final"].copy()
    growth = final.query("metric == 'weight_growth' and run == 1 and attention == @attention")
    final.loc[growth.index, "value"] = np.where(growth["token"] < share * len(growth), 0.0, 1.0)
    claims = {claim.id: claim.verdict for claim in Fig3(**SMALL).claims({**tables, "final": final})}
    assert claims["fig3.saturation"] == "fails"


def test_the_winner_must_be_the_token_of_the_largest_drive(tables):
    """One token grows in every run: the claim holds where it is the driven one, and only there."""
    for winner, verdict in (("largest", "holds"), ("smallest", "fails")):
        final = tables["final"].copy()
        for _, run in final.query("attention == 'trained' and metric == 'drive'").groupby("run"):
            of_run = final["run"] == run["run"].iloc[0]
            token = run["token"].loc[run["value"].idxmax() if winner == "largest" else run["value"].idxmin()]
            growth = of_run & (final["attention"] == "trained") & (final["metric"] == "norm_growth")
            final.loc[growth, "value"] = np.where(final.loc[growth, "token"] == token, 1.0, 0.0)
        claims = {claim.id: claim.verdict for claim in Fig3(**SMALL).claims({**tables, "final": final})}
        assert claims["fig3.one_winner"] == verdict


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure_is_drawn_in_both_themes(tables, theme, tmp_path):
    with style(theme):
        Fig3(**SMALL).draw(tables).savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_unknown_data_are_refused():
    with pytest.raises(InputError, match="did you mean 'smooth'"):
        Fig3(data="smoth")
