from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad

from joma.core.errors import InputError
from joma.theory.isotropic_laws import (
    Gaussian,
    LaplaceMarginal,
    MultivariateT,
    RadialLaw,
    UniformBall,
)

LAWS = [
    Gaussian(),
    UniformBall(1),
    UniformBall(3),
    UniformBall(10),
    LaplaceMarginal(),
    MultivariateT(1.5),
    MultivariateT(3),
    MultivariateT(30),
]
law_names = pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)


def test_golden_gaussian(golden):
    entry = golden("lem1_gauss_relu")
    law, rho = Gaussian(), entry["inputs"]["rho"]
    found = [float(f(rho)) for f in (law.theta_1, law.theta_2, law.F)]
    assert found == pytest.approx(entry["expected"], rel=entry["rtol"])


@pytest.mark.parametrize("n", [2, 3])
def test_golden_ball(golden, n):
    entry = golden(f"lem1_ball{n}")
    law, rho = UniformBall(n), entry["inputs"]["rho"]
    found = [float(f(rho)) for f in (law.density, law.theta_1, law.theta_2)]
    assert found == pytest.approx(entry["expected"], rel=entry["rtol"])


def exact_tail(law, x: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    """(P[s > x], E[(s - x)_+]) with 60 digits."""
    if isinstance(law, Gaussian):
        tail = mpmath.erfc(mpmath.mpf(x) / mpmath.sqrt(2)) / 2
        return tail, mpmath.npdf(x) - x * tail
    if isinstance(law, LaplaceMarginal):
        return mpmath.exp(-mpmath.mpf(x)) / 2, mpmath.exp(-mpmath.mpf(x)) / 2
    nu = mpmath.mpf(law.nu)
    tail = mpmath.betainc(nu / 2, mpmath.mpf(1) / 2, 0, nu / (nu + mpmath.mpf(x) ** 2), regularized=True) / 2
    front = mpmath.gamma((nu + 1) / 2) / mpmath.gamma(nu / 2) / mpmath.sqrt(nu * mpmath.pi)
    density = front * (1 + mpmath.mpf(x) ** 2 / nu) ** (-(nu + 1) / 2)
    return tail, density * (nu + mpmath.mpf(x) ** 2) / (nu - 1) - x * tail


@pytest.mark.parametrize("law", [Gaussian(), LaplaceMarginal(), MultivariateT(3)], ids=lambda law: law.name)
@pytest.mark.parametrize("x", [0.1, 1.0, 2.99, 3.01, 9.0, 20.0, 40.0])
def test_far_out(law, x):
    """rho to -40, in logarithms where the value is no float."""
    with mpmath.workdps(60):
        tail, above = exact_tail(law, x)
        assert float(law.log_theta_1(-x)) == pytest.approx(float(mpmath.log(tail)), rel=1e-14)
        assert float(law.log_F(-x)) == pytest.approx(float(mpmath.log(above)), rel=1e-13)
        assert float(law.mean_excess(-x)) == pytest.approx(float(above / tail), rel=1e-13)
        if tail > 1e-300:
            assert float(law.F(-x)) == pytest.approx(float(above), rel=2e-13)
            assert float(law.theta_2(-x)) == pytest.approx(float(above + x * tail), rel=1e-13)


@law_names
@pytest.mark.parametrize("rho", [-2.5, -0.6, 0.0, 0.4, 3.0])
def test_against_quadrature(law, rho):
    end = min(law.support, np.inf)
    start = max(-rho, -end)
    if start >= end:
        assert float(law.theta_1(rho)) == float(law.theta_2(rho)) == float(law.F(rho)) == 0.0
        return
    cuts = sorted({start, *(c for c in (0.0, 5.0) if start < c < end), end})
    for k, function in ((0, law.theta_1), (1, law.theta_2)):
        direct = sum(
            quad(lambda s, k=k: s**k * float(law.density(s)), a, b, epsabs=1e-13, epsrel=1e-11, limit=400)[0]
            for a, b in itertools.pairwise(cuts)
        )
        assert float(function(rho)) == pytest.approx(direct, rel=2e-8, abs=1e-12)
    assert float(law.F(rho)) == pytest.approx(float(law.theta_2(rho) + rho * law.theta_1(rho)), rel=1e-11)


@law_names
@given(rho=st.floats(-30, 30))
def test_lemma_3_as_properties(law, rho):
    """F - F(-.) = rho, theta_2 even, theta_1 + theta_1(-.) = 1, theta_2 >= 0, F >= 0."""
    assert float(law.F(rho) - law.F(-rho)) == pytest.approx(rho, rel=1e-12, abs=1e-12)
    assert float(law.theta_1(rho) + law.theta_1(-rho)) == pytest.approx(1, rel=1e-14)
    assert float(law.theta_2(rho)) == float(law.theta_2(-rho)) >= 0
    assert float(law.F(rho)) >= max(rho, 0.0)


@law_names
@given(y=st.floats(1e-6, 1 - 1e-6))
def test_theta_1_inverse(law, y):
    assert float(law.theta_1(law.theta_1_inverse(y))) == pytest.approx(y, rel=1e-9)


def test_log_theta_1_on_the_other_side():
    rho = np.array([0.0, 1.0, 8.0, 30.0])
    assert Gaussian().log_theta_1(rho) == pytest.approx(stats.norm.logcdf(rho), rel=1e-12)


def test_a_law_of_the_users():
    """The Gaussian and the ball, given only by their radial densities."""
    normal = RadialLaw(lambda r: float(np.exp(-0.5 * r * r) / (2 * np.pi) ** 1.5), 3)
    ball = RadialLaw(lambda r: 1 / np.pi, 2, support=1.0)
    line = RadialLaw(lambda r: 0.5 * float(np.exp(-r)), 1)
    for mine, known, rhos in (
        (normal, Gaussian(), (-4.0, -0.5, 0.0, 1.2)),
        (ball, UniformBall(2), (-0.99, -0.5, 0.0, 0.7, 1.5)),
        (line, LaplaceMarginal(), (-9.0, -0.5, 2.0)),
    ):
        for rho in rhos:
            for name in ("theta_1", "theta_2", "F", "density"):
                ours, theirs = getattr(mine, name)(rho), getattr(known, name)(rho)
                assert float(ours) == pytest.approx(float(theirs), rel=1e-8, abs=1e-14)
    assert float(normal.theta_1_inverse(0.2)) == pytest.approx(stats.norm.ppf(0.2), rel=1e-8)
    assert float(ball.theta_1_inverse(0.5)) == 0.0


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: MultivariateT(1.0), "nu > 1"),
        (lambda: UniformBall(0), "at least 1"),
        (lambda: UniformBall(2).mean_excess(-1.0), "gate is shut"),
        (lambda: Gaussian().theta_1_inverse(1.0), "0 < y < 1"),
        (lambda: RadialLaw(lambda r: 1.0, 2, support=1.0), "normalise"),
        (lambda: RadialLaw(lambda r: 1 / (np.pi * (1 + r * r)), 1), "finite mean"),
        (lambda: RadialLaw(lambda r: 1.0, 0), "at least 1"),
    ],
)
def test_bad_input(call, word):
    with pytest.raises(InputError, match=word):
        call()


@pytest.mark.parametrize("n", [1, 3, 10])
def test_the_ball_is_filled_evenly_to_its_edge(n: int) -> None:
    norms = np.linalg.norm(UniformBall(n).sample(np.random.default_rng(0), 20_000, n), axis=1)
    assert stats.kstest(norms**n, "uniform").pvalue > 0.01
    assert 0.99 < norms.max() <= 1.0
