from __future__ import annotations

import numpy as np
import pytest
import torch

from joma.core.errors import DivergenceError, InputError
from joma.dynamics import block_flow, sgd
from joma.theory.activation import activation
from joma.theory.attention import Attention
from joma.theory.block import Block, CrossEntropyGradient, Embeddings

LABELS = (0, 1, 2, 1, 0)
RATES = {"weight_rate": 0.1, "attention_rate": 0.05}


def example(batch=(), seed=0, name="gelu"):
    rng = np.random.default_rng(seed)
    block = Block(Embeddings.orthonormal(4), Attention(temperature=0.8), activation(name))
    x = rng.dirichlet(np.ones(4), (*batch, 5))
    start = {"weights": 0.3 * rng.normal(size=(*batch, 3, 5)), "logits": 0.3 * rng.normal(size=(*batch, 4))}
    return block, x, start


@pytest.mark.parametrize(
    ("rule", "make"),
    [
        (sgd.Optimizer(), lambda g: torch.optim.SGD(g)),
        (sgd.Optimizer(weight_decay=0.1), lambda g: torch.optim.SGD(g, weight_decay=0.1)),
        (
            sgd.Optimizer(kind="momentum", momentum=0.8, weight_decay=0.05),
            lambda g: torch.optim.SGD(g, momentum=0.8, weight_decay=0.05),
        ),
        (
            sgd.Optimizer(kind="nesterov", momentum=0.8),
            lambda g: torch.optim.SGD(g, momentum=0.8, nesterov=True),
        ),
        (
            sgd.Optimizer(kind="adam", betas=(0.8, 0.95)),
            lambda g: torch.optim.Adam(g, betas=(0.8, 0.95)),
        ),
        (
            sgd.Optimizer(kind="adam", weight_decay=0.1, decoupled=True),
            lambda g: torch.optim.AdamW(g, weight_decay=0.1),
        ),
    ],
)
def test_every_optimizer_is_that_of_torch(rule, make):
    block, x, start = example()
    run = sgd.train(block, x, CrossEntropyGradient(LABELS), steps=25, optimizer=rule, **start, **RATES)
    w = torch.tensor(start["weights"], requires_grad=True)
    z = torch.tensor(start["logits"], requires_grad=True)
    optimizer = make([{"params": [w], "lr": 0.1}, {"params": [z], "lr": 0.05}])
    for _ in range(25):
        optimizer.zero_grad()
        b = torch.tensor(x) * (z / 0.8).exp()
        f = torch.cat([b / b.sum(dim=1, keepdim=True), torch.ones(5, 1)], dim=1)
        hidden = torch.nn.functional.gelu(f @ w.T)
        torch.nn.functional.cross_entropy(hidden, torch.tensor(LABELS)).backward()
        optimizer.step()
    np.testing.assert_allclose(run.weights[-1], w.detach(), atol=1e-12)
    np.testing.assert_allclose(run.logits[-1], z.detach(), atol=1e-12)


def test_seeds_side_by_side_are_what_they_are_alone():
    block, x, start = example(batch=(4,))
    rule = sgd.Optimizer(kind="adam")
    together = sgd.train(block, x, CrossEntropyGradient(LABELS), steps=20, optimizer=rule, **start, **RATES)
    alone = sgd.train(
        block,
        x[2],
        CrossEntropyGradient(LABELS),
        steps=20,
        optimizer=rule,
        weights=start["weights"][2],
        logits=start["logits"][2],
        **RATES,
    )
    np.testing.assert_allclose(together.weights[:, 2], alone.weights, atol=1e-13)
    np.testing.assert_allclose(together.squared_weight_steps[:, 2], alone.squared_weight_steps, rtol=1e-10)


def test_small_steps_follow_the_flow_with_an_error_of_first_order():
    block, x, start = example()
    gradient = CrossEntropyGradient(LABELS)
    flow = block_flow.solve(block, x, gradient, times=[0, 2], **start)
    errors = []
    for steps in (50, 100):
        rate = 2 / steps
        run = sgd.train(
            block,
            x,
            gradient,
            steps=steps,
            weight_rate=rate,
            attention_rate=rate,
            record_every=steps,
            **start,
        )
        errors.append(np.abs(run.weights[-1] - flow.weights[-1]).max())
        np.testing.assert_allclose(run.correction[-1], flow.correction[-1], atol=5 * rate)
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.1)


def test_records_and_observations_are_kept_when_asked_and_the_last_always():
    block, x, start = example()
    run = sgd.train(
        block,
        x,
        CrossEntropyGradient(LABELS),
        steps=7,
        record_every=3,
        observe=lambda seen: {
            "sum": seen.logits.sum(),
            "first": seen.buffers.get("weights.first", np.zeros(1))[0],
        },
        observe_every=2,
        **start,
        **RATES,
    )
    np.testing.assert_array_equal(run.times, [0, 3, 6, 7])
    np.testing.assert_array_equal(run.observed_steps, [0, 2, 4, 6, 7])
    np.testing.assert_allclose(run.observed["sum"][-1], run.logits[-1].sum())
    np.testing.assert_array_equal(run.weights[0], start["weights"])


def test_minibatches_repeat_and_average_to_the_whole():
    draw = sgd.minibatches(6, 2, seed=3)
    np.testing.assert_array_equal(draw(5), draw(5))
    drawn = np.stack([draw(step) for step in range(600)])
    np.testing.assert_allclose(drawn.sum(axis=1), 1)
    assert ((drawn > 0).sum(axis=1) == 2).all()
    np.testing.assert_allclose(drawn.mean(axis=0), 1 / 6, atol=4 * np.sqrt(1 / 3 * 2 / 3 / 4 / 600))


def test_a_component_without_gradient_stays_put_under_adam_with_epsilon_zero():
    block, x, start = example()
    rule = sgd.Optimizer(kind="adam", epsilon=0.0)
    run = sgd.train(block, x, np.zeros((5, 3)), steps=3, optimizer=rule, **start, **RATES)
    np.testing.assert_array_equal(run.weights[-1], start["weights"])


def test_wrong_arguments_are_refused_and_divergence_is_named():
    block, x, start = example()
    gradient = CrossEntropyGradient(LABELS)
    with pytest.raises(InputError, match="steps = 0"):
        sgd.train(block, x, gradient, steps=0, **start, **RATES)
    with pytest.raises(InputError, match="did you mean 'adam'"):
        sgd.Optimizer(kind="adm")
    with pytest.raises(InputError, match=r"momentum holds 1.0"):
        sgd.Optimizer(momentum=1.0)
    with pytest.raises(InputError, match="weight_decay"):
        sgd.Optimizer(weight_decay=-1.0)
    with pytest.raises(InputError, match="size = 7"):
        sgd.minibatches(6, 7, seed=0)
    explosive = Block(block.embeddings, Attention(kind="exp"), block.activation)
    with pytest.raises(DivergenceError):
        sgd.train(explosive, x, np.ones((5, 3)), steps=400, weight_rate=5.0, attention_rate=5.0, **start)
