from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.dynamics import sgd
from joma.experiments.joma_paper.fig2 import Fig2
from joma.experiments.joma_paper.fig2.run import _metrics
from joma.experiments.shared.classes_training import ClassesTraining, train_classes
from joma.theory.attention import Attention
from joma.theory.block import Block, CrossEntropyGradient, Embeddings

TINY = {"runs": 2, "steps": 60, "classes": 6, "distinct": 4, "common": 3, "record_every": 20}


@pytest.fixture(scope="module")
def tables():
    return Fig2(**TINY).run(Progress(quiet=True))


def test_tables_are_tidy_complete_and_repeat_bit_for_bit(tables):
    curves = tables["curves"]
    assert list(curves["step"].unique()) == [0, 20, 40, 60]
    assert set(curves["data"]) == {"smooth", "random"}
    assert not curves["value"].isna().any()
    again = Fig2(**TINY).run(Progress(quiet=True))
    for name, table in tables.items():
        pd.testing.assert_frame_equal(table, again[name], check_exact=True)
    other = Fig2(**TINY, seed=1).run(Progress(quiet=True))
    assert not np.allclose(other["curves"]["value"], curves["value"])


def test_logits_that_follow_equation_17_are_foretold_exactly():
    random = np.random.default_rng(0)
    squares, frequencies = random.random((5, 2, 4)), random.random((2, 3, 4))
    bbar = frequencies.mean(axis=1)
    logits = (squares - squares.sum(axis=-1, keepdims=True) * bbar) / (2 * 0.7) + random.random((1, 2, 4))
    course = ClassesTraining(
        logits=logits,
        squares=squares,
        frequencies=frequencies,
        mean_scores=np.broadcast_to(bbar, logits.shape),
        correction=np.zeros_like(logits),
        squared_steps=np.zeros_like(logits),
        steps=np.arange(5.0),
        node=np.zeros_like(logits),
        final_weights=np.zeros((2, 3, 4)),
    )
    found = _metrics(course, 0.7, seed=0)
    assert found["error"] == pytest.approx(0, abs=1e-14)
    assert found["error_moving"] == pytest.approx(0, abs=1e-14), "bbar that does not move"
    assert found["correlation"] == pytest.approx(1, abs=1e-14)
    assert found["correlation_1"].max() < 0.99


def test_a_seed_alone_is_what_it_is_beside_others():
    pair = train_classes("smooth", seeds=[3, 4], steps=40, nodes=5, distinct=4, common=3)
    alone = train_classes("smooth", seeds=[4], steps=40, nodes=5, distinct=4, common=3)
    np.testing.assert_allclose(pair.logits[:, 1], alone.logits[:, 0], atol=1e-14)
    np.testing.assert_allclose(pair.final_weights[1], alone.final_weights[0], atol=1e-13)


def test_the_training_is_that_of_a_plain_torch_script():
    course = train_classes("random", seeds=[5], steps=50, nodes=5, distinct=4, common=3)
    start = np.random.default_rng([5, 1])
    w = torch.tensor(0.01 * start.normal(size=(5, 8)), requires_grad=True)
    z = torch.tensor(0.01 * start.normal(size=7), requires_grad=True)
    optimizer = torch.optim.SGD([w, z], lr=0.1)
    x = torch.tensor(course.frequencies[0])
    for _ in range(50):
        optimizer.zero_grad()
        b = x * (z / 0.5).exp()
        f = torch.cat([b / b.sum(dim=1, keepdim=True), torch.ones(5, 1)], dim=1)
        torch.nn.functional.cross_entropy(f @ w.T, torch.arange(5)).backward()
        optimizer.step()
    np.testing.assert_allclose(course.logits[-1, 0], z.detach(), atol=1e-14)
    np.testing.assert_allclose(course.final_weights[0], w.detach()[:, :7], atol=1e-13)


@pytest.mark.parametrize(
    ("smooth", "final", "first", "error"),
    [
        (
            True,
            [0.9755, 0.9953, 0.9954, 0.9954, 0.9947],
            [0.9693, 0.9895, 0.9890, 0.9875, 0.9885],
            (7.05, 7.86),
        ),
        (
            False,
            [0.9541, 0.9421, 0.9369, 0.9309, 0.9708],
            [0.9491, 0.9378, 0.9350, 0.8814, 0.9606],
            (2.78, 5.62),
        ),
    ],
)
def test_the_numbers_of_the_authors_script_for_five_seeds(smooth, final, first, error):
    """Measured independently with the script itself, float32, drawn in its order after torch.manual_seed."""
    data, weights, logits = [], [], []
    for seed in range(5):
        torch.manual_seed(seed)
        x = torch.rand(20, 20) / 2
        if smooth:
            for y in range(20):
                x[:10, y] = (-((torch.arange(10) - y / 2) ** 2) / 30).exp()
        w, z = torch.randn(30, 20) / 100, torch.randn(20) / 100
        data.append((x / x.sum(dim=0)).T.double().numpy())
        weights.append(w.T.double().numpy()[:, :21])
        logits.append(z.double().numpy())
    x = np.stack(data)
    run = sgd.train(
        Block(Embeddings.orthonormal(20), Attention(temperature=0.5)),
        x,
        CrossEntropyGradient(tuple(range(20))),
        weights=np.stack(weights),
        logits=np.stack(logits),
        steps=1999,
        weight_rate=0.1,
        attention_rate=0.1,
        record_every=1999,
    )
    part = (run.context_weights**2).sum(axis=-2)
    whole = part - x.mean(axis=1) * (run.weights**2).sum(axis=(-2, -1))[..., None]
    predicted = whole[1] - whole[0] + run.logits[0]

    def correlation(a):
        return [np.corrcoef(one, two)[0, 1] for one, two in zip(a, run.logits[-1], strict=True)]

    np.testing.assert_allclose(correlation(predicted), final, atol=2e-4)
    np.testing.assert_allclose(correlation(part[1]), first, atol=2e-4)
    errors = np.linalg.norm(predicted - run.logits[-1], axis=-1) / np.linalg.norm(run.logits[-1], axis=-1)
    np.testing.assert_allclose([errors.min(), errors.max()], error, atol=0.01)


def test_the_paper_s_numbers_at_full_length():
    table = Fig2(runs=2, record_every=500).run(Progress(quiet=True))
    final = table["summary"].query("statistic == 'final'").groupby(["data", "metric"])["value"].median()
    assert final["smooth", "correlation"] > 0.97
    assert 0.88 < final["random", "correlation"] < 0.99
    assert final["smooth", "correlation_1"] > 0.96
    assert abs(final["smooth", "correlation_2"]) < 0.05
    assert 6 < final["smooth", "error"] < 9
    verdicts = {claim.id: claim for claim in Fig2(runs=2).claims(table)}
    assert verdicts["fig2.smooth_part_1"].verdict == "fails"
    assert verdicts["fig2.smooth_scale"].verdict == "fails"
    assert verdicts["fig2.smooth_correlation"].verdict == "holds"
    assert verdicts["fig2.smooth_identity"].verdict == "holds"
    assert verdicts["fig2.smooth_identity"].null > 1e-4


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure_is_drawn_in_both_themes(tables, theme, tmp_path):
    with style(theme):
        Fig2(**TINY).draw(tables).savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_settings_out_of_range_are_refused():
    with pytest.raises(InputError, match=r"temperature = 0\.0"):
        Fig2(temperature=0.0)


def test_the_prediction_is_equation_18_written_out():
    """Token by token, with plain loops: correlation and relative error of the logits in every run."""
    temperature = 0.5
    course = train_classes("smooth", seeds=(3, 4), steps=25, rate=0.3, nodes=4, distinct=3, common=2)
    found = _metrics(course, temperature, seed=0)
    x, z, squares = course.frequencies, course.logits, course.squares
    classes, tokens = x.shape[1:]
    for step, run in itertools.product((5, 25), (0, 1)):
        predicted = []
        for token in range(tokens):
            mean = sum(x[run, c, token] for c in range(classes)) / classes
            now, start = (
                (squares[s, run, token] - mean * squares[s, run].sum()) / (2 * temperature) for s in (step, 0)
            )
            predicted.append(z[0, run, token] + now - start)
        error = np.linalg.norm(z[step, run] - predicted) / np.linalg.norm(z[step, run])
        assert found["error"][step, run] == pytest.approx(error, rel=1e-9)
        assert found["correlation"][step, run] == pytest.approx(
            np.corrcoef(predicted, z[step, run])[0, 1], rel=1e-9
        )
