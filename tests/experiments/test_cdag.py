from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.joma_paper.cdag import Cdag
from joma.experiments.joma_paper.cdag.network import Network
from joma.experiments.joma_paper.cdag.run import _quadruples, _unit
from joma.theory.feature_graph import Signals, angle_sum

TINY = Cdag(classes=2, samples=120, width=4, steps=20, measurements=4, seeds=2)


@pytest.fixture(scope="module")
def tables():
    return TINY.run(Progress(quiet=True))


@pytest.fixture(scope="module")
def network():
    random = np.random.default_rng(0)
    return Network(random.random((50, 6)), random.integers(0, 3, 50), 4, random)


@pytest.mark.parametrize("kind", ["plain", "residual", "linear"])
def test_gradients_are_autograds(kind):
    random = np.random.default_rng(0)
    network = Network(
        random.random((50, 6)),
        random.integers(0, 3, 50),
        4,
        random,
        linear=kind == "linear",
        residual=kind == "residual",
    )
    _, gradients = network.passes()
    x, y = torch.tensor(network.inputs), torch.tensor(network.targets)
    parameters = [torch.tensor(w, requires_grad=True) for w in network.weights]
    biases = [torch.tensor(b, requires_grad=True) for b in network.biases]
    below, preactivations = x, []
    for weight, bias in zip(parameters, biases, strict=True):
        preactivations.append(below @ weight.T + bias)
        preactivations[-1].retain_grad()
        reached = preactivations[-1] if kind == "linear" else torch.relu(preactivations[-1])
        first = len(preactivations) == 1 or kind != "residual"
        below = reached if first or reached.shape != below.shape else reached + below
    (torch.log_softmax(preactivations[-1], 1) * y).sum().backward()
    for found, expected in zip(gradients, preactivations, strict=True):
        np.testing.assert_allclose(found, expected.grad.numpy(), atol=1e-14)


def test_shares_are_counted_as_the_theory_counts(network):
    """Every quadruple one by one, through feature_graph's own functions."""
    activations, gradients = network.passes()
    latents = _unit(np.random.default_rng(1).standard_normal((50, 5)))
    counts = {"hypotheses": 0, "draft fails": 0, "condition": 0, "condition fails": 0}
    for a, j, b, k in itertools.product(range(5), range(3), range(5), range(4)):
        if not activations[2][:, k].any():
            continue
        signals = Signals(latents[:, a], latents[:, b], activations[2][:, k], gradients[2][:, j])
        c1, c2, c3 = (float(c) for c in signals.hypotheses())
        if min(c1, c2, abs(c3)) <= 0.05:
            continue
        fails = float(signals.conclusion()) <= 0
        meets = float(angle_sum(c1, c2, c3)) < np.pi / 2
        counts["hypotheses"] += 1
        counts["draft fails"] += fails
        counts["condition"] += meets
        counts["condition fails"] += fails and meets
    rows = _quadruples(Cdag(least_correlation=0.05), network, activations, gradients, [latents])
    found = {row["metric"]: row["value"] for row in rows if row["layer"] == "output"}
    assert counts["hypotheses"] > 0
    assert counts["draft fails"] > 0
    assert found["draft fails"] == pytest.approx(counts["draft fails"] / counts["hypotheses"], abs=1e-12)
    assert found["meets the condition"] == pytest.approx(
        counts["condition"] / counts["hypotheses"], abs=1e-12
    )


def test_the_draft_fails_in_a_network(tables):
    verdicts = {claim.id: claim.verdict for claim in TINY.claims(tables)}
    assert verdicts["cdag.theorem"] == "fails"
    assert len(verdicts) == 9


def test_claims_see_the_opposite(tables):
    alignment = tables["alignment"].copy()
    ids = ("cdag.near_loss", "cdag.near_input", "cdag.latents_are_learned")
    learned = (alignment["latents"] == "true") & (alignment["step"] > 0)
    near = {"activation": "hidden 1", "gradient": "hidden 2"}
    for sign, verdict in ((1, "holds"), (-1, "fails")):
        alignment["value"] = 0.0
        is_near = alignment["layer"] == alignment["metric"].map(near)
        alignment.loc[learned, "value"] = sign * (0.2 + 0.2 * is_near)
        found = {c.id: c.verdict for c in TINY.claims({**tables, "alignment": alignment})}
        assert [found[name] for name in ids] == [verdict] * 3
    alignment.loc[alignment["seed"] == alignment["seed"].min(), "value"] = 0.0  # one seed is enough to fail
    found = {c.id: c.verdict for c in TINY.claims({**tables, "alignment": alignment})}
    assert [found[name] for name in ids] == ["fails"] * 3
    shares = tables["quadruples"].copy()
    shares.loc[shares["metric"] == "condition fails", "value"] = 0.2
    verdicts = {c.id: c.verdict for c in TINY.claims({**tables, "quadruples": shares})}
    assert verdicts["cdag.theorem"] == "fails"


def test_training_learns_the_class():
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 60)
    network = Network(np.eye(2)[labels] + 0.1 * random.standard_normal((60, 2)), labels, 8, random)
    for _ in range(200):
        network.ascend(*network.passes(), 0.5)
    assert np.abs(network.passes()[1][-1]).max() < 0.2


def test_repeats_and_draws(tables, tmp_path):
    again = TINY.run(Progress(quiet=True))
    for name, table in tables.items():
        pd.testing.assert_frame_equal(table, again[name], check_exact=True)
    with style("dark"):
        TINY.draw(tables).savefig(tmp_path / "figure.png")


def test_bad_settings():
    with pytest.raises(InputError, match="least_correlation"):
        Cdag(least_correlation=1.0)
    with pytest.raises(InputError, match="draw more"):
        Cdag(classes=8, samples=10, seeds=1).run(Progress(quiet=True))
