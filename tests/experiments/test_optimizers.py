from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.beyond.optimizers import OPTIMIZERS, Optimizers

TINY = {"seeds": 2, "classes": 4, "tokens": 5, "steps": 150, "halvings": 1}


@pytest.fixture(scope="module")
def tables():
    return Optimizers(**TINY).run(Progress(quiet=True))


def ends(tables, metric: str) -> pd.Series:
    chosen = tables["rates"][tables["rates"]["metric"] == metric]
    return chosen.groupby(["attention", "optimizer", "rate"])["value"].max()


def test_laws_leave_rounding_only(tables) -> None:
    left = ends(tables, "law")
    assert set(left.index.get_level_values("optimizer")) == {"sgd", "momentum", "weight decay"}
    assert left.max() < 1e-10


def test_every_optimizer_has_its_course_and_its_attention(tables) -> None:
    assert set(tables["drift"]["optimizer"]) == set(OPTIMIZERS) == set(tables["attention"]["optimizer"])
    entropies = tables["attention"].query("metric == 'entropy'")["value"]
    assert entropies.between(0, np.log(5) + 1e-12).all()
    assert tables["rates"]["value"].notna().all()


def test_steps_matter_to_descent_and_not_to_adam(tables) -> None:
    drift = ends(tables, "constant")["exp"]
    sgd, adam = drift["sgd"].to_numpy(), drift["adam"].to_numpy()
    assert sgd[1] / sgd[0] == pytest.approx(2, rel=0.1)
    assert adam[1] / adam[0] == pytest.approx(1, rel=0.3)
    assert adam[0] > 100 * sgd[0]


def test_claims(tables) -> None:
    claims = {claim.id: claim for claim in Optimizers(**TINY).claims(tables)}
    assert len(claims) == 6
    for name in (
        "sgd_linear_order",
        "momentum_exp_order",
    ):
        assert claims[f"optimizers.{name}"].verdict == "holds"
    assert all(claim.null is not None for claim in claims.values())


def test_same_seed_same_tables(tables) -> None:
    again = Optimizers(**TINY).run(Progress(quiet=True))
    for name, table in tables.items():
        pd.testing.assert_frame_equal(table, again[name], check_exact=True)


def test_figure(tables, tmp_path) -> None:
    with style("dark"):
        Optimizers(**TINY).draw(tables).savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_bad_settings() -> None:
    with pytest.raises(InputError, match="momentum"):
        Optimizers(momentum=1.0)
