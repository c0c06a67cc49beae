from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from joma.core.claim import Claim
from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.beyond.embeddings import MODELS, Embeddings
from joma.experiments.beyond.embeddings import claims as embeddings_claims
from joma.experiments.beyond.embeddings.problem import Problem

TINY = {"seeds": 1, "tokens": 4, "classes": 3, "dimension": 6, "end": 4.0, "moments": 9}


@pytest.fixture(scope="module")
def tables():
    return Embeddings(**TINY).run(Progress(quiet=True))


def ends(tables) -> pd.Series:
    drift = tables["drift"].query("scale == 1.0")
    return drift.groupby(["model", "metric", "attention"])["value"].last()


def test_each_constant_is_kept_where_it_should_be(tables) -> None:
    last = ends(tables)
    kept = [
        ("free", "theorem 1"),
        ("one matrix", "theorem 1"),
        ("two matrices", "balance"),
        ("free, embeddings learn", "norm"),
        ("free, embeddings learn", "block"),
        ("two matrices, embeddings learn", "balance"),
        ("two matrices, embeddings learn", "block"),
    ]
    for model, metric in kept:
        assert last[model, metric].max() < 1e-8, (model, metric)


def test_theorem_1_is_lost_where_it_should_be(tables) -> None:
    last = ends(tables)
    for model in ("two matrices", "free, embeddings learn", "two matrices, embeddings learn"):
        assert last[model, "theorem 1"].min() > 0.05, model


def test_ascent_is_the_gradient_by_finite_differences() -> None:
    problem = Problem(Embeddings(**TINY), "softmax", "factors", 1.0, 0)
    names = list(problem.start)
    gradient = problem.ascent(problem.start, names)
    generator = torch.Generator().manual_seed(0)
    for name in names:
        along = torch.randn(problem.start[name].shape, generator=generator, dtype=torch.float64)
        up, down = (
            problem.loss(problem.start | {name: problem.start[name] + sign * 1e-6 * along})
            for sign in (1, -1)
        )
        slope = -(up - down) / 2e-6
        assert float((gradient[name] * along).sum()) == pytest.approx(float(slope), rel=1e-5, abs=1e-9)


def test_loss_falls_and_everything_is_finite(tables) -> None:
    course = tables["course"]
    assert np.isfinite(course["value"]).all()
    assert set(course["model"]) == set(MODELS)
    loss = course[course["metric"] == "loss"].groupby(["attention", "model", "scale"])["value"]
    assert (loss.last() < loss.first()).all()


def test_claims(tables) -> None:
    claims = {claim.id: claim for claim in Embeddings(**TINY).claims(tables)}
    assert len(claims) == 12
    for name in ("one_matrix_exp", "norm_linear", "balance_softmax", "block_exp"):
        assert claims[f"embeddings.{name}"].verdict == "holds"
    assert claims["embeddings.norm_exp"].null > 1e4 * claims["embeddings.norm_exp"].tolerance


def test_one_matrix_moves_as_free_logits_and_a_faster_clock_is_no_acceleration(tables) -> None:
    course = tables["course"].copy()
    assert _claim(course).null == pytest.approx(1.0, abs=1e-6)
    motion = (course["metric"] == "motion") & (course["attention"] == "exp")
    course.loc[motion, "value"] = course["step"]  # linear in time, at three times the speed
    course.loc[motion & (course["model"] == "two matrices"), "value"] *= 3.0
    assert _claim(course).verdict == "fails"
    assert _claim(course).measured == pytest.approx(1.0)
    # Not faster at first, and ever faster then: at three times the speed, half the way lies before the first
    # moment of this coarse course.
    course.loc[motion & (course["model"] == "two matrices"), "value"] *= (1 + course["step"]) / 3.0
    assert _claim(course).verdict == "holds"


def _claim(course: pd.DataFrame) -> Claim:
    return embeddings_claims._accelerates(Embeddings(**TINY), course)


def test_same_seed_same_tables(tables) -> None:
    again = Embeddings(**TINY).run(Progress(quiet=True))
    pd.testing.assert_frame_equal(tables["drift"], again["drift"], check_exact=True)


def test_figure(tables, tmp_path) -> None:
    with style("dark"):
        Embeddings(**TINY).draw(tables).savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"dimension": 8}, "exceed tokens"), ({"tokens": 7}, "pairs"), ({"end": 0.0}, "end")],
)
def test_bad_settings(settings, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Embeddings(**settings)
