"""Remarks of the papers: salience and co-occurrence, a node's label, signs of critical distances."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from joma.core.errors import InputError
from joma.theory.cooccurrence import query_bias, token_salience
from joma.theory.critical_points import find_critical_points, opposite_signs_from
from joma.theory.feature_limit import background_response, spread_correlation
from joma.theory.isotropic_laws import Gaussian, LaplaceMarginal, MultivariateT, UniformBall


def test_the_log_odds_minimise_the_logistic_loss():
    p, q, share = np.array([0.8, 0.3]), np.array([0.6, 0.1]), 0.3
    patterns = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=float)
    chance = [np.prod(np.where(patterns > 0, odds, 1 - odds), axis=1) for odds in (p, q)]

    def loss(theta):
        h = patterns @ theta[:2] + theta[2]
        return share * chance[0] @ np.log1p(np.exp(-h)) + (1 - share) * chance[1] @ np.log1p(np.exp(h))

    rest = minimize(loss, np.zeros(3), method="BFGS", options={"gtol": 1e-9}).x
    np.testing.assert_allclose(token_salience(p, q), rest[:2], atol=1e-5)
    assert query_bias(p, q, share=share) == pytest.approx(rest[2], abs=1e-5)


def test_a_token_that_is_everywhere_is_not_salient():
    assert token_salience(0.99, 0.99) == pytest.approx(0.0)
    assert token_salience(0.1, 0.01) > token_salience(0.9, 0.5)


@pytest.mark.parametrize("share", [0.5, 0.7])
@pytest.mark.parametrize("minus", [[0.3, 1.0], [0.5, 0.3], [-0.4, 0.8]])
def test_the_response_to_the_other_class_is_that_of_descent(minus, share):
    plus, other = np.array([1.0, 0.2]), np.array(minus)
    w = 1e-4 * np.linalg.solve(np.stack([plus, other]), np.ones(2))
    for _ in range(8_000):
        w = w + 0.01 * (share * plus * (w @ plus > 0) - (1 - share) * other * (w @ other > 0))
    wanted = background_response(plus, other, share=share)
    assert max(w @ other, 0.0) / (w @ plus) == pytest.approx(wanted, abs=4e-3)


def test_spread_takes_the_correlation_away():
    random = np.random.default_rng(0).standard_normal(400_000)
    f = np.concatenate([np.full(400_000, 1.2), np.maximum(0.7 * random, 0)])
    z = np.repeat([1.0, 0.0], 400_000)
    assert float(spread_correlation(0.7, distance=1.2)) == pytest.approx(np.corrcoef(f, z)[0, 1], abs=2e-3)


@pytest.mark.parametrize("nu", [1.5, 3.0])
def test_beyond_a_distance_the_signs_of_critical_points_differ(nu):
    law = MultivariateT(nu)
    limit = opposite_signs_from(law)
    near, far = (find_critical_points(law, factor * limit, grid=801).points for factor in (0.9, 1.1))
    assert len(near) == len(far) == 1
    assert near[0].rho_minus * near[0].rho_plus > 0
    assert far[0].rho_minus < 0 < far[0].rho_plus


def test_the_signs_of_t_2_always_differ():
    assert opposite_signs_from(MultivariateT(2.0)) == 0.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: token_salience(1.0, 0.5), "with_query"),
        (lambda: query_bias([0.5], [0.4], share=1.0), "share = 1"),
        (lambda: background_response([1.0, 0.0], [0.0, 0.0]), "none of zeros"),
        (lambda: background_response([1.0, 0.0], [5.0, 0.1]), "dies"),
        (lambda: spread_correlation(0.0, distance=1.0), "spread"),
        (lambda: opposite_signs_from(Gaussian()), "no pair"),
        (lambda: opposite_signs_from(UniformBall(3)), "no pair"),
        (lambda: opposite_signs_from(LaplaceMarginal()), "no pair"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(InputError, match=words):
        call()
