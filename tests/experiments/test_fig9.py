from __future__ import annotations

import pandas as pd
import pytest

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.joma_paper.fig9 import Fig9


@pytest.fixture(scope="module")
def tables():
    return Fig9(points=200).run(Progress(quiet=True))


def test_claims(tables):
    verdicts = {claim.id: claim.verdict for claim in Fig9(points=200).claims(tables)}
    assert verdicts.pop("fig9.ratio_range") == "corrected"
    assert set(verdicts.values()) == {"holds"}


def test_products_are_the_golden_ones(golden, tables):
    laws = tables["laws"]
    found = laws[laws["metric"] == "theta_2(0) p(0)"].set_index("run")["value"]
    expected = dict(
        zip(golden("eq58_products")["inputs"]["dists"], golden("eq58_products")["expected"], strict=True)
    )
    assert found["Gaussian"] == pytest.approx(expected["gauss"], rel=1e-12)
    assert found["Laplace marginal"] == pytest.approx(expected["laplace"], rel=1e-12)
    assert found["multivariate t, nu = 3"] == pytest.approx(expected["t3"], rel=1e-12)


def test_one_turn_of_h_for_heavy_tails_none_for_light(tables):
    laws = tables["laws"]
    turns = laws[laws["metric"] == "turns of H"].set_index("run")["value"]
    assert turns["Gaussian"] == 0
    assert turns["multivariate t, nu = 3"] == 1


def test_without_heavy_tails_the_claim_is_not_tested():
    experiment = Fig9(points=60, degrees=(3.0,))
    verdicts = {claim.id: claim.verdict for claim in experiment.claims(experiment.run(Progress(quiet=True)))}
    assert verdicts["fig9.equation_58"] == "not tested"


def test_repeats_and_draws(tables, tmp_path):
    again = Fig9(points=200).run(Progress(quiet=True))
    for name, table in tables.items():
        pd.testing.assert_frame_equal(table, again[name], check_exact=True)
    with style("dark"):
        Fig9(points=200).draw(tables).savefig(tmp_path / "figure.png")


def test_bad_settings():
    with pytest.raises(InputError, match="degrees"):
        Fig9(degrees=(1.0,))


def test_the_tolerance_of_the_slope_is_that_of_central_differences(tables):
    (slope,) = [claim for claim in Fig9(points=200).claims(tables) if claim.id == "fig9.slope"]
    assert slope.tolerance == pytest.approx(60 / 201**2, rel=1e-12)
