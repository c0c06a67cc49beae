from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import cumulative_trapezoid

from joma.core.errors import DivergenceError, InputError
from joma.data.next_token import NextTokenData, graded_tokens
from joma.dynamics.token_flow import strongest_distinct, token_flow
from joma.theory.scan_snap.equations import velocities

DATA = graded_tokens(last_tokens=2, next_per_last=2, common=1, distinct=2, outputs=12)


def test_the_flow_is_what_small_euler_steps_tend_to():
    def euler(steps):
        y, z = np.zeros((DATA.contextual_tokens, 12)), np.zeros((2, DATA.contextual_tokens))
        for _ in range(steps):
            v = velocities(
                y,
                z,
                conditional=DATA.conditional,
                last_of_next=DATA.last_of_next,
                class_probability=DATA.prior,
                eta_y=1.0,
                eta_z=0.5,
            )
            y, z = y + 5 / steps * v.decoder, z + 5 / steps * v.logits
        return y, z

    flow = token_flow(DATA, eta_y=1.0, eta_z=0.5, times=[0.0, 5.0])
    (y1, z1), (y2, z2) = euler(500), euler(1000)
    np.testing.assert_allclose(flow.logits[-1], 2 * z2 - z1, atol=1e-6)
    np.testing.assert_allclose(flow.decoder[-1, :, :4], (2 * y2 - y1)[:, :4], atol=1e-5)
    np.testing.assert_allclose(flow.decoder[-1, :, 4], (2 * y2 - y1)[:, 7], atol=1e-5)


def test_one_column_for_all_tokens_that_never_come_next_changes_nothing():
    times = [0.0, 1.0, 30.0]
    lumped = token_flow(DATA, eta_y=1.0, eta_z=0.3, times=times)
    full = token_flow(DATA, eta_y=1.0, eta_z=0.3, times=times, decoder=np.zeros((DATA.contextual_tokens, 12)))
    assert lumped.decoder.shape[-1] == 5
    assert full.decoder.shape[-1] == 12
    np.testing.assert_allclose(lumped.logits, full.logits, atol=1e-9)
    np.testing.assert_allclose(lumped.decoder[..., 4], full.decoder[..., 9], atol=1e-8)


def test_the_gain_is_the_integral_it_is_defined_by():
    times = np.linspace(0, 20, 2001)
    flow = token_flow(DATA, eta_y=1.0, eta_z=0.2, times=times)
    best = strongest_distinct(DATA)
    for n in range(4):
        rate = [v.logits[DATA.last_of_next[n], best[n]] / v.features[n, best[n]] ** 2 for v in flow.states()]
        np.testing.assert_allclose(flow.gain[:, n], cumulative_trapezoid(rate, times, initial=0), atol=2e-6)


def test_methods_agree_and_attention_can_be_frozen():
    times = [0.0, 10.0]
    first = token_flow(DATA, eta_y=1.0, eta_z=0.2, times=times)
    second = token_flow(DATA, eta_y=1.0, eta_z=0.2, times=times, method="DOP853")
    np.testing.assert_allclose(first.logits, second.logits, atol=1e-7)
    frozen = token_flow(DATA, eta_y=1.0, eta_z=0.0, times=times)
    assert (frozen.logits == 0).all()
    np.testing.assert_allclose(frozen.mass[-1], DATA.conditional, atol=1e-15)


def test_without_normalisation_the_sum_of_logits_is_conserved():
    flow = token_flow(DATA, eta_y=1.0, eta_z=0.5, times=[0.0, 40.0], normalised=False)
    np.testing.assert_allclose(flow.logits[-1].sum(axis=1), 0.0, atol=1e-9)
    np.testing.assert_allclose(flow.features.sum(axis=-1), 1.0, atol=1e-12)
    assert np.abs(flow.logits[-1]).max() > 0.1


def test_the_strongest_token_counts_logits_and_may_be_missing():
    data = NextTokenData(np.array([[0.5, 0.3, 0.2, 0.0], [1.0, 0.0, 0.0, 0.0]]), np.array([0, 0]))
    assert strongest_distinct(data).tolist() == [1, -1]
    assert strongest_distinct(data, [[0.0, 0.0, 2.0, 0.0]]).tolist() == [2, -1]
    assert np.isnan(token_flow(data, eta_y=1, eta_z=1, times=[0, 1]).gain[:, 1]).all()


def test_a_flow_that_leaves_the_finite_numbers_says_so():
    with pytest.raises(DivergenceError, match="token_flow"):
        token_flow(DATA, eta_y=1e200, eta_z=1e200, times=[0.0, 1.0], method="DOP853")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eta_y": -1.0}, "eta_y = -1"),
        ({"eta_z": np.inf}, "eta_z = inf"),
        ({"times": [0.0, 0.0]}, "increasing"),
        ({"logits": np.zeros((1, 3))}, "logits must be finite with shape"),
        ({"decoder": np.zeros((2, 2))}, "decoder must be finite with shape"),
    ],
)
def test_bad_input_is_named(settings, message):
    with pytest.raises(InputError, match=message):
        token_flow(DATA, **{"eta_y": 1.0, "eta_z": 1.0, "times": [0.0, 1.0], **settings})
