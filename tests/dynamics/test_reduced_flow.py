from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from joma.core.errors import InputError
from joma.dynamics import block_flow, reduced_flow
from joma.theory.activation import activation
from joma.theory.attention import Attention
from joma.theory.block import Block, CrossEntropyGradient, Embeddings
from joma.theory.coherence import random_embeddings
from joma.theory.winner_take_all import WinnerTakeAll

TOKENS, NODES, SAMPLES = 5, 2, 12


def setting(kind: str, seed: int = 0, *, name: str = "linear", spread: float = 1.0, temperature: float = 0.8):
    rng = np.random.default_rng(seed)
    block = Block(
        Embeddings.orthonormal(TOKENS), Attention(kind=kind, temperature=temperature), activation(name)
    )
    x = (1 - spread) / TOKENS + spread * rng.dirichlet(np.ones(TOKENS), SAMPLES)
    arguments = {
        "frequencies": x,
        "gradient": 0.5 * rng.normal(size=(SAMPLES, NODES)),
        "weights": 0.2 * rng.normal(size=(NODES, TOKENS + 1)),
        "logits": 0.3 * rng.normal(size=TOKENS) + 2.0 * (kind == "linear"),
        "times": np.linspace(0, 2, 9),
    }
    return block, arguments


@settings(max_examples=15)
@given(
    kind=st.sampled_from(["linear", "exp"]),
    name=st.sampled_from(["linear", "gelu", "tanh"]),
    seed=st.integers(0, 500),
    weight_rate=st.floats(0.3, 1.5),
    attention_rate=st.floats(0.3, 1.5),
)
def test_reduced_flow_is_the_flow_for_linear_and_exp(kind, name, seed, weight_rate, attention_rate) -> None:
    block, arguments = setting(kind, seed, name=name)
    rates = {"weight_rate": weight_rate, "attention_rate": attention_rate}
    try:
        reduced = reduced_flow.solve(block, **arguments, **rates)
    except InputError as error:
        # Drawn with weights too large for their logits, whose sign linear attention then leaves open.
        if kind != "linear" or "not decided by the weights" not in str(error):
            raise
        reject()
    full = block_flow.solve(block, **arguments, **rates)
    for name in ("weights", "logits", "bias", "correction"):
        np.testing.assert_allclose(getattr(reduced, name), getattr(full, name), rtol=1e-8, atol=1e-8)


def test_it_follows_theorem_2_up_to_the_blow_up() -> None:
    rng = np.random.default_rng(1)
    x, g = rng.dirichlet(np.ones(3), 6), rng.normal(size=(6, 1))
    block = Block(Embeddings.orthonormal(3), Attention(kind="exp", normaliser=0.5))
    closed = WinnerTakeAll(drive=(g * x).mean(axis=0), normaliser=0.5)
    times = np.array([0.0, 0.5, 0.9, 0.999, 1.1]) * closed.blow_up_time
    course = reduced_flow.solve(block, x, g, weights=np.zeros((1, 4)), logits=np.zeros(3), times=times)
    assert course.blow_up_time == pytest.approx(closed.blow_up_time, rel=1e-7)
    assert len(course.times) == 4
    np.testing.assert_allclose(course.context_weights[:, 0], closed.weights(times[:4]), rtol=1e-7, atol=1e-9)


def test_gradients_that_answer_the_reduced_state() -> None:
    block, arguments = setting("exp", 4)
    arguments["gradient"] = CrossEntropyGradient(tuple(i % NODES for i in range(SAMPLES)))
    cast = reduced_flow.forecast(block, **arguments)
    assert cast.logit_error.max() < 1e-9
    assert cast.attention_gap.max() < 1e-9
    assert cast.attention_moved[-1] > 1e-3
    assert cast.logit_correlation.min() > 1 - 1e-9


def test_several_initial_states_at_once_are_the_same_as_one_by_one() -> None:
    block, arguments = setting("softmax", 2)
    stacked = np.stack([arguments["weights"], 0.5 * arguments["weights"], -arguments["weights"]])
    together = reduced_flow.forecast(block, **{**arguments, "weights": stacked})
    for member in range(3):
        alone = reduced_flow.forecast(block, **{**arguments, "weights": stacked[member]})
        np.testing.assert_allclose(together.logit_error[:, member], alone.logit_error, atol=1e-8)
        np.testing.assert_allclose(together.attention_gap[:, member], alone.attention_gap, atol=1e-8)
    assert together.times.shape == (9,)


def test_softmax_closures_and_the_order_of_what_they_neglect() -> None:
    """From zero: signed stays wrong however alike the samples are; moving's error falls with their square."""
    final = {form: [] for form in ("signed", "corrected", "moving")}
    for spread in (0.1, 0.05):
        for form, errors in final.items():
            block, arguments = setting("softmax", 3, spread=spread)
            arguments |= {"weights": np.zeros((NODES, TOKENS + 1)), "logits": np.zeros(TOKENS)}
            errors.append(reduced_flow.forecast(block, **arguments, softmax=form).logit_error[-1])
    assert min(final["signed"]) > 0.3
    assert max(final["corrected"]) < 0.1
    assert final["moving"][0] / final["moving"][1] == pytest.approx(4, rel=0.1)


def test_moving_mean_outlasts_the_initial_one() -> None:
    block, arguments = setting("softmax", 3, spread=0.2)
    arguments |= {
        "weights": np.zeros((NODES, TOKENS + 1)),
        "logits": np.zeros(TOKENS),
        "times": np.linspace(0, 120, 9),
    }
    moving = reduced_flow.forecast(block, **arguments, softmax="moving")
    initial = reduced_flow.forecast(block, **arguments, softmax="corrected")
    assert moving.attention_moved[-1] > 0.1
    assert moving.logit_error[-1] < 0.05
    assert initial.logit_error[-1] > 1.0


def test_softmax_logits_keep_their_sum_while_the_mean_moves() -> None:
    block, arguments = setting("softmax", 6)
    logits = reduced_flow.solve(block, **arguments, softmax="moving").logits
    np.testing.assert_allclose(logits.sum(axis=1), logits[0].sum(), atol=1e-12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"softmax": "fixed"}, "unknown"),
        ({"times": [1.0, 0.0]}, "increasing"),
        ({"attention_rate": 0.0}, "attention_rate"),
        ({"weights": np.zeros((2, 3))}, "weights"),
        ({"sample_weights": np.full(SAMPLES, 1.0)}, "probabilities"),
    ],
)
def test_bad_input(change, words: str) -> None:
    block, arguments = setting("exp")
    with pytest.raises(InputError, match=words):
        reduced_flow.solve(block, **{**arguments, **change})


def test_embeddings_that_overlap_are_refused() -> None:
    arguments = setting("exp")[1]
    coherent = Block(Embeddings(random_embeddings(TOKENS, TOKENS + 1, seed=0), np.zeros(TOKENS + 1)))
    with pytest.raises(InputError, match="not orthonormal"):
        reduced_flow.solve(coherent, **arguments)


def test_rotated_orthonormal_embeddings_are_fine() -> None:
    block, arguments = setting("exp")
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(TOKENS + 1, TOKENS + 1)))[0]
    turned = Block(Embeddings(rotation[:, :TOKENS], rotation[:, TOKENS]), block.attention)
    plain = reduced_flow.solve(block, **arguments)
    other = reduced_flow.solve(turned, **{**arguments, "weights": arguments["weights"] @ rotation.T})
    np.testing.assert_allclose(plain.logits, other.logits, rtol=1e-8, atol=1e-9)


def test_undecided_sign_of_linear_attention_is_refused() -> None:
    block, arguments = setting("linear")
    with pytest.raises(InputError, match="sign"):
        reduced_flow.solve(block, **{**arguments, "logits": np.full(TOKENS, 1e-3)})
