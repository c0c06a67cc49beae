from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.joma_paper.latent_depth import LatentDepth
from joma.experiments.joma_paper.latent_depth.claims import _uncertainty
from joma.experiments.joma_paper.latent_depth.run import bayes_probabilities, trees
from joma.experiments.shared.trees import enumerate_states

TINY = LatentDepth(depth=3, samples=300, steps=100, measure_every=20, seeds=2, learning_rate=1.0)


@pytest.fixture(scope="module")
def tables():
    return TINY.run(Progress(quiet=True))


@pytest.mark.parametrize("data", ["deep", "shallow"])
def test_bayes_is_the_enumerated_conditional(data):
    tree = trees(4, 0.8)[data]
    states, probability = enumerate_states(tree)
    tokens = states[:, tree.leaves]
    some = tokens[[3, 77, -5]]
    found = bayes_probabilities(tree, some)
    for row, sequence in enumerate(some):
        for m in range(tokens.shape[1]):
            rest = np.delete(tokens, m, axis=1) == np.delete(sequence, m)
            same = rest.all(axis=1)
            expected = probability[same & (tokens[:, m] == 1)].sum() / probability[same].sum()
            assert found[row, m] == pytest.approx(expected, abs=1e-12)


def test_the_two_distributions_match():
    deep, shallow = trees(5, 0.9).values()
    for tree in (deep, shallow):
        np.testing.assert_allclose(tree.means[tree.leaves], 0, atol=1e-15)
    means = [
        t.second_moments[np.ix_(t.leaves, t.leaves)][~np.eye(16, dtype=bool)].mean() for t in (deep, shallow)
    ]
    assert means[0] == pytest.approx(means[1], abs=1e-14)


def test_no_model_beats_bayes_by_more_than_noise(tables):
    assert tables["losses"]["value"].min() > -0.1
    first = tables["losses"].query("step == 0")["value"]
    assert first.to_numpy() == pytest.approx(np.ones(len(first)), abs=0.1)


def test_the_bag_stays_uniform(tables):
    bag = tables["attention"].query("model == 'bag'")
    assert (bag["logit"] == 0).all()
    assert bag["attention"].to_numpy() == pytest.approx(1 / 3, abs=1e-14)
    learned = tables["attention"].query("model == 'attention'")
    assert learned.groupby(["run", "query"])["attention"].sum().to_numpy() == pytest.approx(1, abs=1e-12)
    assert learned["logit"].abs().max() > 0.1


def test_claims_see_a_shuffled_tree(tables):
    """Heights exchanged between sibling and farthest: attention no longer prefers the sibling."""
    pairs = tables["attention"].copy()
    pairs["height"] = pairs["height"].map({1: 2, 2: 1})
    verdicts = {c.id: c.verdict for c in TINY.claims({**tables, "attention": pairs})}
    assert verdicts["latent_depth.attention_is_selective_where_data_are"] == "fails"


def test_claims_see_equal_models(tables):
    losses = tables["losses"].copy()
    losses["value"] = 0.5 + 0.01 * losses["seed"]
    verdicts = {c.id: c.verdict for c in TINY.claims({**tables, "losses": losses})}
    assert verdicts["latent_depth.agnostic"] == "fails"
    assert verdicts["latent_depth.attention_is_needed_for_depth"] == "fails"


def test_repeats_and_draws(tables, tmp_path):
    again = TINY.run(Progress(quiet=True))
    for name, table in tables.items():
        pd.testing.assert_frame_equal(table, again[name], check_exact=True)
    with style("dark"):
        TINY.draw(tables).savefig(tmp_path / "figure.png")


def test_bad_settings():
    with pytest.raises(InputError, match="seeds"):
        LatentDepth(seeds=1)


def test_the_uncertainty_is_half_of_an_interval_of_the_mean():
    values = pd.Series([1.0, 2.0, 4.0, 9.0])
    low, high = stats.t.interval(0.9, 3, scale=stats.sem(values))
    assert _uncertainty(values) == pytest.approx((high - low) / 2, rel=1e-12)
