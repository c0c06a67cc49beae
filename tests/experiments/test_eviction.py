"""The experiment ``eviction``: its masks, its policies, its best sets, and what turns its claims."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from torch.nn import functional

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.beyond.eviction import Eviction
from joma.experiments.beyond.eviction.claims import GARBAGE, STATEMENTS
from joma.experiments.beyond.eviction.policies import (
    SINK,
    divide,
    keep_by_head,
    keep_positions,
    largest,
    score,
)
from joma.experiments.beyond.eviction.run import BEST, all_sets, seen_with
from joma.experiments.shared.decoder_attention import layer_attentions, losses_with_masks
from joma.models.decoder import Decoder

SMALL = Eviction(
    context=6, continuation=8, length=14, budgets=(2,), texts=2, steps=3, width=16, heads=2, window=2,
    random_sets=3, batch=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    return SMALL.run(Progress(quiet=True))


def decoder(modern: bool = False) -> tuple[Decoder, torch.Tensor]:
    torch.manual_seed(0)
    model = Decoder(20, layers=2, width=16, hidden=16, heads=2, longest=14, pre_norm=modern, rotary=modern)
    return model, torch.randint(0, 20, (15,))


@pytest.mark.parametrize("modern", [False, True])
def test_attention_from_outside_is_what_the_layers_compute(modern: bool) -> None:
    model, tokens = decoder(modern)
    seen: dict[int, torch.Tensor] = {}
    model.eval().hidden_states(tokens[None, :-1], seen.__setitem__)
    for number, layer in enumerate(layer_attentions(model, tokens[None, :-1])):
        torch.testing.assert_close(layer.probabilities(), seen[number].detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("modern", [False, True])
def test_a_mask_that_hides_nothing_gives_the_models_own_loss(modern: bool) -> None:
    model, tokens = decoder(modern)
    everything = seen_with(torch.ones(1, 1, 6, dtype=torch.bool), 14)
    found = losses_with_masks(model, tokens, [everything] * 2, 6)
    logits = model.eval()(tokens[None, :-1])[0, 6:]
    assert float(found[0]) == pytest.approx(
        float(functional.cross_entropy(logits, tokens[7:]).detach()), rel=1e-5
    )


def test_evicted_positions_are_never_read() -> None:
    """A changed token at an evicted position changes nothing but what the kept ones have read of it."""
    seen = seen_with(torch.tensor([[[True, True, False, False, False, False]]]), 14)[0, 0]
    assert seen[:6, :6].equal(torch.ones(6, 6, dtype=torch.bool).tril())
    assert not bool(seen[6:, 2:6].any())
    assert bool(seen[6:, :2].all())
    model, tokens = decoder()
    masks = [seen_with(torch.tensor([[[True, True, False, False, False, False]]]), 14)] * 2
    before = losses_with_masks(model, tokens, masks, 6)
    tokens[3] = (tokens[3] + 1) % 20  # neither position 0 nor 1 can see it
    assert torch.equal(before, losses_with_masks(model, tokens, masks, 6))


def test_policies_keep_as_many_as_they_may() -> None:
    model, tokens = decoder()
    scores = score(layer_attentions(model, tokens[None, :6]), 2)
    for policy in (*scores.common, SINK):
        assert int(keep_positions(scores, policy, 3).sum()) == 3, policy
    assert keep_positions(scores, SINK, 3).tolist() == [True, False, False, False, True, True]
    assert keep_positions(scores, "recency", 2).tolist() == [False] * 4 + [True] * 2
    assert [int(one.sum()) for one in keep_by_head(scores, "own keys", 3)] == [6, 6]
    assert sum(int(one.sum()) for one in keep_by_head(scores, "own keys, by entropy", 3)) == 12
    with pytest.raises(InputError, match="from 1 to 6"):
        keep_positions(scores, "recency", 7)
    assert largest(torch.tensor([1.0, 1.0, 0.0]), 1).tolist() == [False, True, False]
    assert divide(torch.tensor([3.0, 1.0]), 8, 5).tolist() == [5, 3]
    assert len(all_sets(6, 2)) == 15


def test_no_common_set_is_better_than_the_best(tables: dict[str, pd.DataFrame]) -> None:
    regrets = tables["regrets"]
    assert (regrets[regrets["policy"] == BEST]["regret"] == 0).all()
    # Everything kept and sets of a head's own are no sets of this size.
    of_this_size = regrets[(regrets["set"] == "common") & (regrets["policy"] != "everything kept")]
    assert (of_this_size["regret"] >= 0).all()
    assert regrets["policy"].nunique() >= 8
    assert set(regrets["network"]) == {"trained", "untrained"}
    with style():
        SMALL.draw(tables)


def test_claims_turn_on_garbage(tables: dict[str, pd.DataFrame]) -> None:
    made = tables["regrets"].copy()
    trained = made["network"] == "trained"
    worth = {
        "received mass": 0.2,
        "random": 0.4,
        "sink plus recency": 0.3,
        "recency": 0.5,
        "exact change": 0.1,
    }
    made["regret"] = made["policy"].map(worth).where(trained, 0.4).fillna(0.0)
    order = tables["correlations"].assign(value=0.9)
    claims = {c.id: c.verdict for c in SMALL.claims({**tables, "regrets": made, "correlations": order})}
    assert set(claims) == set(STATEMENTS) == set(GARBAGE)
    assert set(claims.values()) == {"holds"}
    made["regret"] = 0.4
    claims = {
        c.id: c.verdict
        for c in SMALL.claims({**tables, "regrets": made, "correlations": order.assign(value=0.0)})
    }
    assert set(claims.values()) == {"fails"}


def test_bad_settings_are_refused() -> None:
    for settings, said in (
        ({"budgets": (40,)}, "exceeds the context's"),
        ({"budgets": (0,)}, "at least 1"),
        ({"budgets": ()}, "is empty"),
        ({"window": 40}, "exceeds the context's"),
        ({"context": 60, "budgets": (20,), "length": 200}, "would not be known"),
        ({"length": 20}, "raise length"),
    ):
        with pytest.raises(InputError, match=said):
            Eviction(**settings)  # type: ignore[arg-type]
