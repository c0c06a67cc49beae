from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from joma.core.errors import DivergenceError, InputError
from joma.dynamics import salience_flow as flow
from joma.theory import salience
from joma.theory.salience_variants import softmax_attention_ratio, solve_linear_attention


def test_script(golden):
    entry = golden("fig4_script")
    inputs = entry["inputs"]
    weights = flow.script_dynamics(
        inputs["mu"],
        steps=inputs["niter"],
        learning_rate=inputs["eta"],
        w0=inputs["w0"],
        temperature=inputs["T"],
    )
    h = flow.attention_entropy(weights, inputs["T"])
    assert [h[0], h.min(), h.argmin(), h[-1]] == pytest.approx(entry["expected"], rel=entry["rtol"])


def test_script_in_its_own_precision(golden):
    mu = golden("fig4_script")["inputs"]["mu"]
    h = flow.attention_entropy(flow.script_dynamics(mu, dtype=np.float32).astype(float), 3.0)
    assert h.argmin() == 669
    assert h.min() == pytest.approx(0.941570, abs=2e-6)


@pytest.mark.parametrize(("name", "temperature"), [("fig4_eq6_1", 1.0), ("fig4_eq6_2", 2.0)])
def test_entropy_along_equation_6(golden, name, temperature):
    entry = golden(name)
    t = np.concatenate([[0.0], np.linspace(0.454, 0.458, 4001), [12.0]])
    course = flow.integrate(entry["inputs"]["mu"], t, v0=entry["inputs"]["v0"])
    h = flow.attention_entropy(course.v, temperature)
    assert [h[0], h.min(), t[h.argmin()], h[-1]] == pytest.approx(entry["expected"], rel=entry["rtol"])


@pytest.mark.parametrize("v0", [0.0, 0.3, -1.0, 3.5])
def test_exp_attention_is_the_exact_solution(v0):
    mu, t = np.array([1.0, 2.0, 3.0, -2.5]), np.array([0.05, 0.3, 0.6, 2.0, 40.0])
    found, exact = flow.integrate(mu, t, v0=v0), salience.solve(mu, t, v0=v0)
    assert found.log_inverse_delta == pytest.approx(exact.log_inverse_delta, rel=1e-8, abs=1e-9)


def test_against_the_flow_in_v():
    """The same in v, while v can still tell."""
    mu, t, bbar = np.array([1.0, 1.5, 2.0]), np.array([0.2, 0.5, 1.0]), np.array([0.5, 0.2, 0.3])

    def slope(_, v):
        weights = np.exp(0.5 * 0.7 * (v * v - bbar * (v @ v)))
        return (mu - v) * 3 * weights / weights.sum()

    plain = solve_ivp(slope, (0, 1), [0.1] * 3, t_eval=t, rtol=1e-12, atol=1e-13).y.T
    course = flow.integrate(mu, t, v0=0.1, attention="softmax", kappa=0.7, bbar=bbar)
    assert course.v == pytest.approx(plain, rel=1e-9)
    none = flow.integrate(mu, t, v0=0.1, attention="none").v
    assert none == pytest.approx(mu - (mu - 0.1) * np.exp(-t[:, None]), rel=1e-9)


def test_linear_attention_is_the_closed_form():
    mu, t = np.array([1.2, 2.0, 3.0]), np.array([0.1, 1.0, 9.0, 400.0])
    found = flow.integrate(mu, t, attention="linear", c=0.04)
    exact = solve_linear_attention(mu, t, c=0.04)
    assert found.log_inverse_delta == pytest.approx(exact.log_inverse_delta, rel=1e-8)


@pytest.mark.parametrize("bbar", [[1 / 3] * 3, [0.6, 0.3, 0.1], [0.1, 0.3, 0.6]])
def test_softmax_ratio_is_measured(bbar):
    mu = np.array([2.4, 2.0, 1.5])
    reached = flow.integrate(mu, [4e3, 8e3], attention="softmax", bbar=bbar).log_inverse_delta
    speed = reached[1] - reached[0]
    expected = softmax_attention_ratio(
        mu[0], mu[2], bbar_j=bbar[0], bbar_k=bbar[2], squared_norm=float(mu @ mu)
    )
    assert speed[0] / speed[2] == pytest.approx(float(expected), rel=1e-8)


def test_uniform_softmax_leaves_equation_80_as_it_is():
    mu = np.array([3.0, 2.5, 1.5])
    reached = flow.integrate(mu, [0.5, 2.0, 20.0], attention="softmax").log_inverse_delta
    told = salience.elapsed_time(mu, reached)
    assert np.ptp(told, axis=1) == pytest.approx(0, abs=1e-8)


def test_script_is_equation_6_with_kappa_two_thirds():
    """First order in the learning rate: halving it halves the spread of the clocks."""
    mu = np.array([1.5, 2.5, 3.5])
    spreads = []
    for eta, steps in ((0.02, 800), (0.01, 1600), (0.005, 3200)):
        w = flow.script_dynamics(mu, steps=steps + 1, learning_rate=eta)[steps // 4]
        told = salience.elapsed_time(mu, -np.log(1 - w / mu), v0=0.05, kappa=2 / 3)
        spreads.append(np.ptp(told))
    assert spreads[0] / spreads[1] == pytest.approx(2, rel=0.05)
    assert spreads[1] / spreads[2] == pytest.approx(2, rel=0.05)


def test_acting_attention_is_softmax_of_half_the_square():
    mu, t = np.array([1.0, 2.0, 3.0]), np.linspace(0.0, 0.4, 4001)
    share, between = flow.acting_attention(t, salience.solve(mu, t, v0=0.05).v, mu)
    logits = np.exp(between**2 / 2)
    assert share == pytest.approx(logits / logits.sum(axis=1, keepdims=True), abs=1e-6)


def test_following_softmax():
    """1'z is constant, the speeds are the attention's; a single component has nothing to compete with."""
    mu = np.array([2.4, 1.5, 2.0])
    z0 = np.array([0.5, 0.0, -0.5])
    course, z = flow.integrate_following_softmax(mu, [0.3, 1.0, 40.0, 41.0], z0=z0)
    drift = z.sum(axis=1) - z0.sum()
    assert drift == pytest.approx(np.zeros(4), abs=1e-9)
    speed = np.diff(course.log_inverse_delta[2:], axis=0)[0]
    b = np.exp(z[-1]) / np.exp(z[-1]).sum()
    assert speed == pytest.approx(3 * b, rel=1e-7)
    alone, _ = flow.integrate_following_softmax([2.0], [0.5, 3.0])
    assert alone.log_inverse_delta[:, 0] == pytest.approx([0.5, 3.0], rel=1e-10)


def test_starts_at_its_start():
    assert flow.integrate([2.0, 3.0], 0.0, v0=0.5).v == pytest.approx(np.full((1, 2), 0.5))


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: flow.integrate([0.0], 1.0), "other than 0"),
        (lambda: flow.integrate([2.0], [1.0, 0.5]), "increasing"),
        (lambda: flow.integrate([2.0], 1.0, v0=2.0), "nothing moves"),
        (lambda: flow.integrate([2.0], 1.0, v0=[0.1, 0.2]), "shape"),
        (lambda: flow.integrate([2.0], 1.0, attention="linear"), "c > 0"),
        (lambda: flow.integrate([2.0], 1.0, attention="cosine"), "unknown"),
        (lambda: flow.integrate([2.0, 1.0], 1.0, attention="softmax", bbar=[0.5, 0.6]), "sum to one"),
        (lambda: flow.attention_entropy([1.0], 0.0), "positive"),
        (lambda: flow.integrate_following_softmax([-1.0, 2.0], [1.0]), "positive"),
        (lambda: flow.script_dynamics([1.0], steps=0), "positive"),
        (lambda: flow.script_dynamics([]), "at least one"),
        (lambda: flow.acting_attention([0.0, 1.0], [[1.0], [1.0]], [1.0]), "below its mu"),
    ],
)
def test_bad_input(call, word):
    with pytest.raises(InputError, match=word):
        call()


def test_outrun_clock_says_so():
    with pytest.raises(DivergenceError, match="exact"):
        flow.integrate([12.0], 1.0)
