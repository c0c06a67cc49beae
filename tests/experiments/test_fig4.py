from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.joma_paper.fig4 import Fig4, claims
from joma.experiments.joma_paper.fig4.run import critical_points


@pytest.fixture(scope="module")
def tables():
    return Fig4().run(Progress(quiet=True))


def test_mu_is_the_authors(golden, tables):
    assert tables["components"]["value"].to_numpy() == pytest.approx(
        golden("fig4_script")["inputs"]["mu"], rel=1e-9
    )


def extremes(tables, run, temperature, variant="attention"):
    table = tables["extremes"]
    rows = table[
        (table["run"] == run) & (table["temperature"] == temperature) & (table["variant"] == variant)
    ].set_index("metric")["value"]
    return [rows[m] for m in ("start", "minimum", "argmin", "end")]


@pytest.mark.parametrize(
    ("name", "run", "temperature"),
    [("fig4_script", "script", 3.0), ("fig4_eq6_1", "equation 6", 1.0), ("fig4_eq6_2", "equation 6", 2.0)],
)
def test_extremes_are_the_golden_ones(golden, tables, name, run, temperature):
    entry = golden(name)
    assert extremes(tables, run, temperature) == pytest.approx(
        entry["expected"], rel=max(entry["rtol"], 1e-8)
    )


def test_claims(tables):
    claims = {claim.id: claim for claim in Fig4().claims(tables)}
    assert {claim.verdict for claim in claims.values()} == {"holds", "corrected"}
    assert claims["fig4.script_is_eq6"].verdict == "corrected"
    for run in ("script", "eq6"):
        assert claims[f"fig4.{run}_rebound"].null == pytest.approx(0, abs=1e-9)
        assert claims[f"fig4.{run}_dip"].null == pytest.approx(0, abs=1e-9)


def test_claims_fail_on_curves_without_the_effect(tables):
    """The nulls' own curves, passed off as the real ones."""
    swapped = dict(tables)
    for name in ("extremes", "half_times"):
        table = tables[name]
        swapped[name] = pd.concat(
            [
                table[table["variant"] != "attention"],
                table[table["variant"] == "no attention"].assign(variant="attention"),
            ]
        )
    verdicts = {claim.id: claim.verdict for claim in Fig4().claims(swapped)}
    for run in ("script", "eq6"):
        assert verdicts[f"fig4.{run}_rebound"] == "fails"
        assert verdicts[f"fig4.{run}_salient_first"] == "fails"


def test_script_at_the_temperature_of_equation_6():
    experiment = Fig4(temperature=2.0, components=3, iterations=1500)
    claims = {claim.id: claim for claim in experiment.claims(experiment.run(Progress(quiet=True)))}
    assert claims["fig4.script_is_eq6"].verdict == "holds"


def test_same_seed_same_tables_other_seed_other_mu():
    one, two = (Fig4(seed=3, components=4, iterations=200).run(Progress(quiet=True)) for _ in range(2))
    for name, table in one.items():
        pd.testing.assert_frame_equal(table, two[name], check_exact=True)
    assert not np.array_equal(critical_points(Fig4(seed=4)), critical_points(Fig4(seed=3)))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_draws(tables, theme, tmp_path):
    with style(theme):
        figure = Fig4().draw(tables)
        figure.savefig(tmp_path / "figure.png")
    assert all(axis.get_xlabel() and axis.get_ylabel() for axis in figure.axes[:4])


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"smallest_mu": 3.0, "largest_mu": 2.0}, "largest_mu"),
        ({"smallest_mu": 0.5, "initial": 0.6}, "initial"),
        ({"components": 1}, "at least 2"),
        ({"learning_rate": 0.0}, "above 0"),
    ],
)
def test_bad_settings(settings, word):
    with pytest.raises(InputError, match=word):
        Fig4(**settings)


def test_listing_imports_nothing_heavy():
    code = (
        "import sys, joma.experiments.joma_paper.fig4; "
        "print([m for m in ('torch', 'pandas', 'numpy', 'scipy', 'matplotlib') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_two_components_and_other_draws():
    """Small and unlike the paper's: every claim can still be judged."""
    for settings in ({"components": 2, "iterations": 3000}, {"seed": 4, "iterations": 800}):
        experiment = Fig4(**settings)
        claims = {claim.id: claim for claim in experiment.claims(experiment.run(Progress(quiet=True)))}
        assert claims["fig4.eq6_rebound"].verdict == "holds"
        assert claims["fig4.script_is_eq6"].verdict == "corrected"


@pytest.mark.parametrize(
    ("rebound", "null", "verdict"),
    [(0.1, 0.00999, "holds"), (0.0999, 0.0, "fails"), (0.5, 0.01001, "fails")],
)
def test_dip_and_rebound_are_visible_and_not_there_in_their_nulls(
    tables, monkeypatch, rebound, null, verdict
):
    """VISIBLE is 0.1 nats; the null must stay below a tenth of that."""

    def extremes(tables, run, variant, temperature):
        size = rebound if variant == "attention" else null
        return {"start": 2.0, "minimum": 1.0, "argmin": 1.0, "end": 2.0, "drop": size, "rebound": size}

    monkeypatch.setattr(claims, "extremes_of", extremes)
    found = {claim.id: claim.verdict for claim in Fig4().claims(tables)}
    names = ("eq6_dip", "eq6_rebound", "script_dip", "script_rebound", "caption_shape")
    assert {found[f"fig4.{name}"] for name in names} == {verdict}


def test_two_components_out_of_order_fail(tables):
    times = tables["half_times"].copy()
    real = times[times["variant"] == "attention"]
    for _, run in real.groupby("run"):
        times.loc[run.index[[3, 4]], "value"] = run["value"].iloc[[4, 3]].to_numpy()
    found = {claim.id: claim.verdict for claim in Fig4().claims({**tables, "half_times": times})}
    assert found["fig4.eq6_salient_first"] == found["fig4.script_salient_first"] == "fails"


def test_the_spread_of_a_clock_is_that_of_the_worst_iteration():
    told = {"exponent": "v^2/2", "step": [1, 1, 2, 2], "value": [1.0, 1.1, 3.0, 3.1]}
    spread = claims._clock_spread({"clocks": pd.DataFrame(told)}, "v^2/2")
    assert spread == pytest.approx(0.1 / 1.05)


def test_the_clock_of_the_script_is_judged_by_half_its_step(tables):
    (claim,) = [claim for claim in Fig4().claims(tables) if claim.id == "fig4.script_is_eq6"]
    assert claim.tolerance == pytest.approx(Fig4().learning_rate / 2, rel=1e-12)
