from __future__ import annotations

import pytest

from joma.checks import asides
from joma.checks.asides import _falls, _largest_leak, _residual
from joma.theory import drift
from joma.theory.critical_points import find_critical_points
from joma.theory.isotropic_laws import Gaussian, MultivariateT


def test_claims():
    (gates,), (remainder,) = asides.lemma4_gates(), asides.theorem3_remainder()
    assert gates.verdict == "corrected"
    assert remainder.verdict == "holds"


def test_with_relu_the_fall_of_h_is_what_the_search_finds():
    assert _falls(MultivariateT(3.0), 0.0)
    assert find_critical_points(MultivariateT(3.0), 4.4).points
    assert not _falls(Gaussian(), 0.01)


def test_between_the_limits_there_are_points_and_beyond_there_are_none():
    law = MultivariateT(1.5)
    limit = _largest_leak(law)
    assert limit == pytest.approx(0.1078, abs=2e-4)
    assert _residual(law, 0.9 * limit) < 1e-12
    assert not _falls(law, 1.01 * limit)


def test_a_wrong_stiffness_leaves_a_remainder(monkeypatch):
    right = drift.linearise

    def wrong(*args, **kwargs):
        found = right(*args, **kwargs)
        return type(found)(beta_1=1.5 * found.beta_1, beta_2=found.beta_2, s=found.s, norm=found.norm)

    monkeypatch.setattr(drift, "linearise", wrong)
    assert asides.theorem3_remainder()[0].verdict == "fails"
