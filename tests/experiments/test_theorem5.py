from __future__ import annotations

import dataclasses
from fractions import Fraction
from itertools import product

import numpy as np
import pandas as pd
import pytest

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.joma_paper.theorem5 import Theorem5
from joma.experiments.shared.trees import ancestor_heights, enumerate_states, sample, tree_below_classes

TINY = Theorem5(depth=4, edge_correlations=(0.9, 0.5), samples=100_000, expansion=(0.1, 0.01, 0.001))


@pytest.fixture(scope="module")
def tables():
    return TINY.run(Progress(quiet=True))


def test_claims(tables):
    claims = {claim.id: claim for claim in TINY.claims(tables)}
    assert {claim.verdict for claim in claims.values()} == {"holds"}
    assert claims["theorem5.sampled"].null > 3 * claims["theorem5.sampled"].tolerance
    assert claims["theorem5.falls"].null < 4


def test_formula_and_enumeration_give_the_rational_number():
    """Two tokens below one class of 10, L = 3, in exact fractions."""
    rho, count = Fraction(9, 10), Fraction(1, 10)
    edge = {True: (1 + rho) / 2, False: (1 - rho) / 2}

    def probability(height: int) -> Fraction:
        both, one = Fraction(0), Fraction(0)
        for top, left, right, m, partner in product((0, 1), repeat=5):
            above = left if height == 1 else right
            p = (count if top else 1 - count) * edge[left == top] * edge[right == top]
            p *= edge[m == left] * edge[partner == above]
            one += p * m
            both += p * m * partner
        return both / one

    tables = dataclasses.replace(TINY, depth=3, samples=1000).run(Progress(quiet=True))
    table = tables["cooccurrence"].query("edge_correlation == 0.9")
    tree = tree_below_classes(classes=10, depth=3, edge_correlation=0.9)
    states, weights = enumerate_states(tree)
    present = states[:, tree.leaves[0]] == 1
    for height, partner in ((1, 1), (2, 2)):
        values = table[table["ancestor_height"] == height].set_index("metric")["value"]
        exact = float(probability(height))
        both = weights[present & (states[:, tree.leaves[partner]] == 1)].sum()
        assert values["formula"] == pytest.approx(exact, abs=1e-13)
        assert both / weights[present].sum() == pytest.approx(exact, abs=1e-13)
        assert abs(values["printed formula"] - exact) > 1e-3


def test_unrelated_tokens_would_be_seen(tables):
    """Where the samples ignore the tree, the claims about them fail."""
    table = tables["cooccurrence"].copy()
    marginal = table[table["metric"] == "marginal"].set_index(
        ["edge_correlation", "ancestor_height", "depth"]
    )
    rows = table["metric"] == "sampled"
    keys = pd.MultiIndex.from_frame(table.loc[rows, marginal.index.names])
    table.loc[rows, "value"] = marginal.loc[keys, "value"].to_numpy()
    verdicts = {c.id: c.verdict for c in TINY.claims({**tables, "cooccurrence": table})}
    assert verdicts == {"theorem5.sampled": "fails", "theorem5.falls": "fails"}


def test_sampler_agrees_with_enumeration():
    tree = tree_below_classes(classes=3, depth=3, edge_correlation=0.6, with_all=False)
    states, probability = enumerate_states(tree)
    assert probability.sum() == pytest.approx(1, abs=1e-14)
    moments = (probability[:, None] * states).T @ states
    np.testing.assert_allclose(
        moments, (1 - tree.means[:, None] - tree.means[None, :] + tree.second_moments) / 4, atol=1e-14
    )
    labels, values = sample(tree, 200_000, 0)
    assert np.bincount(labels) / 200_000 == pytest.approx([1 / 3] * 3, abs=5e-3)
    np.testing.assert_allclose(values.T.astype(float) @ values / len(values), moments, atol=6e-3)


def test_heights():
    np.testing.assert_array_equal(
        ancestor_heights(4), [[0, 1, 2, 2], [1, 0, 2, 2], [2, 2, 0, 1], [2, 2, 1, 0]]
    )


def test_repeats_and_draws(tables, tmp_path):
    again = TINY.run(Progress(quiet=True))
    for name, table in tables.items():
        pd.testing.assert_frame_equal(table, again[name], check_exact=True)
    with style("dark"):
        TINY.draw(tables).savefig(tmp_path / "figure.png")


def test_bad_settings():
    with pytest.raises(InputError, match="repeats a value"):
        Theorem5(edge_correlations=(0.9, 0.9))
    with pytest.raises(InputError, match="2\\^31"):
        enumerate_states(tree_below_classes(classes=2, depth=5, edge_correlation=0.5))
