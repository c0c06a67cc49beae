"""The joint-dynamics index against loops over neurons and keys, and where Theorem 1 holds exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from joma.core.errors import InputError
from joma.dynamics import block_flow
from joma.measures.joint_dynamics import (
    CONTROLS,
    Variant,
    joint_dynamics_index,
    joint_dynamics_prediction,
    neuron_gram,
)
from joma.measures.row_correlations import Scores
from joma.theory.activation import LINEAR
from joma.theory.attention import Attention
from joma.theory.block import Block, Embeddings

BATCH, HEADS, PAIRS, TOKENS, SIZE, WIDTH, NEURONS = 2, 4, 2, 24, 3, 12, 7
INDEX = Variant("index", "linear", "nothing", "out")


def layer(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "u": normal(BATCH, TOKENS, WIDTH),
        "lower": normal(NEURONS, WIDTH),
        "output": normal(WIDTH, HEADS * SIZE),
        "value": normal(PAIRS * SIZE, WIDTH),
        "gain": normal(WIDTH),
        "scores": 3 * normal(BATCH, HEADS, TOKENS, TOKENS),
    }


def values_of(part: dict[str, Tensor]) -> Tensor:
    return (part["u"] @ part["value"].T).unflatten(-1, (PAIRS, SIZE)).transpose(1, 2)


def causal(scores: Tensor) -> Tensor:
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -math.inf)


@pytest.mark.parametrize("centres", [False, True])
def test_prediction_is_half_the_sum_over_neurons_one_by_one(centres: bool) -> None:
    part = layer()
    gram = neuron_gram(
        part["lower"], part["output"], HEADS, gain=part["gain"], centres=centres,
        output_gain=part["gain"] + 1, output_centres=centres,
    )  # fmt: skip
    measured = joint_dynamics_prediction(values_of(part), gram)
    for head in range(HEADS):
        own = slice(head * SIZE, (head + 1) * SIZE)
        group = slice(head // 2 * SIZE, (head // 2 + 1) * SIZE)
        for token in range(TOKENS):
            written = part["output"][:, own] @ (part["value"][group] @ part["u"][1, token])
            if centres:
                written = written - written.mean()
            written = written * (part["gain"] + 1)
            if centres:
                written = written - written.mean()
            total = 0.0
            for neuron in range(NEURONS):
                total += float((part["lower"][neuron] * part["gain"]) @ written) ** 2
            assert float(measured[1, head, token]) == pytest.approx(total / 2, rel=1e-12)


def residual(values: np.ndarray, controls: list[np.ndarray]) -> np.ndarray:
    design = np.stack([np.ones(len(values)), *controls], axis=1)
    return values - design @ np.linalg.lstsq(design, values, rcond=None)[0]


def test_every_variant_is_what_a_loop_over_the_queries_gives() -> None:
    part = layer(1)
    scores = causal(part["scores"])
    values = values_of(part)
    prediction = joint_dynamics_prediction(values, neuron_gram(part["lower"], part["output"], HEADS))
    value_norm = values.square().sum(-1).repeat_interleave(2, 1)
    input_norm = part["u"].square().sum(-1)[:, None]
    found = joint_dynamics_index(
        scores, prediction, value_norm=value_norm, input_norm=input_norm, draws=2, rank_every=1
    )
    assert len(found) == 2 * (2 * (len(CONTROLS) + 2 + 2) + 2)
    for sample in range(BATCH):
        for head in range(HEADS):
            for query in range(TOKENS):
                for sink in ("in", "out"):
                    keys = np.arange(0 if sink == "in" else 1, query + 1)
                    enough = query >= 10
                    attention = torch.softmax(scores[sample, head, query], -1).log().numpy()[keys]
                    position, distance = keys.astype(float), np.log(query - keys + 1.0)
                    norms = value_norm[sample, head].numpy()[keys]
                    controls = {
                        "nothing": [],
                        "position": [position, distance],
                        "value_norm": [np.log(norms)],
                        "position and value_norm": [position, distance, np.log(norms)],
                    }
                    predicted = prediction[sample, head].numpy()[keys]
                    expected = {("value_norm", "linear", "nothing"): (attention, norms)}
                    expected["value_norm", "log", "nothing"] = attention, np.log(norms)
                    inputs = input_norm[sample, 0].numpy()[keys]
                    expected["input_norm", "linear", "nothing"] = attention, inputs
                    expected["input_norm", "log", "nothing"] = attention, np.log(inputs)
                    expected["recency", "log", "nothing"] = attention, -distance
                    for given_, fixed in controls.items():
                        for scale, x in (("linear", predicted), ("log", np.log(predicted))):
                            pair = residual(attention, fixed), residual(x, fixed)
                            expected["index", scale, given_] = pair
                    for (metric, scale, given_), (one, other) in expected.items():
                        value = float(found[Variant(metric, scale, given_, sink)][sample, head, query])
                        if enough:
                            truth = np.corrcoef(one, other)[0, 1]
                            assert value == pytest.approx(truth, abs=1e-9), (metric, scale, given_, sink)
                        else:
                            assert math.isnan(value)
                    rank = float(found[Variant("index", "rank", "nothing", sink)][sample, head, query])
                    if enough:
                        assert rank == pytest.approx(
                            stats.spearmanr(attention, predicted).statistic, abs=1e-12
                        )


def test_null_is_the_index_of_shuffled_tokens() -> None:
    """Its mean over many shuffles is 0, and its spread that of independent variables, 1 / sqrt(n - 1)."""
    part = layer(2)
    prediction = joint_dynamics_prediction(values_of(part), neuron_gram(part["lower"], part["output"], HEADS))
    found = joint_dynamics_index(part["scores"], prediction, draws=200, rank_every=0)
    for sink, keys in (("out", TOKENS - 1), ("in", TOKENS)):
        nulls = torch.stack([found[Variant("null", "log", "nothing", sink, d)] for d in range(200)])
        assert float(nulls.mean()) == pytest.approx(0.0, abs=0.01)
        assert float(nulls.std()) == pytest.approx((keys - 1) ** -0.5, rel=0.05)


def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    part = layer(3)
    scores = causal(part["scores"])
    prediction = part["u"][..., :HEADS].square().transpose(1, 2)
    whole = joint_dynamics_index(scores, prediction, rank_every=3)
    monkeypatch.setattr("joma.measures.joint_dynamics._LOGITS_AT_ONCE", 1)
    by_rows = joint_dynamics_index(
        lambda rows: Scores.of(scores[:, :, rows]), prediction, queries=TOKENS, rank_every=3
    )
    assert whole.keys() == by_rows.keys()
    for variant, values in whole.items():
        torch.testing.assert_close(by_rows[variant], values, equal_nan=True, rtol=0, atol=1e-12)


def test_padding_on_either_side_changes_nothing() -> None:
    part = layer(4)
    scores = causal(part["scores"])
    prediction = part["u"][..., :HEADS].square().transpose(1, 2)
    plain = joint_dynamics_index(scores, prediction, value_norm=prediction + 1, draws=0)
    for left, right in ((5, 0), (0, 3)):
        pad = (left, right, left, right)
        padded = joint_dynamics_index(
            torch.nn.functional.pad(scores, pad, value=-math.inf),
            torch.nn.functional.pad(prediction, pad[:2]),
            value_norm=torch.nn.functional.pad(prediction + 1, pad[:2]),
            first=torch.full((BATCH,), left),
            draws=0,
        )
        for variant, values in plain.items():
            inner = padded[variant][..., left : left + TOKENS]
            torch.testing.assert_close(inner, values, equal_nan=True, rtol=0, atol=1e-9)
            assert bool(padded[variant][..., :left].isnan().all())


@given(
    seed=st.integers(0, 1000),
    scale=st.floats(0.01, 100),
    offset=st.floats(-50, 50),
    factor=st.floats(0.01, 1000),
)
def test_invariances(seed: int, scale: float, offset: float, factor: float) -> None:
    """Temperature, what a row adds to its logits, and the weights' size change no correlation.

    A value within the null space of the neurons changes no prediction.
    """
    part = layer(seed)
    scores, values = causal(part["scores"]), values_of(part)
    gram = neuron_gram(part["lower"], part["output"], HEADS)
    plain = joint_dynamics_index(scores, joint_dynamics_prediction(values, gram), draws=1, seed=seed)
    bigger = neuron_gram(factor * part["lower"], part["output"], HEADS)
    moved = joint_dynamics_index(
        scale * scores + offset, joint_dynamics_prediction(values, bigger), draws=1, seed=seed
    )
    for variant, expected in plain.items():
        torch.testing.assert_close(moved[variant], expected, equal_nan=True, rtol=0, atol=1e-6)
        finite = expected[expected.isfinite()]
        assert bool((finite.abs() <= 1).all())
    # Rotating neurons among themselves keeps the sum of squares.
    orthogonal = torch.linalg.qr(torch.randn(NEURONS, NEURONS, dtype=torch.float64)).Q
    torch.testing.assert_close(neuron_gram(orthogonal @ part["lower"], part["output"], HEADS), gram)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_attention_made_of_the_prediction_has_index_one(sign: float) -> None:
    part = layer(5)
    prediction = joint_dynamics_prediction(values_of(part), neuron_gram(part["lower"], part["output"], HEADS))
    scores = causal(sign * prediction[:, :, None].expand(-1, -1, TOKENS, -1) + 7.0)
    found = joint_dynamics_index(scores, prediction, draws=0)
    for scale in ("linear", "rank"):
        values = found[INDEX._replace(scale=scale)][..., 11:]
        torch.testing.assert_close(values, sign * torch.ones_like(values), rtol=0, atol=1e-9)


def test_theorem_1_in_the_exp_attention_flow() -> None:
    """Positive control: from v = z = 0 on, the flow's logits are the prediction, whatever the data."""
    rng = np.random.default_rng(0)
    tokens, neurons, samples = 20, 6, 30
    block = Block(
        attention=Attention(kind="exp"), embeddings=Embeddings.orthonormal(tokens), activation=LINEAR
    )
    trajectory = block_flow.solve(
        block,
        rng.dirichlet(np.ones(tokens), samples),
        rng.normal(size=(samples, neurons)),
        weights=np.zeros((neurons, tokens + 1)),
        logits=np.zeros(tokens),
        times=[0.0, 0.5, 2.0],
    )
    v = torch.from_numpy(trajectory.context_weights)
    prediction = v.square().sum(-2)[:, None] / 2
    scores = torch.from_numpy(trajectory.logits)[:, None, None]
    found = joint_dynamics_index(scores[1:], prediction[1:], queries=1, draws=20)
    assert found[INDEX].flatten().tolist() == pytest.approx([1.0, 1.0], abs=1e-9)
    null = torch.stack([found[Variant("null", "linear", "nothing", "out", d)] for d in range(20)])
    assert float(null.mean().abs()) < 0.2
    assert float(null.abs().max()) < 0.8
    # At the start nothing varies: no number rather than 0.
    still = joint_dynamics_index(scores[:1], prediction[:1], queries=1)
    assert all(bool(values.isnan().all()) for values in still.values())


def test_what_does_not_vary_has_no_index() -> None:
    part = layer(6)
    prediction = part["u"][..., :HEADS].square().transpose(1, 2)
    even = joint_dynamics_index(torch.ones(BATCH, HEADS, TOKENS, TOKENS) / 3, prediction, draws=1)
    assert all(bool(values.isnan().all()) for values in even.values())
    flat = joint_dynamics_index(part["scores"], torch.ones(BATCH, HEADS, TOKENS), draws=1)
    assert bool(flat[INDEX].isnan().all())
    assert bool(flat[Variant("recency", "log", "nothing", "out")].isfinite().all())


def test_norms_that_differ_by_rounding_are_constant() -> None:
    scores, prediction = causal(layer(7)["scores"]), layer(7)["u"][..., :HEADS].square().transpose(1, 2)
    norm = 32.0 * (1 + 1e-6 * torch.rand(BATCH, 1, TOKENS, dtype=torch.float64))
    found = joint_dynamics_index(scores, prediction, input_norm=norm, draws=0)
    assert bool(found[Variant("input_norm", "linear", "nothing", "out")].isnan().all())
    found = joint_dynamics_index(scores, prediction, input_norm=norm + torch.rand_like(norm), draws=0)
    assert bool(found[Variant("input_norm", "linear", "nothing", "out")][..., 10:].isfinite().all())


def test_bad_input_is_refused() -> None:
    scores, prediction = torch.randn(1, 2, 12, 12), torch.rand(1, 2, 12)
    broken = scores.clone()
    broken[0, 1, 3, 2] = math.nan
    cases = [
        (lambda: joint_dynamics_index(scores[:, :1], prediction), "scores .1, 1, 12, 12."),
        (lambda: joint_dynamics_index(broken, prediction), "queries 0 to 11 is NaN"),
        (lambda: joint_dynamics_index(scores, -prediction), "negative or not finite"),
        (lambda: joint_dynamics_index(scores, prediction * math.inf), "negative or not finite"),
        (lambda: joint_dynamics_index(scores, prediction[0]), "must be .batch, heads, keys."),
        (lambda: joint_dynamics_index(scores, prediction, value_norm=prediction[..., 1:]), "value_norm"),
        (lambda: joint_dynamics_index(scores, prediction, draws=-1), "draws = -1"),
        (lambda: joint_dynamics_index(scores, prediction, first=torch.tensor([12])), "first"),
        (lambda: neuron_gram(torch.ones(3, 4), torch.ones(5, 6), 2), "lower .3, 4."),
        (lambda: neuron_gram(torch.ones(3, 4), torch.ones(4, 6), 4), "4 heads"),
        (lambda: neuron_gram(torch.ones(3, 4) * math.inf, torch.ones(4, 6), 2), "not finite"),
        (lambda: neuron_gram(torch.ones(3, 4), torch.ones(4, 6), 2, gain=torch.ones(3)), "gain .3,."),
        (lambda: joint_dynamics_prediction(torch.ones(1, 3, 5, 2), torch.ones(4, 2, 2)), "divide 4"),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message):
            call()
