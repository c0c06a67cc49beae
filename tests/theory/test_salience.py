from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.core.errors import InputError
from joma.theory import salience


def clock(log_inverse_delta: float, mu: float, start: float = 0.0, side: int = 1) -> mpmath.mpf:
    """Time along Eq. 6 by 30-digit quadrature in ln 1/delta."""
    with mpmath.workdps(30):
        fine = np.arange(np.floor(start) + 1, min(log_inverse_delta, 12.0), 0.5)
        coarse = [p for p in (12.0, 20.0, 45.0) if p < log_inverse_delta]
        points = [start, *fine, *coarse, log_inverse_delta]
        return mpmath.quad(
            lambda s: mpmath.exp(-((mu * (1 - side * mpmath.exp(-s))) ** 2) / 2),
            [mpmath.mpf(p) for p in points],
        )


@pytest.mark.parametrize("name", ["thm4_F_.5_1", "thm4_F_.9_2", "thm4_F_.99_3"])
def test_separable_integral(golden, name):
    entry = golden(name)
    assert salience.F(**entry["inputs"]) == pytest.approx(entry["expected"], rel=entry["rtol"])


@pytest.mark.parametrize("name", ["eq6_v_2_1", "eq6_v_3_.5"])
def test_course(golden, name):
    entry = golden(name)
    course = salience.solve(entry["inputs"]["mu"], entry["inputs"]["t"])
    found = [course.v[0, 0], course.log_inverse_delta[0, 0]]
    assert found == pytest.approx(entry["expected"], rel=entry["rtol"])


def test_ratio_and_constants(golden):
    entry = golden("thm4_ratio_.1")
    k = -np.log(entry["inputs"]["delta_k"])
    found = salience.convergence_ratio(entry["inputs"]["mu_j"], entry["inputs"]["mu_k"], k)
    assert [float(x) for x in found] == pytest.approx(entry["expected"], rel=entry["rtol"])
    for name, function in (
        ("thm4_sharp_const", salience.sharp_bound),
        ("lem6_max", salience.lemma_6_maximum),
        ("lem7_max", salience.lemma_7_maximum),
    ):
        assert function() == pytest.approx(golden(name)["expected"], rel=golden(name)["rtol"])


@pytest.mark.parametrize(("mu", "kappa"), [(0.5, 1.0), (2.0, 1.0), (2.0, 0.7)])
def test_needed_convergence_is_the_sharp_constant_over_the_decay(mu, kappa):
    def remainder(m):  # R(1, mu) of Eq. 88 by quadrature
        top = mpmath.exp(-m * m / 2)
        return mpmath.quad(lambda x: (mpmath.exp(-((m * x) ** 2) / 2) - top) / (1 - x), [0, 0.5, 1])

    sharp = max(float(remainder(m)) for m in np.linspace(1.6, 2.2, 61))
    found = float(salience.needed_convergence(mu, kappa=kappa))
    assert found == pytest.approx(sharp * np.exp(kappa * mu**2 / 2), rel=2e-4)
    given = float(salience.needed_convergence(mu, kappa=kappa, constant=3.0))
    assert given == pytest.approx(3 * np.exp(kappa * mu**2 / 2), rel=1e-14)


@pytest.mark.parametrize("mu", [0.05, 1.0, 3.7, 12.0, 30.0])
@pytest.mark.parametrize("reached", [1e-9, 0.02, 0.9, 6.0, 80.0, 900.0])
def test_time_against_quadrature(mu, reached):
    assert float(salience.elapsed_time(mu, reached)) == pytest.approx(float(clock(reached, mu)), rel=2e-14)


@pytest.mark.parametrize(("v0", "side"), [(-3.0, 1), (0.4, 1), (2.5, -1), (6.0, -1)])
def test_other_starts(v0, side):
    mu, start = 2.0, float(-np.log(abs(1 - v0 / 2.0)))
    for ahead in (1e-6, 0.3, 2.0, 50.0):
        expected = float(clock(start + ahead, mu, start, side))
        found = float(salience.elapsed_time(mu, start + ahead, v0=v0))
        assert found == pytest.approx(expected, rel=1e-9 if ahead < 1e-3 else 1e-13)
        course = salience.solve(mu, found, v0=v0)
        assert course.log_inverse_delta[0, 0] == pytest.approx(start + ahead, rel=1e-12, abs=1e-14)
    assert salience.solve(mu, 0.0, v0=v0).v[0, 0] == pytest.approx(v0, rel=1e-14)


@given(
    mu=st.floats(0.01, 30.0),
    reached=st.floats(1e-6, 1e5),
    kappa=st.floats(0.05, 1.0),
    rate=st.floats(0.01, 100.0),
)
def test_solve_inverts_the_time(mu, reached, kappa, rate):
    t = float(salience.elapsed_time(mu, reached, kappa=kappa, rate=rate))
    again = salience.elapsed_time(
        mu, salience.solve(mu, t, kappa=kappa, rate=rate).log_inverse_delta[0, 0], kappa=kappa, rate=rate
    )
    # In time, because in ln 1/delta the problem is as ill conditioned as exp(mu^2/2).
    assert float(again) == pytest.approx(t, rel=5e-14)


@given(st.floats(0.05, 8.0), st.floats(0.2, 3.0), st.floats(0.1, 5.0))
def test_rates_are_a_change_of_units(mu, kappa, rate):
    """v' = rate (mu - v) exp(kappa v^2/2) is Eq. 6 for sqrt(kappa) v on the clock rate * t."""
    t = np.array([0.1, 0.5])
    ours = salience.solve(mu, t, v0=0.01, kappa=kappa, rate=rate)
    plain = salience.solve(np.sqrt(kappa) * mu, rate * t, v0=np.sqrt(kappa) * 0.01)
    stretch = 1 / np.sqrt(kappa)
    assert np.allclose(ours.v, plain.v * stretch, rtol=1e-6)


def test_many_components_are_solved_one_by_one():
    rng = np.random.default_rng(1)
    mu, t = rng.uniform(-4, 4, 700), rng.uniform(0, 3, 11)
    course = salience.solve(mu, t)
    assert course.v.shape == (11, 700)
    for k in (0, 311, 699):
        assert course.v[:, k] == pytest.approx(salience.solve(mu[k], t).v[:, 0], rel=1e-13)


def test_solves_the_equation():
    mu, h = np.array([1.5, 2.5, -3.0]), 1e-5
    t = np.array([0.2, 0.4, 0.7])
    before, now, after = (salience.solve(mu, t + s, v0=0.1).v for s in (-h, 0, h))
    assert np.allclose((after - before) / (2 * h), (mu - now) * np.exp(now**2 / 2), rtol=1e-6, atol=1e-9)


def test_where_delta_is_no_float():
    """delta below 1e-300, and mu = 30, whose final rate is exp(450)."""
    ratio, deviation, bounded = salience.convergence_ratio(3.0, 2.0, np.array([750.0, 1e6, 1e12]))
    assert np.all(np.abs(ratio / np.exp(2.5) - 1 - deviation) < 1e-12)
    assert np.allclose(bounded, salience.R(2.0) - salience.R(3.0), rtol=1e-4)
    late = salience.solve([30.0, 2.0], 1.0)
    assert late.log_inverse_delta[0, 0] == pytest.approx(
        (1 - float(salience.R(30.0))) * np.exp(450), rel=1e-13
    )
    assert np.all(late.v[0] <= [30.0, 2.0])
    course = salience.solve(30.0, np.linspace(0, 0.05, 2001)).log_inverse_delta[:, 0]
    assert np.all(np.diff(course) > 0)


@given(st.floats(0.05, 20.0), st.floats(0.0, 1.0))
def test_equation_88_with_the_sharp_constant(mu, r):
    remainder = float(salience.R(mu, r))
    assert -1e-15 <= remainder <= salience.sharp_bound()[1] + 1e-12
    assert remainder <= float(salience.R(mu)) + 1e-14


@given(st.floats(0.2, 4.0), st.floats(0.2, 4.0), st.floats(0.01, 500.0))
def test_lambda_stays_below_the_sharp_constant(mu_j, mu_k, reached):
    _, deviation, bounded = salience.convergence_ratio(mu_j, mu_k, reached)
    bound = salience.sharp_bound()[1]
    # Lambda's rounding is that of the ratio itself, which the bound multiplies up.
    slack = 1e-9 * (1 + abs(float(deviation)))
    assert abs(float(bounded)) <= bound + slack
    assert (
        abs(float(deviation)) <= bound * np.exp(mu_k**2 / 2) / reached + slack * np.exp(mu_k**2 / 2) / reached
    )


def test_derivative_in_mu():
    """Eq. 84, by central differences."""
    mu, r, h = 1.7, 0.8, 1e-5
    slope = (salience.F(r, mu + h) - salience.F(r, mu - h)) / (2 * h)
    assert slope == pytest.approx(float(salience.zeta(r, mu) - mu * salience.F(r, mu)), rel=1e-8)


def test_lemmas_at_zero_and_on_a_grid():
    y = np.linspace(0, 20, 4001)
    assert salience.lemma_6(0.0) == 0.0
    assert salience.lemma_6(y).max() <= salience.lemma_6_maximum()[1] < 1 / np.sqrt(2)
    assert salience.lemma_7(y).max() <= salience.lemma_7_maximum()[1] < 1
    argmax, maximum = salience.lemma_7_maximum()
    assert argmax * maximum == pytest.approx(1.0, rel=1e-14)


def test_no_attention_limit():
    """mu = 0 in F is the flow without attention: F(r, 0) = ln 1/(1 - r)."""
    assert np.allclose(salience.F([0.0, 0.3, 0.9], 0.0), -np.log1p(-np.array([0.0, 0.3, 0.9])), rtol=1e-15)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: salience.solve([1.0, 0.0], 1.0), "mu is 0"),
        (lambda: salience.solve([[1.0]], 1.0), "vector"),
        (lambda: salience.solve([np.nan], 1.0), "finite"),
        (lambda: salience.solve([40.0], 1.0), "no float64"),
        (lambda: salience.solve([2.0], -1.0), "non-negative"),
        (lambda: salience.solve([2.0], np.inf), "finite"),
        (lambda: salience.solve([2.0], 1.0, v0=2.0), "nothing moves"),
        (lambda: salience.solve([2.0, 3.0], 1.0, v0=[0.1, 0.1, 0.1]), "shape"),
        (lambda: salience.solve([2.0], 1.0, kappa=-1.0), "kappa"),
        (lambda: salience.solve([2.0], 1.0, rate=0.0), "rate"),
        (lambda: salience.F(1.0, 2.0), r"\[0, 1\)"),
        (lambda: salience.R(1.0, 2.0), r"\[0, 1\]"),
        (lambda: salience.zeta(0.5, 0.0), "positive"),
        (lambda: salience.elapsed_time(2.0, -1.0), "before the start"),
        (lambda: salience.convergence_ratio(3.0, 2.0, 0.0), "positive"),
    ],
)
def test_bad_input(call, word):
    with pytest.raises(InputError, match=word):
        call()
