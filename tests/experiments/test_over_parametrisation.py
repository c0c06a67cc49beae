from __future__ import annotations

from math import comb

import numpy as np
import pandas as pd
import pytest

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.beyond.over_parametrisation import OverParametrisation
from joma.experiments.beyond.over_parametrisation.run import coupon_collector, sequences

SMALL = OverParametrisation(latents=3, neurons=(3, 12), networks=10, single=50, sequences=100, steps=150)


@pytest.fixture(scope="module")
def tables():
    return SMALL.run(Progress(quiet=True))


def test_the_law_is_that_of_coupons():
    """Equal coupons: surjections over maps; unequal ones: by simulation; one neuron finds no two latents."""
    for latents, draws in ((3, 3), (4, 9)):
        onto = sum((-1) ** j * comb(latents, j) * (latents - j) ** draws for j in range(latents + 1))
        assert coupon_collector([1 / latents] * latents, draws) == pytest.approx(onto / latents**draws)
    rng = np.random.default_rng(0)
    drawn = rng.choice(4, size=(40_000, 6), p=[0.5, 0.2, 0.1, 0.2])
    simulated = np.mean([(drawn == k).any(axis=1) for k in range(3)], axis=1)
    all_three = np.stack([(drawn == k).any(axis=1) for k in range(3)]).all(axis=0).mean()
    assert coupon_collector([0.5, 0.2, 0.1], 6) == pytest.approx(all_three, abs=0.01)
    assert simulated.min() > all_three
    assert coupon_collector([0.6, 0.4], 1) == 0.0


def test_sequences_have_one_latent_whose_tokens_are_there():
    x, on = sequences(SMALL, 0)
    assert on.sum(1).unique().tolist() == [1.0]
    own = on.repeat_interleave(SMALL.tokens, dim=1)
    assert (x == own).double().mean() == pytest.approx(0.9, abs=0.03)


def test_training_finds_what_chance_does_not(tables):
    coverage = tables["coverage"].pivot_table(index="run", columns="neurons", values="value")
    assert coverage.loc["trained", 12] > coverage.loc["untrained", 12] + 0.3
    assert coverage.loc["trained", 12] > coverage.loc["trained", 3]
    claims = {claim.id: claim for claim in SMALL.claims(tables)}
    assert set(claims) == {"over_parametrisation.needed", "over_parametrisation.coupons"}
    assert all(claim.null is not None for claim in claims.values())


def test_chance_that_finds_as_much_is_seen(tables):
    table = tables["coverage"].copy()
    for neurons, value in ((3, 0.1), (12, 0.9)):
        table.loc[(table["run"] == "trained") & (table["neurons"] == neurons), "value"] = value
    for chance, verdict in ((0.9, "fails"), (0.8, "holds")):
        table.loc[(table["run"] == "untrained") & (table["neurons"] == 12), "value"] = chance
        claims = {claim.id: claim.verdict for claim in SMALL.claims({**tables, "coverage": table})}
        assert claims["over_parametrisation.needed"] == verdict


def test_a_coverage_that_is_the_laws_is_seen(tables):
    table = tables["coverage"].copy()
    law = table[table["run"] == "law"]["value"].to_numpy()
    table.loc[table["run"] == "trained", "value"] = law
    claims = {c.id: c.verdict for c in SMALL.claims({**tables, "coverage": table})}
    assert claims["over_parametrisation.coupons"] == "holds"


def test_same_seed_same_tables_and_a_figure(tables):
    again = SMALL.run(Progress(quiet=True))
    for name, table in tables.items():
        pd.testing.assert_frame_equal(table, again[name], check_exact=True)
    with style():
        SMALL.draw(tables)


def test_bad_settings_are_refused():
    with pytest.raises(InputError, match="at least two sizes, rising"):
        OverParametrisation(neurons=(8, 4))
    with pytest.raises(InputError, match="seeds"):
        OverParametrisation(seeds=3)
