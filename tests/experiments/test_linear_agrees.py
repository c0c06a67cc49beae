from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.data.next_token import NextTokenData
from joma.dynamics.token_flow import token_flow
from joma.experiments.joma_paper.linear_agrees import (
    JOMA,
    NORMALISED,
    PLAIN,
    LinearAgrees,
)
from joma.experiments.joma_paper.linear_agrees.run import block_logits, integral_residual

SMALL = LinearAgrees(next_tokens=(2,), common_weights=(5.0,), eta_z=(0.1, 1.0), distinct=3, horizon=300.0)


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    return SMALL.run(Progress(quiet=True))


@pytest.fixture(scope="module")
def claims(tables):
    return {claim.id.removeprefix("linear_agrees."): claim for claim in SMALL.claims(tables)}


def random_data(seed: int) -> NextTokenData:
    random = np.random.default_rng(seed)
    conditional = random.dirichlet(np.ones(6), size=3)
    return NextTokenData(conditional, np.zeros(3, dtype=int), class_probability=random.dirichlet(np.ones(3)))


@pytest.mark.parametrize("seed", range(4))
def test_block_and_plain_yz_are_one_flow_for_any_data(seed: int) -> None:
    data, times = random_data(seed), np.array([0.0, 1.0, 10.0, 100.0])
    plain = token_flow(data, eta_y=1.0, eta_z=0.5, times=times, normalised=False)
    normalised = token_flow(data, eta_y=1.0, eta_z=0.5, times=times)
    block = block_logits(data, 0.5, times)
    assert block == pytest.approx(plain.logits[:, 0], abs=1e-7)
    assert np.abs(block - normalised.logits[:, 0]).max() > 1e-2


@pytest.mark.parametrize("normalised", [True, False])
def test_integral_holds_for_any_data_and_needs_its_correction(normalised: bool) -> None:
    data = random_data(9)
    flow = token_flow(data, eta_y=1.0, eta_z=0.5, times=[0.0, 3.0, 30.0], normalised=normalised)
    assert integral_residual(flow) < 1e-12
    assert integral_residual(flow, corrected=False) > 0.1


def test_tables(tables) -> None:
    agreement = tables["agreement"]
    same = agreement[(agreement["run"] == PLAIN) & agreement["metric"].str.startswith("logits")]
    assert (same["value"] == 0).all()
    assert set(tables["curves"]["run"]) == {JOMA, PLAIN, NORMALISED}
    assert set(tables["logits"]["kind"]) == {"common", "distinct"}
    share = tables["curves"][tables["curves"]["metric"] == "common share"]["value"]
    assert share.between(0, 1).all()


def test_same_settings_same_tables(tables) -> None:
    again = dataclasses.replace(SMALL).run(Progress(quiet=True))
    for name, table in tables.items():
        pd.testing.assert_frame_equal(table, again[name])


def test_verdicts(claims) -> None:
    assert claims["coincide"].verdict == "corrected"
    assert claims["integral"].verdict == claims["sum"].verdict == claims["winner"].verdict == "holds"
    assert claims["fates"].verdict == "fails"
    assert claims["fates"].null == 1


def test_claims_follow_the_tables(tables) -> None:
    wrong = dict(tables)
    agreement = tables["agreement"].copy()
    agreement.loc[
        agreement["metric"].isin(["sum of logits, drift", "logits, difference to Y/Z"]), "value"
    ] = 1.0
    wrong["agreement"] = agreement
    verdicts = {claim.id: claim.verdict for claim in SMALL.claims(wrong)}
    assert verdicts["linear_agrees.sum"] == verdicts["linear_agrees.coincide"] == "fails"


def test_draws(tables) -> None:
    with style("light"):
        figure = SMALL.draw(tables)
    assert len(figure.axes) == 3
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)


@pytest.mark.parametrize("settings", [{"next_tokens": (1,)}, {"eta_z": (0.0,)}, {"horizon": 1.0}])
def test_bad_settings(settings) -> None:
    with pytest.raises(InputError, match="out of range"):
        LinearAgrees(**settings)
