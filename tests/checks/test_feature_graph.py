from __future__ import annotations

import numpy as np
import pytest

from joma.checks import feature_graph as checks
from joma.theory import feature_graph as graph

CORRECTED = {
    "cdag.theorem1",
    "cdag.normalisation",
    "cdag.weight",
    "cdag.recursion",
    "cdag.equation3",
}


@pytest.fixture(scope="module")
def claims():
    return {claim.id: claim for claim in checks.cdag()}


def test_verdicts(claims) -> None:
    assert all(name.startswith("cdag.") for name in claims)
    assert {name for name, claim in claims.items() if claim.verdict == "corrected"} == CORRECTED
    assert all(claim.verdict == "holds" for name, claim in claims.items() if name not in CORRECTED)


def test_equation_2_has_a_null_that_fails_it(claims) -> None:
    assert claims["cdag.equation2"].null > 1e3 * claims["cdag.equation2"].tolerance


def test_a_guarantee_too_good_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = graph.guaranteed_correlation
    monkeypatch.setattr(graph, "guaranteed_correlation", lambda *c: np.asarray(right(*c)) + 1e-3)
    verdicts = {claim.id: claim.verdict for claim in checks.theorem()}
    assert verdicts["cdag.theorem1"] == verdicts["cdag.sharp"] == "fails"


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_another_gated_bound_is_found_out(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    right = graph.gated_correlation_bound
    monkeypatch.setattr(graph, "gated_correlation_bound", lambda *c: np.minimum(factor * right(*c), 1))
    assert {claim.id: claim.verdict for claim in checks.recursion()}["cdag.recursion"] == "fails"
