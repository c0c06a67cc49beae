"""The block's salience flow: golden values, and the flow integrated in other variables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from joma.core.errors import InputError
from joma.theory import block_salience as block

sizes = st.floats(0.05, 50.0)


@pytest.mark.parametrize("case", ["1.0_1.0", "2.5_1.0", "50.0_1.0", "0.7_2.0"])
def test_rest_and_rate_are_the_golden_ones(golden, case):
    wanted = golden(f"block_rest_{case}")
    found = [*block.rest(**wanted["inputs"]), block.convergence_rate(**wanted["inputs"])]
    np.testing.assert_allclose(found, wanted["expected"], rtol=wanted["rtol"])


@pytest.mark.parametrize("case", ["1.0_1.0_0.5", "1.0_1.0_0.99", "3.0_0.4_0.999", "50.0_1.0_0.9"])
def test_times_are_the_golden_ones(golden, case):
    wanted = golden(f"block_time_{case}")
    assert block.time_of_weight(**wanted["inputs"]) == pytest.approx(wanted["expected"], rel=wanted["rtol"])


@pytest.mark.parametrize("case", ["3.0_2.0", "3.69_1.27"])
def test_ratios_are_the_golden_ones(golden, case):
    wanted = golden(f"block_ratio_{case}")
    assert block.asymptotic_ratio(**wanted["inputs"]) == pytest.approx(wanted["expected"][0], rel=1e-12)


def test_the_course_is_that_of_the_weights_themselves():
    mu, kappa, times = np.array([0.4, 1.7, -2.6]), 1.3, np.array([0.05, 0.4, 1.5])

    def velocity(_, v):
        gain = np.exp(0.5 * kappa * v * v)
        return (mu - v * gain) * gain

    truth = solve_ivp(velocity, (0, 1.5), np.zeros(3), t_eval=times, method="Radau", rtol=1e-10, atol=1e-12)
    course = block.solve(mu, times, kappa=kappa)
    np.testing.assert_allclose(course.v, truth.y.T, rtol=1e-7)
    np.testing.assert_allclose(course.logits, 0.5 * kappa * truth.y.T**2, rtol=1e-7)


@pytest.mark.parametrize("size", [1e-3, 0.1, 3.0, 1e3, 1e6, 1e12])
def test_solving_and_the_time_invert_each_other(size):
    wanted = np.array([1e-4 / max(size, 1.0), 0.3, 5.0, 60.0, 1e3])
    times = block.elapsed_time(size, wanted)
    # Near rest dL/dt is as large as the time is short: L is as good as the time's own rounding allows.
    rounding = block.convergence_rate(size) * times * 4e-15
    error = np.abs(block.solve([size], times).log_inverse_delta[:, 0] - wanted)
    assert (error <= 1e-11 * wanted + rounding).all()


def test_salient_blocks_learn_in_the_time_of_theorem_2():
    # Far below its rest the winner does not feel it: t -> sqrt(pi/2)/mu.
    assert block.elapsed_time(1e6, 1.0) * 1e6 == pytest.approx(np.sqrt(np.pi / 2), rel=1e-4)


@given(mu=sizes, kappa=st.floats(0.1, 10.0))
def test_at_rest_the_gate_reads_mu(mu, kappa):
    v, z = block.rest(mu, kappa=kappa)
    assert v * np.exp(z) == pytest.approx(mu, rel=1e-12)
    assert z == pytest.approx(0.5 * kappa * v * v, rel=1e-12)


@given(mu=sizes, t=st.floats(0.01, 1.0), kappa=st.floats(0.1, 5.0))
def test_kappa_scales_the_weights_and_not_the_time(mu, t, kappa):
    one = block.solve([mu], [t], kappa=kappa).v * np.sqrt(kappa)
    np.testing.assert_allclose(one, block.solve([np.sqrt(kappa) * mu], [t]).v, rtol=1e-9)


def test_nodes_that_share_attention_rest_together():
    mu = np.array([[1.0, 2.0, 0.0], [-0.5, 1.0, 3.0]])
    v, z = block.rest_of_nodes(mu, kappa=0.7)
    np.testing.assert_allclose(v * np.exp(z), mu, atol=1e-12)
    np.testing.assert_allclose(z, 0.35 * np.sum(v * v, axis=0), rtol=1e-12)


def test_linear_attention_rests_and_converges():
    mu, c = np.array([1.2, 2.0]), 0.04
    v, z = block.rest_of_linear_attention(mu, c)
    np.testing.assert_allclose(v * z, mu, rtol=1e-12)
    np.testing.assert_allclose(z * z, v * v + c, rtol=1e-12)
    u, _ = block.solve_linear_attention_block(mu, [5.5, 6.0], c=c)
    slope = -np.diff(np.log1p(-u / mu), axis=0)[0] / 0.5
    np.testing.assert_allclose(slope, block.linear_attention_rate(mu, c), rtol=2e-4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: block.rest([1.0, 0.0]), "mu is 0"),
        (lambda: block.rest(1.0, kappa=-1.0), "kappa = -1"),
        (lambda: block.rest(1e200), "at most 1e"),
        (lambda: block.solve([[1.0]], [1.0]), "vector"),
        (lambda: block.solve([1.0], [-1.0]), "not negative"),
        (lambda: block.solve([1e100], [1e300]), "earlier times"),
        (lambda: block.solve([np.nan], [1.0]), "not finite|finite"),
        (lambda: block.time_of_weight(1.0, 1.0), r"\[0, 1\)"),
        (lambda: block.elapsed_time(1.0, -1.0), "negative"),
        (lambda: block.rest_of_linear_attention(1.0, -1.0), "c not be negative"),
        (lambda: block.solve_linear_attention_block([1.0], [1.0], c=0.0), "nothing moves"),
        (lambda: block.rest_of_nodes([1.0]), "nodes, components"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(InputError, match=words):
        call()
