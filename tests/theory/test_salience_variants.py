from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from joma.core.errors import InputError
from joma.theory import salience_variants as variants


def test_golden_time(golden):
    entry = golden("lin_att_time")
    assert variants.linear_attention_time(**entry["inputs"]) == pytest.approx(
        entry["expected"], rel=entry["rtol"]
    )


def test_golden_logistic(golden):
    entry = golden("lin_att_logistic")
    inputs = entry["inputs"]
    course = variants.solve_linear_attention(inputs["mu"], inputs["t"], c=0.0, v0=inputs["v0"])
    assert course.v[0, 0] == pytest.approx(entry["expected"], rel=entry["rtol"])


@given(st.floats(0.1, 10.0), st.floats(1e-6, 20.0), st.floats(0.0, 0.8), st.floats(0.05, 0.95))
def test_time_is_the_integral(mu, c, start, further):
    v0 = start * mu
    v = v0 + further * (mu - v0)
    expected = quad(lambda x: 1 / ((mu - x) * np.sqrt(x * x + c)), v0, v, epsabs=0, epsrel=1e-11, limit=200)[
        0
    ]
    assert float(variants.linear_attention_time(v, mu, c, v0=v0)) == pytest.approx(expected, rel=1e-8)


@given(st.floats(0.1, 10.0), st.floats(1e-6, 20.0), st.floats(0.0, 0.8), st.floats(0.01, 0.95))
def test_course_inverts_the_time(mu, c, start, further):
    v0 = start * mu
    v = v0 + further * (mu - v0)
    t = float(variants.linear_attention_time(v, mu, c, v0=v0))
    course = variants.solve_linear_attention(mu, t, c=c, v0=v0)
    assert course.v[0, 0] == pytest.approx(v, rel=1e-10)


def test_late_course_and_ratio():
    """ln 1/delta = S t - offset, far below the smallest float."""
    mu, c, t = np.array([2.0, 1.2]), 0.04, 1e4
    late = variants.solve_linear_attention(mu, t, c=c).log_inverse_delta[0]
    assert late == pytest.approx(np.sqrt(mu**2 + c) * t - variants.linear_attention_offset(mu, c), rel=1e-13)
    assert late[0] / late[1] == pytest.approx(
        float(variants.linear_attention_ratio(2.0, 1.2, c, c)), rel=1e-3
    )


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: variants.solve_linear_attention(2.0, 1.0, c=0.0), "nothing moves"),
        (lambda: variants.solve_linear_attention(-2.0, 1.0, c=1.0), "positive"),
        (lambda: variants.solve_linear_attention(2.0, 1.0, c=1.0, v0=3.0), "v0"),
        (lambda: variants.solve_linear_attention(2.0, -1.0, c=1.0), "times"),
        (lambda: variants.linear_attention_time(2.5, 2.0, 1.0), "never reaches"),
    ],
)
def test_bad_input(call, word):
    with pytest.raises(InputError, match=word):
        call()
