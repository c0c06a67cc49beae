"""Fig. 5's block where attention learns faster: its parts against the block and against exact flows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from joma.dynamics.sgd import train
from joma.experiments.joma_paper.fig5 import Fig5, rate_ratios
from joma.experiments.joma_paper.fig5.run import contexts
from joma.theory import block_salience
from joma.theory.activation import activation
from joma.theory.attention import Attention
from joma.theory.block import Block, Embeddings


def _contexts(depth: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return contexts(Fig5(depth=depth))[:3]


@pytest.mark.parametrize("kappa", [1.0, 7.0])
def test_the_descent_is_that_of_the_block_itself(kappa):
    x, y, p = _contexts()
    size, start = x.shape[1], 0.3
    kinds = Block(Embeddings.orthonormal(size), Attention(kind="exp"), activation("relu"))
    found = train(
        kinds,
        x,
        lambda _, activity: y[:, None] - expit(activity.hidden),
        weights=np.append(np.full(size, start), 0.0)[None],
        logits=np.full(size, 0.5 * kappa * start**2),
        steps=200,
        weight_rate=0.01,
        attention_rate=0.01 * kappa,
        sample_weights=p,
    )
    course, attended = rate_ratios.descend(
        (x, y, p), np.array([3.0, kappa]), start=start, time=2.0, step=0.01
    )
    wanted = found.context_weights[-1, 0] * np.exp(found.logits[-1])
    np.testing.assert_allclose(attended[1], wanted, rtol=1e-12)
    np.testing.assert_allclose(course[-1, 1], block_salience.entropy(found.logits[-1]), rtol=1e-12)
    assert course.shape == (21, 2)


def test_components_with_theorem_3s_drift_are_the_exact_flow():
    """Uniform attention with C = I: u = mu (1 - e^-t), so that the clock of the law is the block's own."""
    mu, times = np.array([3.0, 2.0, 0.7]), np.geomspace(1e-4, 40.0, 60_000)
    uniform = -np.expm1(-times)[:, None] * mu
    law = rate_ratios.of_components(np.vstack([np.zeros(3), uniform]), np.append(0.0, times), 2.0)
    flow = block_salience.solve(mu, np.geomspace(1e-3, 20.0, 4000), kappa=2.0).entropy
    assert law.min() == pytest.approx(flow.min(), abs=1e-6)
    assert rate_ratios.rebound(law) == pytest.approx(rate_ratios.rebound(flow), rel=1e-4)


def test_the_threshold_lies_between_the_values_around_it():
    kappas, rebounds = np.array([1.0, 10.0, 100.0]), np.array([0.0, 0.02, 0.3])
    assert rate_ratios.threshold(kappas, rebounds, 0.01) == pytest.approx(np.sqrt(10.0))
    assert rate_ratios.threshold(kappas, rebounds, 0.02) == pytest.approx(10.0)
    assert rate_ratios.threshold(kappas, rebounds, 0.4) == np.inf
    assert rate_ratios.threshold(kappas, rebounds + 1, 0.4) == 1.0


def test_a_small_tree_follows_the_law_of_its_own_drift():
    found = rate_ratios.table(_contexts(), np.array([30.0]), start=0.02, time=60.0, step=0.01)
    value = found.set_index("run")["value"]
    assert value["trained"] > 0.05
    assert value["drift"] == pytest.approx(value["trained"], rel=0.1)


@pytest.mark.slow
def test_threshold_and_rebound_of_figure_5():
    settings = Fig5()
    found = rate_ratios.table(
        _contexts(settings.depth), np.array(settings.rate_ratios), start=0.02, time=120.0, step=0.01
    )
    wide = found.pivot_table(index="kappa", columns="run", values="value")
    trained, law = wide["trained"].to_numpy(), wide["drift"].to_numpy()
    kappas = wide.index.to_numpy()
    assert wide["trained"][[1.0, 4.0, 10.0, 30.0, 100.0]].to_numpy() == pytest.approx(
        [0.0, 0.0136, 0.0470, 0.1353, 0.2907], abs=2e-4
    )
    for level in (0.01, 0.1):
        wanted = rate_ratios.threshold(kappas, trained, level)
        assert rate_ratios.threshold(kappas, law, level) == pytest.approx(wanted, rel=0.2)
    deep = trained > 0.05
    assert deep.sum() >= 2
    np.testing.assert_allclose(law[deep], trained[deep], rtol=0.25)
    # The law of C = I about uniform attention's end does not reach that.
    assert (wide["rest"].to_numpy()[deep] / trained[deep]).min() > 1.25
