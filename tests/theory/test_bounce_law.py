"""The law of the bounce, beside the flow that it is about."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import erf, lambertw

from joma.core.errors import InputError
from joma.theory.block_salience import elapsed_time, rest
from joma.theory.bounce_law import (
    bounce_law,
    bounce_of_flow,
    logits_at,
    logits_law,
    saturated_overshoot,
    time_law,
)


@pytest.mark.parametrize("size", [0.05, 0.5, 1.0, 3.0, 30.0, 1e4])
def test_the_time_in_closed_form_is_that_of_the_flow(size):
    wanted = np.logspace(-3, 2, 40)
    error = np.abs(time_law(wanted, size) / elapsed_time(size, wanted) - 1)
    assert error.max() < 0.03
    # Small and late weights are exact, up to what the middle has cost.
    assert error[0] < 1e-4


@pytest.mark.parametrize("size", [0.5, 3.0, 200.0])
@pytest.mark.parametrize("converged", [0.01, 1.3, 9.0])
def test_the_logit_at_the_law_s_own_time(size, converged):
    """y = m (1 - e^-L) is the attended weight x e^{x^2/2}; the logit is x^2/2."""
    attended = -size * np.expm1(-converged)
    x = brentq(lambda x: x * np.exp(x * x / 2) - attended, 0.0, 10.0, xtol=1e-15)
    time = float(time_law(converged, size))
    assert logits_at(time, np.array([size])) == pytest.approx([x * x / 2], rel=1e-8)


# Ten components evenly spaced from r mu_max to mu_max, dip and rebound by LSODA at 6,000 times, whose grid
# misses the least entropy by up to a thousandth.
@pytest.mark.parametrize(
    ("largest", "r", "dip", "rebound"),
    [(2, 0.2, 0.018, 0.003), (10, 0.34, 0.146, 0.118), (50, 0.7, 0.341, 0.337), (1000, 0.5, 1.898, 1.879)],
)
def test_dip_and_rebound_of_the_notes(largest, r, dip, rebound):
    mu = np.linspace(r, 1.0, 10) * largest
    flow = bounce_of_flow(mu)
    assert (flow.dip, flow.rebound) == pytest.approx((dip, rebound), abs=1e-3)
    law = bounce_law(mu)
    assert (law.dip, law.rebound) == pytest.approx((flow.dip, flow.rebound), rel=0.1, abs=2e-3)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0.2, 40.0), min_size=2, max_size=6), st.floats(0.3, 3.0))
def test_neither_sign_nor_order_matters_and_kappa_scales(mu, kappa):
    one = bounce_law(mu, kappa=kappa)
    two = bounce_law(-np.sqrt(kappa) * np.array(mu[::-1]))
    assert (one.dip, one.rebound) == pytest.approx((two.dip, two.rebound), abs=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0.5, 40.0), min_size=2, max_size=6))
def test_every_block_bounces_unless_all_are_alike(mu):
    spread = max(mu) / min(mu)
    rebound = bounce_of_flow(mu).rebound
    assert rebound >= -1e-12
    if spread > 1.2:
        assert rebound > 0


def test_components_alike_do_not_bounce():
    assert bounce_of_flow([3.0, 3.0, 3.0]).rebound == pytest.approx(0.0, abs=1e-12)


def test_the_overshoot_of_a_saturated_winner():
    found = bounce_of_flow([1e6, 5e5])
    overshoot = float(saturated_overshoot(1e6, 5e5))
    # Two components: entropy of a gap d is that of a logistic variable; at rest the gap is z_1 - z_2.
    rest_gap = float(rest(1e6)[1] - rest(5e5)[1])
    p = 1 / (1 + np.exp(-(rest_gap + overshoot)))
    assert found.least == pytest.approx(-p * np.log(p) - (1 - p) * np.log1p(-p), rel=0.05)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bounce_law([1.0]), "at least two"),
        (lambda: bounce_law([1.0, 0.0]), "mu is 0"),
        (lambda: bounce_law([1.0, 2.0], kappa=-1.0), "kappa = -1"),
        (lambda: saturated_overshoot(1.0, 2.0), "below"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.parametrize("size", [0.3, 3.0, 40.0])
@pytest.mark.parametrize("converged", [0.5, 2.4, 2.6, 6.0, 20.0])
def test_the_law_is_its_own_integral(size, converged):
    """The stay, int_0^r (u/r)^p du/(1 - u), by quadrature: on both sides of where its series begins."""
    ratio = -np.expm1(-converged)
    w = float(lambertw((size * ratio) ** 2).real)
    f, p = w / (1 + w), 2 / (1 + w) ** 2
    # u = 1 - e^-s, so that du/(1 - u) = ds.
    stay, _ = quad(lambda s: (-np.expm1(-s) / ratio) ** p, 0.0, converged, epsabs=1e-13, epsrel=1e-12)
    wanted = (np.sqrt(np.pi / 2) * erf(np.sqrt(w / 2)) + (w / 2 + f * stay) / size) / size
    assert float(time_law(converged, size)) == pytest.approx(wanted, rel=1e-10)


def test_many_times_are_inverted_as_exactly_as_one():
    sizes = np.array([0.5, 3.0, 200.0])
    converged = np.array([0.01, 1.3, 9.0])
    times = np.array([float(time_law(one, size)) for one, size in zip(converged, sizes, strict=True)])
    found = np.diag(logits_law(times, sizes))
    wanted = lambertw((sizes * np.expm1(-converged)) ** 2).real / 2
    np.testing.assert_allclose(found, wanted, rtol=1e-8)
