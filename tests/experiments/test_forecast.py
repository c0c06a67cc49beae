from __future__ import annotations

import pandas as pd
import pytest

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.beyond.forecast import CLOSURES, OTHER, Forecast

TINY = {"seeds": 2, "classes": 5, "tokens": 6, "end": 60.0, "exp_end": 20.0, "moments": 9}


@pytest.fixture(scope="module")
def tables():
    return Forecast(**TINY).run(Progress(quiet=True))


def test_tables_hold_every_cell(tables) -> None:
    curves = tables["curves"]
    closures = curves.groupby("attention")["closure"].unique().map(set)
    assert closures["exp"] == closures["linear"] == {"exact", "exact" + OTHER}
    assert closures["softmax"] == {closure + of for closure in CLOSURES for of in ("", OTHER)}
    assert set(curves["run"]) == {0, 1}
    assert curves["value"].notna().all()
    assert set(tables["courses"]["metric"]) == {"trained", "forecast"}
    trained = tables["courses"].query("metric == 'trained'")
    totals = trained.groupby(["data", "attention", "step"])["value"].sum()
    assert totals.to_numpy() == pytest.approx(1.0)


def test_linear_and_exp_are_exact_and_softmax_is_not(tables) -> None:
    errors = (
        tables["curves"].query("metric == 'logit_error'").groupby(["attention", "closure"])["value"].max()
    )
    assert errors["exp", "exact"] < 1e-6
    assert errors["linear", "exact"] < 1e-6
    assert errors["softmax", "signed"] > errors["softmax", "moving"] > 1e-3


def test_same_seed_same_tables_bit_for_bit() -> None:
    short = Forecast(**{**TINY, "end": 12.0, "exp_end": 4.0, "moments": 5})
    one, other = (short.run(Progress(quiet=True)) for _ in range(2))
    for name, table in one.items():
        pd.testing.assert_frame_equal(table, other[name], check_exact=True)


def test_claims_carry_numbers_and_nulls(tables) -> None:
    claims = {claim.id: claim for claim in Forecast(**TINY).claims(tables)}
    assert claims["forecast.exp"].verdict == claims["forecast.linear"].verdict == "holds"
    assert claims["forecast.exp"].null > 1e3 * claims["forecast.exp"].tolerance
    assert len(claims) == 6
    assert all(claim.measured is not None for claim in claims.values())


def test_claims_can_fail(tables) -> None:
    """A closure that is off by a quarter forecasts nothing; what another data set has too says nothing."""

    def verdicts(curves) -> dict[str, str]:
        return {c.id: c.verdict for c in Forecast(**TINY).claims({**tables, "curves": curves})}

    curves = tables["curves"].copy()
    error = (curves["metric"] == "logit_error") & (curves["closure"] == "moving")
    for size, verdict in ((0.05, "corrected"), (0.25, "fails")):
        curves.loc[error, "value"] = size
        curves.loc[(curves["metric"] == "logit_error") & (curves["closure"] == "signed"), "value"] = 5.0
        assert verdicts(curves)["forecast.softmax_smooth"] == verdict
    correlation = curves["metric"] == "logit_correlation"
    curves.loc[correlation & (curves["closure"] == "signed"), "value"] = 0.95
    for null, verdict in ((0.2, "holds"), (0.93, "fails")):
        curves.loc[correlation & (curves["closure"] == "signed" + OTHER), "value"] = null
        assert verdicts(curves)["forecast.correlation_random"] == verdict


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figure(tables, theme, tmp_path) -> None:
    with style(theme):
        Forecast(**TINY).draw(tables).savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_bad_settings() -> None:
    with pytest.raises(InputError, match="classes"):
        Forecast(classes=1)
    with pytest.raises(InputError, match="end"):
        Forecast(end=0.0)
