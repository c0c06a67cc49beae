from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from joma.core.errors import InputError
from joma.dynamics import sgd
from joma.theory.activation import activation
from joma.theory.attention import Attention
from joma.theory.block import Block, Embeddings
from joma.theory.invariants import first_integral
from joma.theory.optimizers import (
    adam_pace,
    decay_rates,
    descent_under_decay,
    integral_under_decay,
    matched_decay,
    momentum_drift,
    resting_coefficient,
)

LINEAR, EXP = Attention(kind="linear", temperature=0.8), Attention(kind="exp", temperature=0.8)


@dataclass
class Case:
    """Random data, gradients and an initial state for a block of 4 tokens and 2 nodes."""

    attention: Attention
    seed: int = 0
    activation: str = "gelu"

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.block = Block(Embeddings.orthonormal(4), self.attention, activation(self.activation))
        self.frequencies = rng.dirichlet(np.ones(4), 10)
        # Small enough for exp attention to stay clear of its blow-up, whatever the seed.
        self.gradient = 0.3 * rng.uniform(-1, 1, size=(10, 2))
        self.weights = 0.5 * rng.uniform(-1, 1, size=(2, 5))
        self.logits = rng.uniform(-1, 1, size=4)

    def train(self, optimizer: sgd.Optimizer, steps: int, **rates: float) -> sgd.Descent:
        return sgd.train(
            self.block,
            self.frequencies,
            self.gradient,
            weights=self.weights,
            logits=self.logits,
            steps=steps,
            optimizer=optimizer,
            **rates,
        )

    def decayed_flow(self, times, *, weight_decay, attention_decay, weight_rate, attention_rate):
        """Gradient flow with weight decay, v (S, K, M) and z (S, M); knows of no invariant."""

        def velocity(_: float, state: np.ndarray) -> np.ndarray:
            w, z = state[:10].reshape(2, 5), state[10:]
            up = self.block.directions(self.frequencies, w, z, self.gradient, sample_weights=np.full(10, 0.1))
            dw = weight_rate * (up.weights - weight_decay * w)
            return np.concatenate([dw.ravel(), attention_rate * (up.logits - attention_decay * z)])

        start = np.concatenate([self.weights.ravel(), self.logits])
        course = solve_ivp(
            velocity, (0, times[-1]), start, t_eval=times, method="DOP853", rtol=1e-11, atol=1e-12
        ).y.T
        return course[:, :10].reshape(-1, 2, 5)[..., :4], course[:, 10:]


@given(
    kind=st.sampled_from(["linear", "exp"]),
    momentum=st.floats(0, 0.97),
    rate=st.floats(1e-4, 0.02),
    ratio=st.floats(0.2, 3),
    seed=st.integers(0, 1000),
)
def test_momentum_identity_is_exact(kind, momentum, rate, ratio, seed) -> None:
    case = Case(Attention(kind=kind, temperature=0.8), seed)
    rates = {"weight_rate": rate * (1 - momentum), "attention_rate": ratio * rate * (1 - momentum)}
    run = case.train(sgd.Optimizer(kind="momentum", momentum=momentum), 60, **rates)
    kept = first_integral(case.attention, run.logits, run.context_weights, **rates)
    predicted = momentum_drift(case.attention, run.context_weights, run.logits, momentum=momentum, **rates)
    np.testing.assert_allclose(kept - kept[0], predicted, rtol=0, atol=1e-12)
    if kind == "exp":
        assert (predicted <= 0).all()


def test_momentum_identity_on_minibatches_and_several_states_at_once() -> None:
    case = Case(EXP, 3)
    rates = {"weight_rate": 0.003, "attention_rate": 0.005}
    run = sgd.train(
        case.block,
        case.frequencies,
        case.gradient,
        weights=np.stack([case.weights, -case.weights, 0 * case.weights]),
        logits=case.logits,
        steps=50,
        optimizer=sgd.Optimizer(kind="momentum", momentum=0.9),
        sample_weights=sgd.minibatches(10, 3, seed=1),
        **rates,
    )
    kept = first_integral(EXP, run.logits, run.context_weights, **rates)
    predicted = momentum_drift(EXP, run.context_weights, run.logits, momentum=0.9, **rates)
    assert predicted.shape == (51, 3, 4)
    np.testing.assert_allclose(kept - kept[0], predicted, rtol=0, atol=1e-12)


def test_without_momentum_it_is_plain_descent() -> None:
    case = Case(LINEAR)
    rates = {"weight_rate": 0.05, "attention_rate": 0.03}
    run = case.train(sgd.Optimizer(), 40, **rates)
    drift = momentum_drift(LINEAR, run.context_weights, run.logits, momentum=0.0, **rates)
    np.testing.assert_allclose(
        drift, run.squared_logit_steps - 0.6 * run.squared_weight_steps, rtol=0, atol=1e-15
    )


def test_momentum_counts_a_squared_step_so_much_more() -> None:
    """Same course, small steps: the drift is (1 + beta) / (1 - beta) times that of plain descent."""
    case, last = Case(EXP), []
    for momentum, steps in ((0.0, 2000), (0.8, 2000)):
        rates = {"weight_rate": 5e-4 * (1 - momentum), "attention_rate": 5e-4 * (1 - momentum)}
        run = case.train(sgd.Optimizer(kind="momentum", momentum=momentum), steps, **rates)
        kept = first_integral(EXP, run.logits, run.context_weights, **rates)
        last.append((kept - kept[0])[-1].sum())
    assert last[1] / last[0] == pytest.approx(9.0, rel=0.02)


@settings(max_examples=15)
@given(
    kind=st.sampled_from(["linear", "exp"]),
    weight_decay=st.floats(0, 1),
    weight_rate=st.floats(0.3, 1.5),
    attention_rate=st.floats(0.3, 1.5),
    seed=st.integers(0, 500),
)
def test_matched_decay_forgets_the_constant_exponentially(
    kind, weight_decay, weight_rate, attention_rate, seed
) -> None:
    case = Case(Attention(kind=kind, temperature=0.8), seed)
    rates = {"weight_rate": weight_rate, "attention_rate": attention_rate}
    times = np.linspace(0, 2, 5)
    attention_decay = matched_decay(case.attention, weight_decay, **rates)
    assert decay_rates(case.attention, weight_decay=weight_decay, attention_decay=attention_decay, **rates)[
        1
    ] == pytest.approx(0, abs=1e-15)
    v, z = case.decayed_flow(times, weight_decay=weight_decay, attention_decay=attention_decay, **rates)
    kept = first_integral(case.attention, z, v, **rates)
    expected = kept[0] * np.exp(-2 * weight_rate * weight_decay * times)[:, None]
    np.testing.assert_allclose(kept, expected, rtol=0, atol=1e-8 * (1 + np.square(z).max()))


@pytest.mark.parametrize("attention", [LINEAR, EXP])
@pytest.mark.parametrize(("weight_decay", "attention_decay"), [(0.4, 0.0), (0.0, 0.3), (0.3, 0.3)])
def test_unmatched_decay_against_integration(attention, weight_decay, attention_decay) -> None:
    case = Case(attention, 5)
    rates = {"weight_rate": 0.9, "attention_rate": 1.2}
    decays = {"weight_decay": weight_decay, "attention_decay": attention_decay}
    errors = []
    for moments in (201, 401):
        times = np.linspace(0, 2, moments)
        v, z = case.decayed_flow(times, **decays, **rates)
        kept = first_integral(attention, z, v, **rates)
        predicted = integral_under_decay(attention, times, v, kept[0], **decays, **rates)
        errors.append(np.abs(predicted - kept).max())
    assert np.abs(kept - kept[0]).max() > 0.02
    assert errors[1] < 1e-5
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)


@given(
    kind=st.sampled_from(["linear", "exp"]),
    weight_decay=st.floats(0, 3),
    decay_logits=st.booleans(),
    rate=st.floats(1e-4, 0.02),
    ratio=st.floats(0.2, 3),
    seed=st.integers(0, 1000),
)
def test_discrete_decay_identity_is_exact(kind, weight_decay, decay_logits, rate, ratio, seed) -> None:
    case = Case(Attention(kind=kind, temperature=0.8), seed)
    rates = {"weight_rate": rate, "attention_rate": ratio * rate}
    rule = sgd.Optimizer(weight_decay=weight_decay, decay_logits=decay_logits)
    run = case.train(rule, 60, **rates)
    kept = first_integral(case.attention, run.logits, run.context_weights, **rates)
    law = descent_under_decay(
        case.attention,
        run.context_weights,
        run.logits,
        weight_decay=weight_decay,
        attention_decay=weight_decay if decay_logits else 0.0,
        **rates,
    )
    np.testing.assert_allclose(kept, law, rtol=0, atol=1e-12)


@pytest.mark.parametrize("attention", [LINEAR, EXP])
def test_at_rest_the_coefficient_is_that_of_the_decays(attention) -> None:
    """Saturating nodes, v and z come to rest, and the logits follow the decays, not the rates."""
    case = Case(attention, 2, "tanh")
    # Without the query's residual, whose weight would saturate the nodes before the tokens' have grown.
    case.block = Block(Embeddings.orthonormal(4, residual=False), attention, activation("tanh"))
    case.logits = np.abs(case.logits) + 0.5
    case.gradient = np.tile([1.5, -1.0], (10, 1))  # strong enough to hold out against the decay
    v, z = case.decayed_flow(
        np.array([0.0, 2000.0]), weight_decay=0.1, attention_decay=0.16, weight_rate=1.0, attention_rate=0.7
    )
    squares = np.square(v[-1]).sum(axis=0)
    assert squares.max() > 0.05
    factor = resting_coefficient(attention, weight_decay=0.1, attention_decay=0.16)
    left = z[-1] ** 2 if attention.kind == "linear" else z[-1]
    np.testing.assert_allclose(left, factor * squares, rtol=1e-6, atol=1e-9)


def test_softmax_sum_decays_alone() -> None:
    case = Case(Attention(kind="softmax"))
    times = np.linspace(0, 3, 4)
    _, z = case.decayed_flow(
        times, weight_decay=0.2, attention_decay=0.5, weight_rate=1.0, attention_rate=0.8
    )
    np.testing.assert_allclose(z.sum(axis=1), z[0].sum() * np.exp(-0.4 * times), rtol=1e-9)


def test_adam_moves_all_tokens_at_one_universal_pace() -> None:
    case = Case(EXP, 1, "linear")
    case.weights, case.logits = 0 * case.weights, 0 * case.logits
    run = case.train(sgd.Optimizer(kind="adam", epsilon=0.0), 1500, weight_rate=1e-6, attention_rate=3e-6)
    size = np.abs(run.context_weights)[1:]
    ratio = run.logits[1:, None] / size / 3
    np.testing.assert_allclose(size, np.broadcast_to(1e-6 * run.times[1:, None, None], size.shape), rtol=2e-3)
    pace = adam_pace(1500)[:, None, None]
    np.testing.assert_allclose(ratio, np.broadcast_to(pace, ratio.shape), rtol=4e-3)


def test_adam_pace_by_enumeration_and_its_limits() -> None:
    first, second = 0.5, 0.75
    expected, m, v = [], 0.0, 0.0
    for n in range(1, 8):
        m, v = first * m + (1 - first) * (n - 1), second * v + (1 - second) * (n - 1) ** 2
        step = 0.0 if n == 1 else (m / (1 - first**n)) / np.sqrt(v / (1 - second**n))
        expected.append(step)
    np.testing.assert_allclose(
        adam_pace(7, betas=(first, second)), np.cumsum(expected) / np.arange(1, 8), rtol=1e-13
    )
    assert adam_pace(2000, betas=(0.0, 1 - 1e-9))[-1] == pytest.approx(np.sqrt(3), rel=2e-3)
    assert adam_pace(200_000, betas=(0.5, 0.9))[-1] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: decay_rates(EXP, weight_decay=-1.0, attention_decay=0.0), "weight_decay"),
        (lambda: decay_rates(EXP, weight_decay=0.1, attention_decay=0.1, weight_rate=0.0), "weight_rate"),
        (lambda: matched_decay(Attention(), 0.1), "softmax"),
        (lambda: resting_coefficient(EXP, weight_decay=0.1, attention_decay=0.0), "above 0"),
        (lambda: momentum_drift(EXP, np.zeros((2, 1, 3)), np.zeros((2, 3)), momentum=1.0), "momentum"),
        (lambda: momentum_drift(EXP, np.zeros((2, 1, 3)), np.zeros((2, 4)), momentum=0.5), "match"),
        (
            lambda: integral_under_decay(
                EXP, [0.0, 0.0], np.zeros((2, 1, 3)), np.zeros(3), weight_decay=0.1, attention_decay=0.1
            ),
            "increase",
        ),
        (
            lambda: descent_under_decay(
                EXP, np.zeros((2, 1, 3)), np.zeros((2, 3)), weight_decay=2.0, attention_decay=0.1
            ),
            "below 1",
        ),
        (lambda: adam_pace(0), "steps"),
        (lambda: adam_pace(5, betas=(1.0, 0.9)), "betas"),
    ],
)
def test_bad_input(call, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()
