from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from joma.core.errors import DivergenceError, InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.data.next_token import graded_tokens
from joma.dynamics.token_flow import token_flow
from joma.experiments.scan_snap.snap_embeddings import EMBEDDED, FREE, NULL, ONE_MATRIX, SnapEmbeddings

SMALL = {"distinct": 3, "seeds": 2, "end": 10.0, "rate": 0.05, "moments": 6, "width": 5}


@pytest.fixture(scope="module")
def tables():
    return SnapEmbeddings(**SMALL).run(Progress(quiet=True))


def test_the_free_model_follows_the_flow(tables) -> None:
    """The independent truth: an adaptive integration of Y' and z'."""
    data = graded_tokens(last_tokens=2, next_per_last=2, common=1, distinct=3, common_weight=3.0)
    flow = token_flow(data, eta_y=1.0, eta_z=1.0, times=[0.0, 10.0])
    free = tables["tokens"].query(f"model == '{FREE}'")
    expected = flow.logits[-1][data.last_of_next[free["next_token"]], free["token"]]
    assert np.abs(expected).max() > 0.02
    # Euler's steps of 0.05 are off by their size
    np.testing.assert_allclose(free["value"], expected, atol=0.03 * np.abs(expected).max())


def test_nothing_unseen_moves_where_y_and_z_are_free(tables) -> None:
    course = tables["course"].query("data == 'real'")
    shares = course[course["metric"].isin(["other rows", "unseen tokens"])]
    moved = shares.groupby("model")["value"].max()
    assert moved[FREE] == 0
    assert moved[ONE_MATRIX] < 1e-20
    assert (moved.drop([FREE, ONE_MATRIX]) > 0.01).all()
    assert (shares["value"] <= 1).all()


def test_all_models_learn(tables) -> None:
    loss = tables["course"].query("metric == 'loss' and data == 'real'").set_index(["model", "time"])["value"]
    for model in (FREE, *EMBEDDED):
        of_model = loss[model].groupby("time").mean()
        assert of_model.is_monotonic_decreasing, model


def test_claims(tables) -> None:
    claims = {claim.id.split(".")[1]: claim for claim in SnapEmbeddings(**SMALL).claims(tables)}
    assert claims["exact"].verdict == "holds"
    assert claims["exact"].null > 1e3 * claims["exact"].tolerance
    assert claims["independent"].verdict == "fails"
    assert claims["independent"].null < 1e-20


def test_claims_depend_on_the_tables(tables) -> None:
    experiment = SnapEmbeddings(**SMALL)
    still = {name: table.copy() for name, table in tables.items()}
    still["tokens"]["value"] = 0.0
    found = {claim.id.split(".")[1]: claim.verdict for claim in _without_graded(experiment, still)}
    assert {found[name] for name in ("distinct_rise", "distinct_gain", "common_falls")} == {"fails"}
    ideal = {name: table.copy() for name, table in tables.items()}
    tokens = ideal["tokens"]
    tokens["value"] = np.where(tokens["kind"] == "common", -1.0, tokens["probability"])
    tokens.loc[tokens["data"] == NULL, "value"] *= -1
    found = {claim.id.split(".")[1]: claim.verdict for claim in experiment.claims(ideal)}
    assert set(found.values()) == {"holds", "fails"}
    assert [name for name, verdict in found.items() if verdict == "fails"] == ["independent"]


def _without_graded(experiment: SnapEmbeddings, tables: dict[str, pd.DataFrame]) -> list:
    # constant logits have no order: a little noise gives them one
    noise = np.random.default_rng(0).normal(scale=1e-12, size=len(tables["tokens"]))
    distinct = tables["tokens"]["kind"] == "distinct"
    tables["tokens"]["value"] = np.where(distinct, -np.abs(noise), 0.0)
    return experiment.claims(tables)


def test_same_seed_same_tables_bit_for_bit() -> None:
    small = SMALL | {"seeds": 1, "end": 1.0}
    one, two = (SnapEmbeddings(**small).run(Progress(quiet=True)) for _ in range(2))
    for name in one:
        pd.testing.assert_frame_equal(one[name], two[name], check_exact=True)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure_is_drawn(tables, theme: str) -> None:
    with style(theme):
        figure = SnapEmbeddings(**SMALL).draw(tables)
        figure.canvas.draw()
    assert len(figure.axes) == 4


def test_bad_settings() -> None:
    with pytest.raises(InputError, match="fewer than moments"):
        SnapEmbeddings(end=1.0, rate=0.5)
    with pytest.raises(DivergenceError, match="lower the rate"):
        SnapEmbeddings(**(SMALL | {"rate": 1e300, "end": 1e302})).run(Progress(quiet=True))
