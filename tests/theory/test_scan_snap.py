from __future__ import annotations

from math import comb

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from joma.checks.scan_snap_steps import turning_step
from joma.core.errors import InputError
from joma.data.next_token import graded_tokens
from joma.dynamics.token_flow import token_flow
from joma.theory.scan_snap import decoder, fates, snapping
from joma.theory.scan_snap.decoder import steps_until_all_drawn
from joma.theory.scan_snap.equations import (
    attended_mass,
    attention_pull,
    distinct_entropy,
    lumped_multiplicity,
    predictions,
    unit,
    velocities,
)


@pytest.mark.parametrize("normalised", [True, False])
def test_the_velocities_are_the_gradient_of_the_likelihood(normalised):
    data = graded_tokens(last_tokens=3, next_per_last=2, common=2, common_per_last=1, distinct=2, outputs=11)
    random = np.random.default_rng(0)
    y = torch.tensor(random.normal(size=(data.contextual_tokens, data.logits)), requires_grad=True)
    z = torch.tensor(random.normal(size=(3, data.contextual_tokens)), requires_grad=True)
    prior = random.dirichlet(np.ones(data.classes))
    weights = torch.tensor(data.conditional) * torch.exp(z[data.last_of_next])
    c = weights / weights.sum(1, keepdim=True)
    f = c / c.norm(dim=1, keepdim=True) if normalised else c
    log_alpha = torch.log_softmax(f @ y, dim=1)
    own = log_alpha[torch.arange(data.classes), torch.arange(data.classes)]
    (torch.tensor(prior) * own).sum().backward()
    v = velocities(
        y.detach().numpy(),
        z.detach().numpy(),
        conditional=data.conditional,
        last_of_next=data.last_of_next,
        class_probability=prior,
        eta_y=0.3,
        eta_z=0.7,
        normalised=normalised,
    )
    np.testing.assert_allclose(v.decoder, 0.3 * y.grad.numpy(), atol=1e-15)
    np.testing.assert_allclose(v.logits, 0.7 * z.grad.numpy(), atol=1e-15)
    np.testing.assert_allclose(
        v.logits.sum(axis=1), 0.0 if not normalised else v.logits.sum(axis=1), atol=1e-14
    )


def test_velocities_take_a_batch_of_states():
    data = graded_tokens(last_tokens=2, next_per_last=2, common=1, distinct=2)
    random = np.random.default_rng(1)
    y = random.normal(size=(5, data.contextual_tokens, data.logits))
    z = random.normal(size=(5, 2, data.contextual_tokens))
    rest = {
        "conditional": data.conditional,
        "last_of_next": data.last_of_next,
        "class_probability": data.prior,
        "eta_y": 1.0,
        "eta_z": 0.1,
    }
    together = velocities(y, z, **rest)
    for k in range(5):
        alone = velocities(y[k], z[k], **rest)
        np.testing.assert_allclose(together.decoder[k], alone.decoder, atol=1e-15)
        np.testing.assert_allclose(together.logits[k], alone.logits, atol=1e-15)


@given(st.integers(2, 200), st.integers(0, 10_000))
def test_attended_counts_are_the_softmax_over_the_sequence(length, seed):
    random = np.random.default_rng(seed)
    sequence = random.integers(0, 6, length)
    z = 5 * random.normal(size=6)
    b = np.exp(z[sequence] - z.max())
    b /= b.sum()
    expected = np.bincount(sequence, weights=b, minlength=6)
    np.testing.assert_allclose(attended_mass(np.bincount(sequence, minlength=6), z), expected, atol=1e-15)


def test_attended_survives_logits_that_exp_does_not():
    c = attended_mass([1, 2, 0], [2000.0, 1999.0, 9000.0])
    np.testing.assert_allclose(c, np.array([1, 2 / np.e, 0]) / (1 + 2 / np.e))


def test_attention_pull_is_the_projected_gradient_written_out():
    random = np.random.default_rng(3)
    c = random.dirichlet(np.ones(6))
    g = random.normal(size=6)
    f = c / np.linalg.norm(c)
    projector = np.eye(6) - np.outer(f, f)
    full = (np.diag(c) - np.outer(c, c)) @ projector @ g / np.linalg.norm(c)
    np.testing.assert_allclose(attention_pull(f, g), full, atol=1e-15)
    np.testing.assert_allclose(
        attention_pull(c, g, normalised=False), (np.diag(c) - np.outer(c, c)) @ g, atol=1e-15
    )


def test_a_lumped_column_stands_for_equal_logits():
    random = np.random.default_rng(4)
    f = unit(random.random((2, 5)))
    y = random.normal(size=(5, 3))
    full = predictions(np.hstack([y[:, :2], np.repeat(y[:, 2:], 7, axis=1)]), f)
    lumped = predictions(y, f, lumped_multiplicity(2, 9))
    np.testing.assert_allclose(lumped[:, :2], full[:, :2], atol=1e-15)
    np.testing.assert_allclose(lumped[:, 2], full[:, 2:].sum(axis=1), atol=1e-15)


def test_distinct_entropy_renormalises_over_distinct_tokens():
    mass = np.array([[0.8, 0.1, 0.1, 0.0], [0.9, 0.0, 0.0, 0.1]])
    distinct = np.array([[False, True, True, False], [False, False, False, True]])
    np.testing.assert_allclose(distinct_entropy(mass, distinct), [np.log(2), 0.0])
    with pytest.raises(InputError, match="no attention on distinct tokens"):
        distinct_entropy([[1.0, 0.0]], [[False, True]])


@pytest.mark.parametrize("name", ["decoder_h_1", "decoder_h_10", "decoder_h_50"])
def test_the_decoder_closed_form_agrees_with_independent_values(golden, name):
    entry = golden(name)
    given_ = entry["inputs"]
    h = decoder.decoder_logit(given_["t"], eta_y=given_["eta_Y"], classes=given_["K"], outputs=given_["M"])
    assert float(h) == pytest.approx(entry["expected"], rel=entry["rtol"])


@given(st.floats(0, 1e8), st.floats(1e-3, 10), st.integers(1, 20), st.integers(0, 500))
def test_the_decoder_logit_solves_its_equation(time, eta_y, classes, more):
    outputs = max(2, classes + more)
    h = float(decoder.decoder_logit(time, eta_y=eta_y, classes=classes, outputs=outputs))
    left = h + np.expm1(outputs * h / (outputs - 1)) / outputs
    assert left == pytest.approx(eta_y * time / classes, rel=1e-10, abs=1e-300)


def test_the_late_form_is_approached():
    times = np.array([1e3, 1e6, 1e12])
    exact = decoder.decoder_logit(times, eta_y=0.5, classes=3, outputs=50)
    late = decoder.decoder_logit_late(times, eta_y=0.5, classes=3, outputs=50)
    assert (np.abs(late - exact) < [0.1, 1e-3, 1e-8]).all()


@pytest.mark.parametrize("outputs", [2, 10, 1000])
def test_at_half_speed_time_the_decoder_has_half_its_speed(outputs):
    setting = {"eta_y": 0.7, "classes": 2, "outputs": outputs}
    h = decoder.decoder_logit([0.0, decoder.half_speed_time(**setting)], **setting)
    speed = 1 - decoder.right_probability(h, outputs)
    assert speed[1] == pytest.approx(speed[0] / 2, rel=1e-12)


def test_the_coupon_collectors_limit_law():
    """Against the exact probability sum_k (-1)^k C(K, k) (1 - k/K)^t, K = 20."""
    steps = steps_until_all_drawn(20, 0.95)
    assert steps == pytest.approx(20 * (np.log(20) + 2.97), rel=1e-3)
    exact = sum((-1) ** k * comb(20, k) * (1 - k / 20) ** round(steps) for k in range(21))
    assert exact == pytest.approx(0.95, abs=0.01)


def test_theorem1s_signs_turn_when_the_last_of_twenty_classes_is_drawn():
    data = graded_tokens(last_tokens=1, next_per_last=20, common=1, distinct=20, outputs=100)
    features = token_flow(data, eta_y=1.0, eta_z=0.0, times=[0.0, 1e-3]).features[0]
    for seed in range(2):
        step, before, after = turning_step(features, 100, 0.3, seed)
        assert before < 1e-9 < after
        assert 20 <= step < 300


def test_gradient_form_recovers_coefficients_and_measures_what_is_left():
    random = np.random.default_rng(5)
    f = unit(random.random((3, 8)))
    cross = random.random((3, 3))
    np.fill_diagonal(cross, 0.0)
    own = random.random(3)
    form = decoder.gradient_form(f, own[:, None] * f - cross @ f)
    np.testing.assert_allclose(form.own, own, atol=1e-13)
    np.testing.assert_allclose(form.cross, cross, atol=1e-13)
    assert form.residual.max() < 1e-14
    outside = np.linalg.svd(f)[2][-1]
    assert decoder.gradient_form(f, f + outside).residual == pytest.approx([0.5**0.5] * 3)


@given(st.integers(0, 10_000))
def test_pull_of_form_is_the_pull_of_its_gradient(seed):
    random = np.random.default_rng(seed)
    f = unit(random.random((4, 7)))
    cross = random.random((4, 4))
    off = cross - np.diag(np.diag(cross))
    np.testing.assert_allclose(fates.pull_of_form(f, cross), attention_pull(f, 3.0 * f - off @ f), atol=1e-14)


@given(st.integers(0, 10_000), st.integers(2, 5))
def test_under_the_form_distinct_tokens_rise_and_one_common_token_falls(seed, classes):
    random = np.random.default_rng(seed)
    features = np.hstack([random.uniform(0.05, 1, (classes, 1)), np.diag(random.uniform(0.05, 1, classes))])
    pull = fates.pull_of_form(unit(features), random.uniform(0.01, 1, (classes, classes)))
    assert (pull[:, 0] < 0).all()
    assert (np.diag(pull[:, 1:]) > 0).all()


def test_one_of_two_common_tokens_can_rise():
    features = unit([[0.9, 0.4, 0.15, 0.0], [0.1, 0.9, 0.0, 0.4]])
    total = fates.pull_of_form(features, np.ones((2, 2))).sum(axis=0)
    assert total[0] > 0.1
    assert total[1] < 0


def _distinct_flow(start, end):
    """dz_l/dB = f_l^2 with c_l = start_l e^{z_l}: Theorem 3's dynamics, integrated independently."""

    def slope(_, z):
        square = (start * np.exp(z)) ** 2
        return square / square.sum()

    return solve_ivp(slope, (0, end), np.zeros(start.size), rtol=1e-12, atol=1e-14).y[:, -1]


@given(st.integers(0, 10_000), st.floats(0.1, 5))
def test_theorem3_along_its_own_dynamics(seed, gain):
    start = np.random.default_rng(seed).uniform(0.1, 1, 4)
    z = _distinct_flow(start, gain)
    mass = start * np.exp(z)
    best = start.argmax()
    ratio = fates.relative_gain(mass[best], np.delete(mass, best))
    first = fates.relative_gain(start[best], np.delete(start, best))
    np.testing.assert_allclose(ratio, first * fates.gain_factor(z[best]), rtol=1e-8)
    clock = fates.distinct_clock(z, start)
    np.testing.assert_allclose(clock, clock[0], rtol=1e-8)
    low, high = fates.gain_bounds(start[best] / np.linalg.norm(start), gain)
    assert low * (1 - 1e-10) <= fates.gain_factor(z[best]) <= high * (1 + 1e-10)


def test_theorem3_bounds_are_reached():
    """The upper one where one token is all there is, the lower one while the strongest has not moved."""
    alone = np.array([0.3])
    low, high = fates.gain_bounds(1.0, 0.7)
    chi = fates.gain_factor(_distinct_flow(alone, 0.7)[0])
    assert float(chi) == pytest.approx(float(high), rel=1e-9)
    assert float(low) == pytest.approx(float(high), rel=1e-12)
    start = np.array([0.9, 0.6, 0.2])
    z = _distinct_flow(start, 1e-4)
    low, _ = fates.gain_bounds(start[0] / np.linalg.norm(start), 1e-4)
    assert float(np.log(fates.gain_factor(z[0])) / np.log(low)) == pytest.approx(1, abs=1e-3)


def test_losers_end_where_the_limit_says():
    start = np.array([0.9, 0.6, 0.2])
    z = _distinct_flow(start, 30.0)
    limit = fates.losers_limit(start, 0.9)
    assert limit[0] == np.inf
    np.testing.assert_allclose(z[1:], limit[1:], rtol=1e-6)


SETTING = {"eta_y": 1.0, "eta_z": 0.05, "classes": 3, "outputs": 200, "constant": 5.0}


def test_theorem4_gain_agrees_with_the_independent_value(golden):
    entry = golden("thm4ss_B")
    given_ = entry["inputs"]
    value = snapping.gain(
        given_["t"],
        eta_y=given_["eta_Y"],
        eta_z=given_["eta_Z"],
        classes=given_["K"],
        outputs=given_["M"],
        constant=given_["C0"],
    )
    assert float(value) == pytest.approx(entry["expected"], rel=entry["rtol"])


def test_theorem4_early_and_late_forms():
    assert snapping.gain(0.0, **SETTING) == 0
    early = {name: value for name, value in SETTING.items() if name != "outputs"}
    assert float(snapping.scanning_gain(0.1, **early)) == pytest.approx(
        float(snapping.gain(0.1, **SETTING)), rel=0.02
    )
    # 1/4 ln(1 + 2 eta_Y eta_Z t^2 / (K C0)) at t = 30: 2 * 0.05 * 900 / 15 = 6.
    assert float(snapping.scanning_gain(30.0, **early)) == pytest.approx(np.log(7) / 4, rel=1e-12)
    late = float(snapping.gain_late(1e9, **SETTING))
    assert late == pytest.approx(float(snapping.gain(1e9, **SETTING)), rel=1e-4)
    printed = float(snapping.gain_printed(1e9, **SETTING))
    assert printed == pytest.approx(np.log(5 + 2 * 3 * 0.05 * np.log(200 * 1e9 / 3) ** 2), rel=1e-12)


def test_the_overlap_exponent_is_the_derivative_along_theorem3_and_2():
    start = np.array([0.5, 0.4, 0.2])  # common token first
    sharing = 2

    def slope(_, z):
        f = unit(start * np.exp(z))
        return np.concatenate([[-sharing * (1 - f[0] ** 2)], f[1:] ** 2])

    path = solve_ivp(slope, (0, 1), np.zeros(3), rtol=1e-12, atol=1e-14, t_eval=[0.5 - 1e-4, 0.5, 0.5 + 1e-4])
    f = unit((start[:, None] * np.exp(path.y)).T)
    numeric = (np.log(f[2, 0] ** 2) - np.log(f[0, 0] ** 2)) / 2e-4
    assert float(snapping.overlap_exponent(f[1, 0], f[1, 1:], sharing)) == pytest.approx(numeric, rel=1e-6)


def test_the_fitted_exponent_of_a_power():
    gain = np.linspace(0.1, 2, 30)
    assert snapping.fitted_exponent(3 * np.exp(-4 * gain), gain) == pytest.approx(-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attended_mass([0.0, 0.0], [0.0, 0.0]), "no token"),
        (lambda: attended_mass([-1.0, 1.0], [0.0, 0.0]), "at least 0"),
        (lambda: attended_mass([1.0], [np.nan]), "not finite"),
        (lambda: lumped_multiplicity(3, 2), "less than the 3"),
        (lambda: decoder.decoder_logit(-1.0, eta_y=1, classes=1, outputs=2), "at least 0"),
        (lambda: decoder.decoder_logit(1.0, eta_y=0, classes=1, outputs=2), "eta_y = 0"),
        (lambda: decoder.decoder_logit(1.0, eta_y=1, classes=5, outputs=4), "outputs = 4"),
        (lambda: decoder.decoder_logit_late(0.0, eta_y=1, classes=1, outputs=2), "above 0"),
        (lambda: decoder.gradient_form(np.ones((2, 3)), np.ones((2, 4))), "one shape"),
        (lambda: fates.pull_of_form(np.ones((2, 3)), np.ones((3, 3))), "cross has shape"),
        (lambda: fates.relative_gain(1.0, 0.0), "no mass"),
        (lambda: fates.losers_limit(2.0, 1.0), "ratio of 2"),
        (lambda: snapping.gain(1.0, **{**SETTING, "constant": 0.0}), "C0 = 0"),
        (lambda: snapping.overlap_exponent(0.5, [0.5], 0), "sharing = 0"),
        (lambda: snapping.fitted_exponent([0.0, 1.0], [0.0, 1.0]), "positive strength"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_the_slides_snap_time_by_hand():
    assert snapping.snap_time_printed(eta_y=0.1, classes=5, outputs=8) == pytest.approx(300 * np.log(2))
