from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.special import erfinv

from joma.core.errors import InputError, UnfinishedError
from joma.dynamics import block_flow
from joma.theory.activation import activation, smooth_relu
from joma.theory.attention import Attention
from joma.theory.block import Block, CrossEntropyGradient, Embeddings


def example(batch=(), seed=0, kind="softmax", name="gelu"):
    rng = np.random.default_rng(seed)
    block = Block(Embeddings.orthonormal(4), Attention(kind=kind, temperature=0.8), activation(name))
    x, g = rng.dirichlet(np.ones(4), 5), rng.normal(size=(5, 3))
    start = {"weights": 0.3 * rng.normal(size=(*batch, 3, 5)), "logits": 0.3 * rng.normal(size=(*batch, 4))}
    return block, x, g, start


def test_the_flow_agrees_with_an_independent_one_written_sample_by_sample():
    block, x, g, start = example(name="tanh")
    times = np.linspace(0, 2, 4)
    flow = block_flow.solve(block, x, g, times=times, weight_rate=1.5, attention_rate=0.5, **start)

    def right_hand_side(_, state):
        w, z = state[:15].reshape(3, 5), state[15:]
        dw, dz = np.zeros_like(w), np.zeros_like(z)
        for i in range(5):
            b = x[i] * np.exp(z / 0.8)
            b = b / b.sum()
            f = np.append(b, 1.0)
            for k in range(3):
                gh = g[i, k] * (1 - np.tanh(w[k] @ f) ** 2) / 5
                dw[k] += 1.5 * gh * f
                dz += 0.5 * gh * (np.diag(b) - np.outer(b, b)) @ w[k, :4] / 0.8
        return np.append(dw.ravel(), dz)

    state = np.append(start["weights"].ravel(), start["logits"])
    truth = solve_ivp(right_hand_side, (0, 2), state, t_eval=times, method="LSODA", rtol=1e-11, atol=1e-12).y
    np.testing.assert_allclose(flow.weights.reshape(4, -1), truth[:15].T, atol=1e-8)
    np.testing.assert_allclose(flow.logits, truth[15:].T, atol=1e-8)


def test_a_batch_of_states_is_what_its_members_are_alone():
    block, x, _, start = example(batch=(2, 3))
    gradient = CrossEntropyGradient((0, 1, 2, 1, 0))
    flow = block_flow.solve(block, x, gradient, times=[0, 1, 3], **start)
    assert flow.weights.shape == (3, 2, 3, 3, 5)
    assert flow.logits.shape == (3, 2, 3, 4)
    assert flow.bias.shape == (3, 2, 3, 3)
    alone = block_flow.solve(
        block, x, gradient, times=[0, 1, 3], weights=start["weights"][1, 2], logits=start["logits"][1, 2]
    )
    np.testing.assert_allclose(flow.weights[:, 1, 2], alone.weights, atol=1e-10)
    np.testing.assert_allclose(flow.correction[:, 1, 2], alone.correction, atol=1e-10)


def test_tighter_tolerances_converge_also_across_kinks():
    block, x, g, start = example(name="leaky")
    g, start["weights"] = np.abs(g), start["weights"] - 0.2  # every unit is pushed up through its kinks
    runs = [
        block_flow.solve(block, x, g, times=[0, 8], rtol=rtol, atol=rtol / 100, **start)
        for rtol in (1e-5, 1e-8, 1e-12)
    ]
    slopes = [block.forward(x, runs[-1].weights[s], runs[-1].logits[s]).slope for s in (0, 1)]
    assert (slopes[0] != slopes[1]).sum() > 5
    runs = [run.weights[-1] for run in runs]
    errors = [np.abs(run - runs[-1]).max() for run in runs]
    assert errors[1] < 1e-6
    assert errors[1] <= errors[0]


def test_a_flow_that_slides_along_a_kink_is_said_to_and_not_computed_for_ever():
    block, x, g, start = example(name="relu", seed=0)
    with pytest.raises(UnfinishedError, match="may slide along its kink"):
        block_flow.solve(block, x, g, times=[0, 4], max_evaluations=3000, **start)


def test_a_rounded_kink_is_followed_where_relu_slides():
    _, x, g, start = example(name="relu", seed=0)
    ends = []
    for width in (4e-3, 2e-3, 1e-3):
        block = Block(Embeddings.orthonormal(4), Attention(temperature=0.8), smooth_relu(width))
        flow = block_flow.solve(block, x, g, times=[0, 4], method="Radau", rtol=1e-8, atol=1e-10, **start)
        ends.append(flow.weights[-1])
        drift = flow.context_weights.sum(axis=-1) - flow.bias
        np.testing.assert_allclose(drift[1], drift[0], atol=1e-7)
    changes = [np.abs(after - before).max() for before, after in itertools.pairwise(ends)]
    assert changes[1] < 0.7 * changes[0] < 0.02


def test_the_loss_grows_along_the_flow_of_a_constant_gradient():
    block, x, g, start = example()
    flow = block_flow.solve(block, x, g, times=np.linspace(0, 2, 9), **start)
    p = np.full(5, 0.2)
    losses = [
        block.per_node_loss(x, w, z, g, sample_weights=p)
        for w, z in zip(flow.weights, flow.logits, strict=True)
    ]
    assert (np.diff(losses) > 0).all()


def exp_single(drive, kappa=1.0):
    block = Block(Embeddings.orthonormal(len(drive), residual=False), Attention(kind="exp"))
    gradient = np.ones((1, 1))
    return block, np.asarray(drive, dtype=float)[None], gradient


def test_exp_attention_blows_up_when_theorem_2_says_and_the_losers_stop_where_it_says():
    drive = np.array([1.0, 0.6, -0.3]) / 2
    block, x, g = exp_single(drive)
    flow = block_flow.solve(block, x, g, weights=np.zeros((1, 4)), logits=np.zeros(3), times=[0, 1, 2, 3, 4])
    assert flow.blow_up_time == pytest.approx(np.sqrt(np.pi / 2) * 2, abs=1e-8)
    np.testing.assert_array_equal(flow.times, [0, 1, 2])
    expected = np.sqrt(2) * erfinv(np.sqrt(2 / np.pi) * drive * 2)
    np.testing.assert_allclose(flow.context_weights[-1, 0], expected, rtol=1e-9)


def test_frozen_attention_does_not_move_and_a_missing_residual_leaves_the_query_weight():
    block, x, g, start = example()
    flow = block_flow.solve(block, x, g, times=[0, 1], attention_rate=0.0, **start)
    np.testing.assert_array_equal(flow.logits[0], flow.logits[1])
    bare = Block(Embeddings.orthonormal(4, residual=False), block.attention, block.activation)
    flow = block_flow.solve(bare, x, g, times=[0, 1], **start)
    np.testing.assert_array_equal(flow.weights[0, :, -1], flow.weights[1, :, -1])
    assert np.abs(flow.bias[-1]).min() > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weights": np.zeros((3, 4))}, r"weights \(3, 4\)"),
        ({"logits": np.zeros(5)}, r"logits \(5,\)"),
        ({"weights": np.full((3, 5), np.nan)}, "weights holds nan, which is not finite"),
        ({"times": [0]}, "times must be"),
        ({"times": [0, 2, 1]}, "times must be"),
        ({"sample_weights": [0.5, 0.5, 0.5, -0.5, 0.0]}, "probabilities of the 5 samples"),
        ({"sample_weights": [0.5, 0.5]}, "probabilities of the 5 samples"),
        ({"weight_rate": -1.0}, "weight_rate = -1"),
        ({"weights": np.zeros((2, 3, 5)), "logits": np.zeros((3, 4))}, "do not broadcast"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(change, words):
    block, x, g, start = example()
    with pytest.raises(InputError, match=words):
        block_flow.solve(block, x, g, **{"times": [0, 1], **start, **change})


def test_data_and_gradients_that_make_no_sense_are_refused():
    block, x, g, start = example()
    with pytest.raises(InputError, match=r"frequencies \(5, 3\)"):
        block_flow.solve(block, x[:, :3], g, times=[0, 1], **start)
    with pytest.raises(InputError, match="a frequency is negative"):
        block_flow.solve(block, x - 0.5, g, times=[0, 1], **start)
    with pytest.raises(InputError, match=r"gradient \(4, 3\)"):
        block_flow.solve(block, x, g[:4], times=[0, 1], **start)
    with pytest.raises(InputError, match=r"gradient \(5, 2\)"):
        block_flow.solve(block, x, lambda time, activity: g[:, :2], times=[0, 1], **start)
    with pytest.raises(InputError, match="gradient"):
        block_flow.solve(block, x, lambda time, activity: np.nan * g, times=[0, 1], **start)
