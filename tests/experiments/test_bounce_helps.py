from __future__ import annotations

import itertools

import pandas as pd
import pytest
import torch

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.beyond.bounce_helps import BounceHelps
from joma.experiments.beyond.bounce_helps.claims import entropy_was_held
from joma.experiments.beyond.bounce_helps.freezing import FrozenProjections, PinnedEntropy, stop_attention
from joma.measures.bounce import smooth
from joma.measures.entropy import entropy_of_probabilities
from joma.models.decoder import Decoder

TINY = BounceHelps(
    vocabulary_size=60, width=8, batch=4, length=12, steps=24, measure_every=2, windows=8, seeds=3
)


@pytest.fixture(scope="module")
def tables():
    return TINY.run(Progress(quiet=True))


def _model(layers=2, dropout=0.0):
    torch.manual_seed(0)
    return Decoder(20, layers=layers, width=8, hidden=8, heads=2, dropout=dropout, longest=10)


def test_runs_are_the_same_until_they_are_stopped(tables):
    keys = ["step", "layer", "head", "metric"]
    for _, run in tables["curves"].query("way != ''").groupby("run"):
        same = tables["curves"].query("way == ''")
        same = same[(same["depth"] == run["depth"].iloc[0]) & (same["seed"] == run["seed"].iloc[0])]
        both = run.merge(same, on=keys, suffixes=("", "_untouched"))
        before, after = both[both["step"] <= both["stop"]], both[both["step"] > both["stop"]]
        assert len(before) > 0
        assert len(after) > 0
        assert (before["value"] == before["value_untouched"]).all()
        assert (after["value"] != after["value_untouched"]).any()


def test_costs_are_differences_of_late_losses(tables):
    cost = tables["costs"].iloc[0]
    loss = tables["curves"].query("metric == 'validation_loss' and step >= 21.6")
    ends = loss.groupby(["depth", "seed", "way", "when"])["value"].mean()
    key = (cost["depth"], cost["seed"])
    expected = ends[(*key, cost["way"], cost["when"])] - ends[(*key, "", "")]
    assert cost["cost"] == pytest.approx(expected, abs=1e-12)


def test_stopping_changes_nothing_at_that_moment():
    tokens = torch.arange(10)[None] % 20
    for how in ("projections", "entropy"):
        model = _model().eval()
        before = model(tokens)
        stop_attention(model, how, {0: [1.0, 1.0], 1: [1.0, 1.0]})
        torch.testing.assert_close(model(tokens), before, rtol=0, atol=1e-6)
        assert [w.shape for w in model.lower_mlp_weights()] == [(8, 8), (8, 8)]


def test_frozen_projections_ignore_the_learned_ones():
    model, tokens = _model(layers=1), torch.arange(10)[None] % 20
    stop_attention(model, "projections", {})
    seen = []
    stopped = model.layers[0].in_projection
    assert isinstance(stopped, FrozenProjections)
    model.hidden_states(tokens, lambda _, p: seen.append(p))
    with torch.no_grad():
        stopped.learned.weight[:16] += 1.0
    model.hidden_states(tokens, lambda _, p: seen.append(p))
    torch.testing.assert_close(seen[0], seen[1], rtol=0, atol=0)
    model(tokens).square().sum().backward()
    gradient = stopped.learned.weight.grad
    assert (gradient[:16] == 0).all()
    assert (gradient[16:] != 0).any()


def test_pinned_entropy_reaches_its_target():
    model = _model(layers=1)
    with torch.no_grad():
        model.layers[0].in_projection.weight *= 3.0
    tokens = torch.randint(0, 20, (6, 10))
    stop_attention(model, "entropy", {0: [0.9, 1.2]})
    assert isinstance(model.layers[0].sharpen, PinnedEntropy)
    model.train()
    for _ in range(30):
        model.hidden_states(tokens)
    seen = []
    model.eval().hidden_states(tokens, lambda _, p: seen.append(entropy_of_probabilities(p).mean((0, 2))))
    assert seen[0].tolist() == pytest.approx([0.9, 1.2], abs=1e-3)


def _judged(tables, costs, **settings):
    """Verdicts by the part of the id behind the dot, all untouched runs bouncing."""
    bouncing = tables["bounces"].assign(rebound_probability=0.001)
    experiment = BounceHelps(**settings) if settings else TINY
    return {c.id.split(".")[1]: c for c in experiment.claims({**tables, "costs": costs, "bounces": bouncing})}


IDS = ["one_layer", "several_layers_projections", "several_layers_entropy", "dip_is_special"]


@pytest.fixture
def costs():
    """Costs put in by hand, with a little spread: every depth, seed, way and time, none of them dear."""
    cells = itertools.product((1, 2), range(3), ("projections", "entropy"), ("dip", "earlier", "later"))
    table = pd.DataFrame(cells, columns=["depth", "seed", "way", "when"])
    return table.assign(stop=10, cost=1e-4 * (table["seed"] - 1.0))


def test_claims_follow_the_costs(tables, costs):
    """Dear at the dip in two layers, none in one; then dear in one layer and none in two."""
    costs.loc[(costs["depth"] == 2) & (costs["when"] == "dip"), "cost"] += 1.0
    assert [_judged(tables, costs)[name].verdict for name in IDS] == ["holds"] * 4
    costs["cost"] = 1e-4 * (costs["seed"] - 1.0) + (costs["depth"] == 1)
    assert [_judged(tables, costs)[name].verdict for name in IDS] == ["fails"] * 4


def test_what_an_earlier_stop_costs_more_is_not_counted_for_the_dip(tables, costs):
    costs["cost"] += costs["when"].map({"earlier": 3.0, "dip": 2.0, "later": 1.0}) * (costs["depth"] == 2)
    claims = _judged(tables, costs)
    assert claims["several_layers_projections"].verdict == "holds"
    assert claims["dip_is_special"].verdict == "fails"


def test_a_spread_as_large_as_the_benefit_tells_nothing(tables, costs):
    costs.loc[costs["depth"] == 1, "cost"] *= 300.0  # -0.03, 0, 0.03 nats
    claim = _judged(tables, costs)["one_layer"]
    assert claim.verdict == "not tested"
    assert "cannot tell" in claim.evidence


def test_runs_without_a_bounce_say_nothing_of_it(tables, costs):
    bounces = tables["bounces"].assign(rebound_probability=0.3)
    claims = {c.id.split(".")[1]: c for c in TINY.claims({**tables, "costs": costs, "bounces": bounces})}
    assert [claims[name].verdict for name in IDS] == ["not tested"] * 4


@pytest.mark.parametrize(
    ("probability", "rebound", "verdict"),
    [(0.01, 0.4, "holds"), (0.3, 0.05, "fails"), (0.3, 0.4, "not tested")],
)
def test_seeds_that_rise_at_different_times_cannot_tell(tables, costs, probability, rebound, verdict):
    told = {"rebound_probability": probability, "rebound": rebound, "rebound_null": 0.1}
    claim = TINY.claims({**tables, "costs": costs, "bounces": tables["bounces"].assign(**told)})[0]
    assert claim.verdict == verdict


def test_a_rebound_is_the_rise_after_the_dip(tables):
    curves = tables["curves"].query(
        "way == '' and metric == 'attention_entropy' and depth == 1 and seed == 0"
    )
    curve = curves.groupby("step")["value"].mean()
    level = pd.Series(smooth(curve.to_numpy(), 3), index=curve.index)
    row = tables["bounces"].query("depth == 1 and seed == 0").iloc[0]
    after = [value for step, value in level.items() if step >= row["dip_step"]]
    assert row["rebound"] == pytest.approx(max(after) - level[row["dip_step"]])


def test_other_stops_are_as_far_from_the_dip(tables):
    bounces = tables["bounces"].dropna()
    assert (
        bounces["later_step"] - bounces["dip_step"] == bounces["dip_step"] - bounces["earlier_step"]
    ).all()
    assert set(bounces["later_step"]) | set(bounces["earlier_step"]) <= set(TINY.stopping_steps())


def test_without_one_of_the_depths_nothing_is_claimed(tables, costs):
    claims = _judged(tables, costs[costs["depth"] == 1], layers=(1,))
    assert claims["several_layers_entropy"].verdict == "not tested"
    claims = _judged(tables, costs[costs["depth"] == 2], layers=(2,))
    assert claims["one_layer"].verdict == "not tested"


def test_repeats_and_draws(tables, tmp_path):
    again = TINY.run(Progress(quiet=True))
    for name, table in tables.items():
        pd.testing.assert_frame_equal(table, again[name], check_exact=True)
    with style("light"):
        TINY.draw(tables).savefig(tmp_path / "figure.png")


def test_bad_settings():
    with pytest.raises(InputError, match="repeats a value"):
        BounceHelps(layers=(2, 2))
    with pytest.raises(InputError, match="measure more often"):
        BounceHelps(steps=50, measure_every=10)
    with pytest.raises(InputError, match="seeds"):
        BounceHelps(seeds=1)
    model = _model()
    with pytest.raises(InputError, match="neither"):
        stop_attention(model, "all", {})
    stop_attention(model, "projections", {})
    with pytest.raises(InputError, match="stopped before"):
        stop_attention(model, "projections", {})


@pytest.mark.parametrize(("after", "verdict"), [(0.5, "holds"), (0.1, "fails")])
def test_pinned_heads_are_held_against_what_moves_after_the_dip(after: float, verdict: str) -> None:
    keys = {"depth": 1, "seed": 0, "layer": 0, "head": 0, "metric": "attention_entropy", "stop": 10}
    rows = []
    for step in range(0, 21, 2):
        pinned = 1.0 if step <= 10 else 1.1
        rows.append({**keys, "when": "dip", "way": "entropy", "step": step, "value": pinned})
        free = 9.0 if step <= 10 else 1.0 + after  # what was before the dip does not count
        rows.append({**keys, "when": "", "way": "", "step": step, "value": free})
    bounces = pd.DataFrame([{"depth": 1, "seed": 0, "dip_step": 10}])
    claim = entropy_was_held(pd.DataFrame(rows), bounces)
    assert claim.verdict == verdict
    assert claim.measured == pytest.approx(0.1)
    assert claim.null == pytest.approx(after)
