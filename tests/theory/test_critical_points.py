from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import norm

from joma.core.errors import InputError
from joma.theory.critical_points import (
    G,
    balancing_ratio,
    equation_58,
    find_critical_points,
    linearise,
    linearise_printed,
    partner,
)
from joma.theory.isotropic import RELU, HomogeneousGate, mixture_flow
from joma.theory.isotropic_laws import Gaussian, LaplaceMarginal, MultivariateT, RadialLaw, UniformBall


def jacobian(law, v, xi, centres, a, gate=RELU):
    h = 1e-5
    columns = [
        (
            mixture_flow(law, gate, v + h * e, xi, centres, a)[0]
            - mixture_flow(law, gate, v - h * e, xi, centres, a)[0]
        )
        / (2 * h)
        for e in np.eye(v.size)
    ]
    return np.stack(columns, axis=1)


def test_equation_58(golden):
    entry = golden("eq58_products")
    laws = [Gaussian(), LaplaceMarginal(), MultivariateT(3), UniformBall(3)]
    assert [equation_58(law) for law in laws] == pytest.approx(entry["expected"], rel=entry["rtol"])


def test_pair(golden):
    entry = golden("lem4_t3_pair")
    law = MultivariateT(entry["inputs"]["nu"])
    pair = partner(law, entry["inputs"]["rho_minus"])
    found = [pair.rho_plus, pair.distance, pair.amplitude_ratio]
    assert found == pytest.approx(entry["expected"], rel=entry["rtol"])
    again = find_critical_points(law, pair.distance)
    assert len(again.points) == 1
    assert again.points[0].rho_minus == pytest.approx(-3.0, rel=1e-12)


def test_linearisation(golden):
    entry = golden("thm3_t3_beta")
    i = entry["inputs"]
    found = linearise(
        MultivariateT(i["nu"]),
        norm=i["norm_mu"],
        rho_minus=i["rho_minus"],
        distance=i["X"],
        a_plus=i["a_plus"],
        a_minus=i["a_minus"],
        s=i["s"],
    )
    assert [found.beta_1, found.beta_2, found.along] == pytest.approx(entry["expected"], rel=entry["rtol"])


@pytest.mark.parametrize("distance", [0.05, 0.7, 3.0, 12.0])
def test_none_for_log_concave(distance):
    for law in (Gaussian(), UniformBall(1), UniformBall(2), UniformBall(10)):
        search = find_critical_points(law, distance)
        assert search.points == ()
        assert search.continuum is None
        assert search.least_rise > 0
        assert partner(law, -0.5) is None


def test_t2_in_closed_form():
    """H = sqrt(rho^2 + 2) for t_2, so that the pair is -+ distance/2."""
    law = MultivariateT(2)
    rho = np.array([-5.0, -1.0, 0.3, 4.0])
    assert law.mean_excess(rho) == pytest.approx(np.sqrt(rho**2 + 2), rel=1e-12)
    for distance in (0.4, 1.0, 7.3):
        (point,) = find_critical_points(law, distance).points
        assert point.rho_minus == pytest.approx(-distance / 2, rel=1e-10)
        half = np.sqrt(distance**2 / 4 + 2)
        assert point.amplitude_ratio == pytest.approx((half + distance / 2) / (half - distance / 2), rel=1e-9)


def test_laplace_is_the_boundary():
    search = find_critical_points(LaplaceMarginal(), 1.0)
    assert search.points == ()
    assert search.continuum == pytest.approx((-40.0, -1.0))


def test_a_log_concave_law_of_the_users():
    """exp(-r^4) in two dimensions, known by its density alone."""
    front = 2 / np.pi**1.5  # 1/int exp(-r^4) over the plane
    law = RadialLaw(lambda r: front * float(np.exp(-(r**4))), 2)
    search = find_critical_points(law, 0.5, low=-1.5, high=1.0, grid=12)
    assert search.points == ()
    assert search.least_rise > 0


@given(st.floats(1.2, 6.0), st.floats(-8.0, -0.2), st.floats(0.1, 5.0))
def test_pairs_are_at_rest(nu, rho_minus, norm):
    law = MultivariateT(nu)
    pair = partner(law, rho_minus)
    assume(pair is not None and pair.distance > 1e-3)
    v, centres = np.array([norm, 0.0]), np.array([[pair.distance, 0.0], [0.0, 0.0]])
    a = [1.0, -pair.amplitude_ratio]
    drift, drive = mixture_flow(law, RELU, v, norm * rho_minus, centres, a)
    scale = max(1.0, pair.amplitude_ratio)
    assert np.abs([*drift, drive]).max() < 1e-8 * scale


@pytest.mark.parametrize("law", [Gaussian(), MultivariateT(3), UniformBall(3)], ids=lambda law: law.name)
def test_slope_of_g(law):
    y, h = np.array([0.15, 0.5, 0.8]), 1e-6
    slope = (G(law, y + h) - G(law, y - h)) / (2 * h)
    assert slope == pytest.approx(
        law.theta_1(law.theta_1_inverse(y)) / law.density(law.theta_1_inverse(y)), rel=1e-6
    )


@given(
    rho=st.floats(-2.0, 2.0),
    distance=st.floats(0.2, 3.0),
    norm=st.floats(0.3, 3.0),
    s=st.sampled_from([1, -1]),
    nu=st.sampled_from([1.5, 3.0, np.inf]),
)
def test_linearisation_is_the_jacobian(rho, distance, norm, s, nu):
    law = Gaussian() if np.isinf(nu) else MultivariateT(nu)
    ratio = balancing_ratio(law, rho, distance, s=s)
    centres = np.array([[distance, 0.0, 0.0], [0.0, 0.0, 0.0]])
    mu = np.array([s * norm, 0.0, 0.0])
    drift, _ = mixture_flow(law, RELU, mu, norm * rho, centres, [1.0, -ratio])
    assert np.abs(drift).max() < 1e-10 * (1 + abs(ratio))
    found = linearise(law, norm=norm, rho_minus=rho, distance=distance, a_plus=1.0, a_minus=ratio, s=s)
    measured = -jacobian(law, mu, norm * rho, centres, [1.0, -ratio])
    assert found.matrix(mu) == pytest.approx(measured, rel=1e-6, abs=1e-6 * (1 + abs(ratio)))
    assert found.along == pytest.approx(
        rho**2 / norm * float(ratio * law.density(rho) - law.density(s * distance + rho)), rel=1e-7, abs=1e-9
    )
    assert found.stable == (min(found.transverse, found.along) > 0)


def test_leaky_gate_needs_its_jump():
    """Lemma 5 enters Theorem 3 with c_+ - c_-."""
    gate, law = HomogeneousGate(0.1, 1.0), Gaussian()
    rho, distance, norm = -0.5, 1.1, 0.7
    shares = [0.1 + 0.9 * float(law.theta_1(r)) for r in (rho + distance, rho)]
    pulls = [0.9 * float(law.theta_2(r)) for r in (rho + distance, rho)]
    ratio = (distance * shares[0] + pulls[0]) / pulls[1]
    centres, mu = np.array([[distance, 0.0], [0.0, 0.0]]), np.array([norm, 0.0])
    measured = -jacobian(law, mu, norm * rho, centres, [1.0, -ratio], gate)
    found = linearise(law, norm=norm, rho_minus=rho, distance=distance, a_plus=1.0, a_minus=ratio, gate=gate)
    assert found.matrix(mu) == pytest.approx(measured, abs=1e-7)


def test_gaussian_with_fixed_bias_is_stable_and_the_print_denies_it():
    """The example of a Gaussian critical point at fixed xi: X = 1.1, rho_- = -.5."""
    ratio = balancing_ratio(Gaussian(), -0.5, 1.1)
    assert ratio == pytest.approx(3.2140, abs=1e-4)
    common = {"norm": 0.7, "rho_minus": -0.5, "distance": 1.1, "a_plus": 1.3}
    assert linearise(Gaussian(), a_minus=1.3 * ratio, **common).beta_1 == pytest.approx(1.482597, abs=1e-6)
    assert linearise(Gaussian(), a_minus=1.3 * ratio, **common).stable
    assert not linearise_printed(Gaussian(), **common).stable


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: find_critical_points(Gaussian(), 0.0), "distance"),
        (lambda: find_critical_points(UniformBall(2), 1.0, low=-5.0, high=-2.0), "nothing to search"),
        (lambda: balancing_ratio(UniformBall(2), -1.5, 1.0), "nothing pulls back"),
        (lambda: linearise(Gaussian(), norm=1, rho_minus=0, distance=1, a_plus=1, a_minus=1, s=2), "sign"),
        (lambda: linearise(Gaussian(), norm=0, rho_minus=0, distance=1, a_plus=1, a_minus=1), "positive"),
        (
            lambda: linearise(Gaussian(), norm=1, rho_minus=0, distance=1, a_plus=1, a_minus=1).matrix(
                [2.0, 0.0]
            ),
            "length",
        ),
    ],
)
def test_bad_input(call, word):
    with pytest.raises(InputError, match=word):
        call()


def test_the_print_has_lengths_in_place_of_distances():
    """Eq. 73-74 by hand, for the Gaussian: theta_1 = Phi, density phi; r = |mu| rho_+, xi = |mu| rho_-."""
    found = linearise_printed(Gaussian(), norm=1.5, rho_minus=-0.4, distance=1.2, a_plus=0.7)
    r, xi = 1.5 * 0.8, -0.6
    assert found.beta_1 == pytest.approx(0.7 * 1.2 * norm.cdf(r) / 1.5**2, rel=1e-12)
    bracket = xi * norm.pdf(r) - 2 * norm.cdf(r)
    assert found.beta_2 == pytest.approx(0.7 * 1.2 * bracket / 1.5**4, rel=1e-12)
