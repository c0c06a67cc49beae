from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from joma.checks import latent_tree as checks
from joma.theory import class_labels
from joma.theory import latent_tree as tree

CORRECTED = {
    "theorem5.root_bias",
    "theorem5.equation_101",
    "theorem5.equation_103",
    "theorem5.sparse_root",
    "theorem5.across_root",
    "equation8.remainder",
}


@pytest.fixture(scope="module")
def claims():
    return {claim.id: claim for group in checks.CHECKS.values() for claim in group()}


def test_each_group_names_its_claims() -> None:
    for group, compute in checks.CHECKS.items():
        assert all(claim.id.startswith(group + ".") for claim in compute())


def test_verdicts(claims) -> None:
    assert {name for name, claim in claims.items() if claim.verdict == "corrected"} == CORRECTED
    assert all(claim.verdict == "holds" for name, claim in claims.items() if name not in CORRECTED)


def test_the_enumeration_is_the_golden_fraction(golden) -> None:
    for name in ("thm5_4_1", "thm5_4_2"):
        entry = golden(name)["inputs"]
        assert checks._enumerate(entry["L"], entry["H"])[0] == Fraction(entry["exact"])


def test_a_wrong_theorem_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = tree.cooccurrence
    monkeypatch.setattr(tree, "cooccurrence", lambda *a, **k: np.asarray(right(*a, **k)) + 1e-6)
    claims = {claim.id: claim for claim in checks.theorem5()}
    assert claims["theorem5.root_bias"].verdict == "fails"


def test_the_printed_definition_would_not_be_called_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_labels, "root_bias", class_labels.printed_root_bias)
    claims = {claim.id: claim for claim in checks.theorem5()}
    assert claims["theorem5.root_bias"].verdict == "fails"
    assert claims["theorem5.sparse_root"].verdict == "fails"
