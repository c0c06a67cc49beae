from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.joma_paper.deep_hierarchy import (
    DECODER,
    FROZEN,
    LONE,
    RUNS,
    SHUFFLED,
    SHUFFLED_CLASSES,
    SHUFFLED_STOPS,
    SINGLE,
    STOPS,
    TREE,
    WEAK,
    DeepHierarchy,
)
from joma.experiments.joma_paper.deep_hierarchy.claims import _bounce, _ends, half_times
from joma.experiments.joma_paper.deep_hierarchy.decoder import _draw, _look
from joma.experiments.joma_paper.deep_hierarchy.run import _train, network
from joma.experiments.joma_paper.deep_hierarchy.sequences import forest, heights, questions
from joma.models.decoder import Decoder

SMALL = DeepHierarchy(sequences=2000, steps=30)
ASKED = DeepHierarchy(sequences=500, decoder_steps=3)
"""With a decoder."""


@pytest.fixture(scope="module")
def tables():
    return SMALL.run(Progress(quiet=True))


def test_every_task_and_run_is_measured_and_claimed(tables):
    losses = tables["losses"]
    cells = {(task, run) for task, runs in RUNS.items() if task != DECODER for run in runs}
    assert set(map(tuple, losses[["task", "run"]].drop_duplicates().to_numpy())) == cells
    start = losses[losses["step"] == 0]
    np.testing.assert_allclose(start.query("task == 'classes'")["value"], 1.0, atol=0.1)
    claims = SMALL.claims(tables)
    assert len({claim.id for claim in claims}) == len(claims) == 13
    tested = [claim for claim in claims if claim.verdict != "not tested"]
    assert {claim.id.split(".")[1][:7] for claim in claims if claim not in tested} == {"decoder"}
    assert all(claim.null is not None and claim.null_description for claim in tested)


def test_the_figure_is_drawn(tables):
    with style():
        assert len(SMALL.draw(tables).axes) == 3


def test_heights_are_those_of_the_trees():
    found = heights(SMALL, TREE)
    assert found[0].tolist() == [0, 1, 2, 2, 3, 3, 3, 3]
    np.testing.assert_array_equal(found, found.T)
    deep = heights(DeepHierarchy(levels=3, layers=3), TREE)
    assert deep[0].tolist() == [0, 1, 2, 2, 3, 3, 3, 3] + [4] * 8
    lone = heights(SMALL, LONE)
    assert lone[0].tolist() == [-1, -1, 2, -1, -1, 3]
    assert set(lone[2]) == {-1}


def test_sequences_correlate_by_height_and_shuffled_ones_do_not():
    def correlations(run: str) -> np.ndarray:
        asked = questions(SMALL, "classes", run, 3)
        mean = asked.weights @ asked.inputs
        centred = asked.inputs - mean
        moments = centred.T @ (asked.weights[:, None] * centred)
        spread = np.sqrt(np.diag(moments))
        return moments / np.outer(spread, spread)

    height, found = heights(SMALL, TREE), correlations(TREE)
    rho = SMALL.edge_correlation
    for h, expected in ((1, rho**2), (2, rho**4), (3, 0.0)):
        assert found[height == h].mean() == pytest.approx(expected, abs=0.03)
    mixed = correlations(SHUFFLED)
    assert mixed[height == 1].mean() == pytest.approx(mixed[height == 2].mean(), abs=0.03)
    assert mixed[height == 1].mean() == pytest.approx((rho**2 + 2 * rho**4) / 3, abs=0.03)


def test_the_query_is_hidden_and_the_answers_are_shares():
    asked = questions(SMALL, "tokens", TREE, 0)
    rows = np.arange(len(asked.asked))
    assert not asked.inputs[rows, asked.asked].any()
    assert asked.present[rows, asked.asked].all()
    assert asked.weights.sum() == pytest.approx(8)
    # The share of contexts with m, weighted, is how often m is in a sequence: one half.
    assert asked.weights @ asked.answers[:, 1] == pytest.approx(4, abs=0.1)
    assert 0 < asked.floor < asked.ceiling == pytest.approx(8 * np.log(2), abs=0.02)


def test_shuffled_classes_know_nothing():
    asked = questions(SMALL, "classes", SHUFFLED_CLASSES, 0)
    real = questions(SMALL, "classes", TREE, 0)
    assert asked.ceiling - asked.floor < 0.4 * (real.ceiling - real.floor)


def test_a_single_layer_has_as_many_weights():
    def count(run: str) -> int:
        return sum(v.numel() for v in network(SMALL, run, 8).weights)

    assert count(SINGLE) == count(TREE)
    assert forest(SMALL, LONE).nodes == forest(SMALL, TREE).nodes - 2


def test_half_times_lie_between_moments(tables):
    associations = tables["associations"].copy()
    associations["value"] = associations["time"] ** 2
    expected = associations["time"].groupby(associations["task"]).max() / 2**0.5
    for task, at in half_times(associations).groupby("task"):
        np.testing.assert_allclose(at, expected[task], rtol=0.02)


@pytest.mark.slow
def test_siblings_come_first_and_families_meet_a_layer_later():
    found = DeepHierarchy()
    tables = found.run(Progress(quiet=True))
    verdicts = {claim.id.partition(".")[2]: claim.verdict for claim in found.claims(tables)}
    for name in ("tokens_layer_by_layer", "attention_orders"):
        assert verdicts[name] == "holds", name


HALF = {(1, 1): 2.3, (1, 2): 3.7, (2, 2): 5.1}
SIZE = {(1, 1): 2.0, (2, 2): 2.0}


def made_up(changed: dict[tuple[object, ...], float]) -> dict[str, pd.DataFrame]:
    """Five seeds whose every claim holds, but for what is changed in the last of them; straight courses."""
    associations, losses, entropy = [], [], []
    for task, run, seed in ((t, r, s) for t, runs in RUNS.items() for r in runs for s in range(5)):
        other = changed if seed == 4 else {}
        plain = {TREE: HALF, FROZEN: {(2, 2): 2.0}, WEAK: {(2, 2): 2.1}}.get(run, {})
        for layer, height in ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)):
            place = layer, height
            half = other.get(("half", task, run, *place), plain.get(place, 2.3))
            size = 1.5 if (run, *place) == (LONE, 1, 2) else SIZE.get(place, 1.0) if run == TREE else 1.0
            size *= 0.195 if run == SHUFFLED_CLASSES else 1.0
            size = other.get(("size", task, run, *place), size)
            for step in range(21):
                value = size * min(step / (2 * half), 1.0)
                associations.append((task, run, seed, layer, height, step, float(step), value))
        excess = {SINGLE: 0.2, "stopped earlier": 0.106, "stopped at the dip": 0.106}.get(run, 0.1)
        losses.append((task, run, seed, 20, other.get(("loss", task, run), excess)))
        entropy += [(task, run, seed, value) for value in (1.0, 0.5, 0.6)]
    keys = ["task", "run", "seed"]
    return {
        "associations": pd.DataFrame(
            associations, columns=[*keys, "layer", "height", "step", "time", "value"]
        ),
        "losses": pd.DataFrame(losses, columns=[*keys, "step", "value"]),
        "entropy": pd.DataFrame(entropy, columns=[*keys, "value"]),
    }


def test_all_claims_hold_of_made_up_numbers_and_measure_them():
    tables = made_up({})
    claims = {claim.id.partition(".")[2]: claim for claim in ASKED.claims(tables)}
    assert {claim.verdict for claim in claims.values()} == {"holds"}
    when = half_times(tables["associations"])
    assert when["tokens", TREE, 0, 2, 2] == pytest.approx(5.1, rel=1e-12)
    assert claims["tokens_siblings_first"].measured == pytest.approx(3.7 / 2.3, rel=1e-12)
    assert claims["attention_orders"].measured == pytest.approx(5.1 / 2.3, rel=1e-12)


def test_each_task_ends_at_its_own_last_step():
    """A decoder takes other steps than a stack, more or fewer."""
    rows = [
        ("tokens", TREE, 400, 1.0),
        ("tokens", TREE, 0, 0.5),
        (DECODER, TREE, 0, 0.1),
        (DECODER, TREE, 4000, 2.0),
    ]
    ends = _ends(pd.DataFrame(rows, columns=["task", "run", "step", "value"]), ["task"])
    assert ends.to_dict() == {"tokens": 1.0, DECODER: 2.0}


def test_the_answer_says_what_came_later():
    changed = {("half", "classes", TREE, 2, 2): 1.15}
    tokens, classes, decoder = ASKED.answer(made_up(changed))
    assert "2.2 times as late" in tokens  # 5.1 / 2.3
    assert "later in 5 of 5 seeds; shuffled trees 1)" in tokens
    assert "later in 4 of 5 seeds" in classes
    assert "decoder" in decoder
    assert len(SMALL.answer(made_up({}))) == 2


@pytest.mark.parametrize(
    ("claim", "what", "value"),
    [
        ("tokens_siblings_first", ("half", "tokens", TREE, 1, 2), 2.2),
        ("tokens_siblings_first", ("half", "tokens", SHUFFLED, 1, 2), 3.8),
        ("classes_siblings_first", ("half", "classes", TREE, 1, 2), 2.2),
        ("tokens_layer_by_layer", ("half", "tokens", TREE, 2, 2), 2.2),
        ("classes_layer_by_layer", ("half", "classes", SHUFFLED, 2, 2), 5.2),
        ("attention_orders", ("half", "tokens", TREE, 2, 2), 2.2),
        ("attention_orders", ("half", "tokens", FROZEN, 2, 2), 2.4),
        ("attention_orders", ("half", "tokens", WEAK, 2, 2), 5.2),
        ("attention_orders", ("half", "tokens", SHUFFLED, 2, 2), 5.2),
        ("families_meet", ("size", "tokens", TREE, 2, 2), 0.9),
        ("families_meet", ("size", "tokens", SHUFFLED, 2, 2), 2.1),
        ("not_picked_up", ("size", "tokens", LONE, 1, 2), 0.9),
        ("not_picked_up", ("size", "tokens", LONE, 1, 3), 1.6),
        ("decoder_siblings_first", ("half", DECODER, TREE, 1, 2), 2.2),
        ("decoder_siblings_first", ("half", DECODER, SHUFFLED, 1, 2), 3.8),
        ("decoder_layer_by_layer", ("half", DECODER, TREE, 2, 2), 2.2),
        ("decoder_layer_by_layer", ("half", DECODER, SHUFFLED, 2, 2), 5.2),
        ("decoder_prefers_siblings", ("size", DECODER, TREE, 1, 2), 2.1),
        ("decoder_prefers_siblings", ("size", DECODER, SHUFFLED, 1, 2), 2.1),
        ("classes_prefer_siblings", ("size", "classes", TREE, 1, 2), 2.1),
        ("classes_prefer_siblings", ("size", "classes", SHUFFLED, 1, 1), 2.1),
        ("classes_prefer_siblings", ("size", "classes", SHUFFLED_CLASSES, 1, 1), 0.21),
        ("classes_prefer_siblings", ("size", "classes", FROZEN, 1, 1), 2.1),
        ("depth_helps", ("loss", "tokens", SINGLE), 0.09),
        ("bounce_is_of_use", ("loss", "classes", "stopped earlier"), 0.113),
        ("bounce_is_of_use", ("loss", "classes", "shuffled tree, stopped at the dip"), 0.11),
    ],
)
def test_one_number_of_one_seed_fails_a_claim(claim, what, value):
    verdicts = {c.id.partition(".")[2]: c.verdict for c in ASKED.claims(made_up({what: value}))}
    assert verdicts[claim] == "fails"


@pytest.mark.parametrize(
    ("earlier", "later", "rise", "verdict"),
    [
        (0.006, 0.003, 0.1, "holds"),
        (0.0091, 0.003, 0.1, "fails"),  # as much was learned before
        (0.006, 0.006, 0.1, "fails"),
        (0.001, 0.007, 0.1, "fails"),
        (0.006, 0.003, 0.0, "fails"),  # no bounce
    ],
)
def test_the_bounce_is_of_use_if_more_is_learned_after_it_than_before(earlier, later, rise, verdict):
    cost = dict(zip(STOPS, (earlier, 0.006, later), strict=True)) | {TREE: 0.0, FROZEN: 0.0}
    cost |= dict.fromkeys(SHUFFLED_STOPS, 0.006)
    loss = pd.Series({("classes", run, seed): cost[run] for run in cost for seed in range(5)})
    loss = loss.rename_axis(["task", "run", "seed"])
    entropy = pd.DataFrame(
        [("classes", TREE, seed, v) for seed in range(5) for v in (1.0, 0.5, 0.5 + rise)],
        columns=["task", "run", "seed", "value"],
    )
    assert _bounce(entropy, loss).verdict == verdict


def test_the_same_seed_gives_the_same_table():
    first, second = (_train(SMALL, "tokens", TREE, 1, Progress(quiet=True)) for _ in range(2))
    assert first.equals(second)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"levels": 3}, "tree of 3 levels is deeper than a stack of 2 layers"),
        ({"units": 3}, "units = 3 is odd"),
        ({"seeds": 3}, "seeds"),
        ({"edge_correlation": 1.0}, "edge_correlation"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        DeepHierarchy(**settings)


def test_a_decoder_is_asked_the_same():
    size = len(heights(ASKED, TREE))
    asked = questions(ASKED, "tokens", TREE, 0)
    batch = _draw(asked, 4000, np.random.default_rng(0))
    rows = {
        (tuple(x > 0), query): share
        for x, query, share in zip(asked.inputs, asked.asked, asked.answers[:, 1], strict=True)
    }
    orders = set()
    for sequence, place, there in zip(
        batch.sequences.tolist(), batch.query_at.tolist(), batch.there.tolist(), strict=True
    ):
        context, query, rest = sequence[1:place], sequence[place], sequence[place + 1 :]
        assert sequence[0] == size
        assert set(rest) <= {size}
        assert len({*context, query, size}) == len(context) + 2
        share = rows[tuple(token in context for token in range(size)), query]
        assert share > 0 if there else share < 1
        orders.add(tuple(context))
    assert any(tuple(reversed(order)) in orders for order in orders if len(order) > 2)
    present = batch.there.double().mean().item()
    assert present == pytest.approx(float(asked.weights @ asked.answers[:, 1]) / size, abs=0.03)


@torch.no_grad()
def test_the_decoder_looked_at_by_hand():
    height = heights(ASKED, TREE)
    batch = _draw(questions(ASKED, "tokens", TREE, 0), 40, np.random.default_rng(1))
    torch.manual_seed(0)
    net = Decoder(len(height) + 3, layers=2, width=8, hidden=8, dropout=0.0, longest=len(height) + 2)
    loss, entropy, found = _look(net, batch, height)
    seen = {}
    net.hidden_states(batch.sequences, observe=lambda layer, attention: seen.update({layer: attention[:, 0]}))
    mean = {(layer, h): [] for layer in range(2) for h in (1, 2)}
    for row, (sequence, place) in enumerate(
        zip(batch.sequences.tolist(), batch.query_at.tolist(), strict=True)
    ):
        apart = {at: height[sequence[place], sequence[at]] for at in range(1, place)}
        for layer in range(2):
            logits = seen[layer][row, place].log()
            base = [logits[at].item() for at, h in apart.items() if h == 3]
            for at, h in apart.items():
                if base and h < 3:
                    mean[layer, h].append(logits[at].item() - np.mean(base))
    for (layer, h), values in mean.items():
        assert found[layer][h] == pytest.approx(np.mean(values), abs=1e-5)
    attended = torch.stack([seen[0][row, place] for row, place in enumerate(batch.query_at)]).double()
    assert entropy == pytest.approx(float(torch.special.entr(attended).sum(1).mean()), abs=1e-5)
    answers = torch.stack([net(batch.sequences)[row, place, -2:] for row, place in enumerate(batch.query_at)])
    chosen = answers.double().softmax(1)[torch.arange(40), batch.there]
    assert loss == pytest.approx(-chosen.log().mean().item(), abs=1e-5)


def test_half_times_are_those_of_half_the_largest_gain():
    """A curve that rises to 4 and falls again has half of its gain, 2, a third of the way from 1 to 4."""
    keys = {"task": "t", "run": "r", "seed": 0, "layer": 1, "height": 1}
    curve = pd.DataFrame(
        {**keys, "step": range(4), "time": [0.0, 3.0, 6.0, 9.0], "value": [0.0, 1.0, 4.0, 1.0]}
    )
    assert half_times(curve).tolist() == pytest.approx([4.0])
    assert half_times(curve[::-1]).tolist() == pytest.approx([4.0])
