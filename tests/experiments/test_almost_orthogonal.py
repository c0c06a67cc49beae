from __future__ import annotations

import pandas as pd
import pytest

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.joma_paper.almost_orthogonal import AlmostOrthogonal

TINY = {
    "tokens": 6,
    "nodes": 2,
    "samples": 10,
    "dimensions": (4, 24, 96, 384),
    "seeds": 4,
    "end": 5.0,
    "vocabulary": 100,
}


@pytest.fixture(scope="module")
def tables():
    return AlmostOrthogonal(**TINY).run(Progress(quiet=True))


def test_orthonormal_embeddings_do_not_drift(tables) -> None:
    null = tables["drift"].query("dimension == 0")
    assert null.query("metric == 'drift'")["value"].max() < 1e-8
    real = tables["drift"].query("dimension == 4 and metric == 'drift'")
    assert real["value"].min() > 1e-2


def test_drift_stays_within_its_bound(tables) -> None:
    share = tables["drift"].query("metric == 'of_bound' and dimension > 0")
    assert set(share["dimension"]) == {24, 96, 384}
    assert 0 < share["value"].max() <= 1


def test_measured_coherence_lies_between_welch_and_one(tables) -> None:
    wide = tables["coherence"].pivot_table(index="dimension", columns="metric", values="value")
    assert (wide["welch"] <= wide["measured"]).all()
    assert wide["measured"].to_numpy() == pytest.approx(wide["predicted"].to_numpy(), rel=0.15)


def test_printed_dimension_is_loose(tables) -> None:
    wide = tables["dimensions"].pivot_table(index=["tokens", "epsilon"], columns="metric", values="value")
    assert (wide["random"] < 0.55 * wide["printed"]).all()
    assert (wide["printed"] < wide["lemma"]).all()


def test_claims(tables) -> None:
    claims = {claim.id: claim for claim in AlmostOrthogonal(**TINY).claims(tables)}
    for attention in ("linear", "exp", "softmax"):
        claim = claims[f"almost_orthogonal.survivor_{attention}"]
        assert claim.verdict == "holds"
        assert claim.null > 1e6 * claim.tolerance
    assert claims["almost_orthogonal.order"].measured == pytest.approx(-0.5, abs=0.25)
    assert claims["almost_orthogonal.dimension"].verdict == "holds"


def test_a_typical_drift_that_is_15_percent_off_is_seen(tables) -> None:
    drift = tables["drift"].copy()
    for metric in ("drift", "typical"):
        drift.loc[drift["metric"] == metric, "value"] = drift["dimension"].clip(lower=1) ** -0.5
    for factor, verdict in ((1.0, "holds"), (1.15, "fails"), (1 / 1.15, "fails")):
        changed = drift.assign(
            value=drift["value"].where(drift["metric"] != "typical", drift["value"] * factor)
        )
        claims = {c.id: c for c in AlmostOrthogonal(**TINY).claims({**tables, "drift": changed})}
        assert claims["almost_orthogonal.typical"].verdict == verdict


def test_same_seed_same_tables(tables) -> None:
    again = AlmostOrthogonal(**TINY).run(Progress(quiet=True))
    pd.testing.assert_frame_equal(tables["drift"], again["drift"], check_exact=True)


def test_figure(tables, tmp_path) -> None:
    with style("dark"):
        AlmostOrthogonal(**TINY).draw(tables).savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_bad_settings() -> None:
    with pytest.raises(InputError, match="dimensions"):
        AlmostOrthogonal(dimensions=(8, 1))
