"""Two laws with the same pairs: one from a tree, one without."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from joma.core.errors import InputError
from joma.core.progress import Progress
from joma.experiments.joma_paper.tree_null import LAWS, PAIRS, TREE, TreeNull, laws, run
from joma.experiments.joma_paper.tree_null.claims import OF_SEEDS, claims
from joma.experiments.joma_paper.tree_null.figure import draw
from joma.experiments.joma_paper.tree_null.laws import Law, law_of_pairs, law_of_tree, tree
from joma.theory.latent_tree import cooccurrence

RHO = 0.8


@pytest.fixture(scope="module")
def both() -> dict[str, Law]:
    return run.laws(TreeNull(edge_correlation=RHO))[0]


def test_both_laws_have_theorem_5s_cooccurrences(both: dict[str, Law]) -> None:
    """P[l | m] of every pair, by the theorem alone: a tree of depth 4 whose top latent is unbiased."""
    heights = {1: (0, 1), 2: (0, 2), 3: (0, 4)}
    for law in both.values():
        assert law.probability.sum() == pytest.approx(1)
        assert law.probability.min() > 0
        for height, (a, b) in heights.items():
            there = law.patterns[:, a] == 1
            found = law.probability[there & (law.patterns[:, b] == 1)].sum() / law.probability[there].sum()
            wanted = float(cooccurrence(RHO, 0.0, depth=4, ancestor_height=height))
            assert found == pytest.approx(wanted, abs=1e-10)


def test_means_and_pairs_agree_exactly_and_fours_do_not(both: dict[str, Law]) -> None:
    apart = {
        order: max(
            abs(both[TREE].moment(tokens) - both[PAIRS].moment(tokens))
            for tokens in itertools.combinations(range(8), order)
        )
        for order in (1, 2, 3, 4)
    }
    assert apart[1] < 1e-10
    assert apart[2] < 1e-10
    assert apart[3] < 1e-10  # both laws stay the same with every sign turned
    assert apart[4] > 0.02
    # Two families of siblings: on a tree E[s s s s] is the product of the two pairs.
    assert both[TREE].moment((0, 1, 2, 3)) == pytest.approx(RHO**4)
    assert both[PAIRS].moment((0, 1, 2, 3)) > RHO**4 + 0.01


def test_the_pairs_law_has_the_largest_entropy(both: dict[str, Law]) -> None:
    """Its logarithm is a sum over tokens and pairs: no interaction of three tokens or more (Moebius)."""
    logs = np.log(both[PAIRS].probability)
    others = np.log(both[TREE].probability)
    signs = 1.0 - 2.0 * both[PAIRS].patterns
    for tokens in ((0, 1, 2), (0, 1, 2, 3), (0, 3, 5, 6)):
        interaction = signs[:, list(tokens)].prod(axis=1) / 256
        assert abs(interaction @ logs) < 1e-8
    four = signs[:, [0, 1, 2, 3]].prod(axis=1) / 256
    assert abs(four @ others) > 1e-3


def test_draws_agree_in_pairs_and_differ_in_fours(both: dict[str, Law]) -> None:
    count = 40_000
    signs = {name: 1.0 - 2.0 * law.draw(count, [3, 1]) for name, law in both.items()}
    for a, b in itertools.combinations(range(8), 2):
        means = [float((s[:, a] * s[:, b]).mean()) for s in signs.values()]
        assert abs(means[0] - means[1]) < 6 * (2 / count) ** 0.5
    tokens = [0, 2, 4, 6]
    fours = [float(s[:, tokens].prod(axis=1).mean()) for s in signs.values()]
    exact = [law.moment(tuple(tokens)) for law in both.values()]
    assert fours == pytest.approx(exact, abs=5 / count**0.5)
    assert fours[1] - fours[0] > 2.5 * (2 / count) ** 0.5


def test_what_is_known_of_a_token_from_the_others(both: dict[str, Law]) -> None:
    tokens = both[TREE].patterns
    found = both[TREE].given_others(tokens)
    # The tokens' own law again: averaged over a token's values, its chance is what it is.
    assert both[TREE].probability @ found == pytest.approx(np.full(8, 0.5))
    near = np.array([[0, 1, 1, 1, 1, 1, 1, 1]])
    far = np.array([[0, 1, 0, 0, 0, 0, 0, 0]])
    assert both[TREE].given_others(near)[0, 0] > both[TREE].given_others(far)[0, 0]


def test_latents_are_told_by_their_tokens() -> None:
    law, latents = law_of_tree(tree(RHO))
    assert latents.shape == (256, 7)
    assert np.abs(latents).max() < 1
    assert law.probability @ latents == pytest.approx(np.zeros(7), abs=1e-12)
    # All tokens there (sign -1): every latent below zero.
    assert (latents[255] < 0).all()


def test_the_pairs_of_independent_tokens_make_them_independent() -> None:
    chances = np.array([0.2, 0.5, 0.7])
    patterns = (np.arange(8)[:, None] >> np.arange(3)) & 1
    independent = np.where(patterns == 1, chances, 1 - chances).prod(axis=1)
    # The same pairs, and three tokens that have to do with each other.
    twisted = independent + 0.02 * (1.0 - 2.0 * patterns).prod(axis=1)
    found = law_of_pairs(Law(patterns, twisted))
    assert found.probability == pytest.approx(independent, abs=1e-9)


def test_pairs_that_no_law_has_are_refused() -> None:
    with pytest.raises((InputError, np.linalg.LinAlgError)):
        law_of_pairs(Law(np.array([[0], [1]]), np.array([1.5, -0.5])))


def made_up(of_tree: float) -> dict[str, pd.DataFrame]:
    """Tables in which every statistic of the tree is higher by a number."""
    settings = TreeNull()
    rows = [
        {"run": name, "seed": seed, "metric": metric, "value": 1.0 + 0.01 * seed + of_tree * (name == TREE)}
        for name in LAWS
        for seed in range(5)
        for metric, *_ in OF_SEEDS.values()
    ]
    block = [
        {"run": name, "kappa": kappa, "metric": metric, "value": value * (1 + of_tree * (name == TREE))}
        for name in LAWS
        for kappa in (1.0, 10.0)
        for metric, value in (("rebound", 0.1), ("time of height 1", 1.0), ("time of height 2", 3.0))
    ]
    for row in block:
        if row["metric"] == "time of height 1":
            row["value"] = 1.0
    laws_table = run._laws(settings, Progress(quiet=True)).drop(columns="table")
    return {"laws": laws_table, "block": pd.DataFrame(block), "statistics": pd.DataFrame(rows)}


def test_a_statistic_that_is_higher_on_the_tree_holds_and_one_that_is_not_fails() -> None:
    found = {claim.id: claim.verdict for claim in claims(TreeNull(), made_up(0.5))}
    assert set(found.values()) == {"holds"}
    found = {claim.id: claim.verdict for claim in claims(TreeNull(), made_up(0.0))}
    assert found.pop("tree_null.same_pairs") == "holds"
    assert set(found.values()) == {"fails"}


def test_one_part_of_each_kind_is_measured() -> None:
    settings = TreeNull(samples=200, layer_steps=20, sequences=500, stack_steps=20, kappas=(30.0,), time=2.0)
    progress = Progress(quiet=True)
    of_layer = run._layer(settings, 1, 0, progress)
    of_stack = run._stack(settings, 0, 0, progress)
    block = run._block(settings, progress)
    assert {metric for metric, *_ in OF_SEEDS.values()} <= {*of_layer["metric"], *of_stack["metric"]}
    assert np.isfinite(of_layer["value"]).all()
    assert set(block["run"]) == set(LAWS)
    assert laws.DEPTH == 4


def test_the_figure_has_a_panel_for_each_statistic() -> None:
    figure = draw(TreeNull(), made_up(0.1))
    assert sum(axis.get_visible() for axis in figure.axes) == len(OF_SEEDS)
