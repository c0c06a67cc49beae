from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from joma.core.errors import InputError
from joma.theory import feature_graph as graph

COSINE = st.floats(0, 1)


def directions(random: np.random.Generator, count: int, samples: int) -> np.ndarray:
    vectors = random.standard_normal((count, samples))
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def test_counterexample_golden(golden) -> None:
    entry = golden("cdag_counterexample")
    example = graph.counterexample()
    values = [*example.hypotheses(), example.conclusion()]
    assert np.array(values) == pytest.approx(np.array(entry["expected"]), rel=entry["rtol"])


@given(st.integers(2, 6), st.integers(0, 2**32))
def test_no_signals_fall_below_the_guarantee(samples: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    # Half of the draws are near one another, where the guarantee is positive.
    centre = directions(random, 1, samples)
    spread = random.uniform(0, 2, (4, 400, 1))
    drawn = [centre + s * directions(random, 400, samples) for s in spread]
    signals = graph.Signals(*drawn)
    first, second, third = signals.hypotheses()
    kept = (first >= 0) & (second >= 0)
    clip = [np.clip(value[kept], -1, 1) for value in (first, second, third)]
    assert np.all(signals.conclusion()[kept] >= graph.guaranteed_correlation(*clip) - 1e-9)


@given(COSINE, COSINE, st.floats(-1, 1))
def test_the_guarantee_is_attained_and_positive_exactly_inside_the_condition(
    c1: float, c2: float, c3: float
) -> None:
    bound = float(graph.guaranteed_correlation(c1, c2, c3))
    extreme = graph.extremal_signals(c1, c2, c3)
    first, second, third = extreme.hypotheses()
    assert first >= c1 - 1e-9
    assert second == pytest.approx(c2, abs=1e-9)
    assert abs(third) >= abs(c3) - 1e-9
    assert third * c3 >= 0
    assert float(extreme.conclusion()) == pytest.approx(bound, abs=1e-12)
    excess = float(graph.angle_sum(c1, c2, c3)) - np.pi / 2
    assume(abs(excess) > 1e-9)
    assert (bound > 0) == (excess < 0)


def test_the_guarantee_is_what_a_search_finds() -> None:
    def found(c1: float, c2: float, c3: float) -> float:
        angles = np.arccos([c1, c3, c2])
        grid = [np.linspace(-angle, angle, 61) for angle in angles]
        label, latent, feature = np.meshgrid(*grid, indexing="ij")
        turned = label + latent  # angles of z_beta and f_k against s
        return float((np.cos(turned) * np.cos(turned + feature)).min())

    for place in [(0.9, 0.95, 0.9), (0.5, 0.766, 0.5), (0.2, 0.3, 0.1), (0.99, 0.2, 0.99)]:
        assert float(graph.guaranteed_correlation(*place)) == pytest.approx(found(*place), abs=2e-3)


@pytest.mark.parametrize(("samples", "rate"), [(2, 1 / 4), (3, 1 / np.pi)])
def test_violation_rate_in_closed_form(samples: int, rate: float) -> None:
    assert graph.violation_rate(samples) == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize("samples", [2, 5, 50])
def test_violation_rate_of_random_signals(samples: int) -> None:
    random = np.random.default_rng(samples)
    signals = graph.Signals(*(directions(random, 40_000, samples) for _ in range(4)))
    first, second, _ = signals.hypotheses()
    failed = (signals.conclusion() <= 0)[(first > 0) & (second > 0)]
    error = np.sqrt(failed.mean() * (1 - failed.mean()) / failed.size)
    assert abs(failed.mean() - graph.violation_rate(samples)) < 4 * error


def test_violation_rate_tends_to_a_coin() -> None:
    for samples in (10**3, 10**6):
        law = 0.5 - np.sqrt(2 / (np.pi**3 * samples))
        assert graph.violation_rate(samples) == pytest.approx(law, abs=1 / samples)


@given(st.integers(2, 5), st.integers(0, 2**32))
def test_weaker_requirement(samples: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    signals = graph.Signals(*(directions(random, 500, samples) for _ in range(4)))
    near = signals.hypotheses()[1]
    passed = graph.correlation(signals.latent, signals.gradient)
    kept = near > 0
    conclusion = signals.conclusion()[kept]
    bound = graph.guaranteed_without_label(np.clip(passed[kept], -1, 1), np.clip(near[kept], 0, 1))
    assert np.all(conclusion >= bound - 1e-9)
    assert np.all((bound > 1e-12) <= (np.abs(passed[kept]) > np.sqrt(1 - near[kept] ** 2) - 1e-9))


def test_weight_flow_is_gradient_ascent() -> None:
    random = np.random.default_rng(0)
    feature, gradient = random.standard_normal((2, 30))
    weight, track = 0.2, []
    for _ in range(50):
        weight += 0.01 * (gradient * feature).sum()
        track.append(weight)
    times = 0.01 * np.arange(1, 51)
    assert graph.weight_flow(feature, gradient, times=times, start=0.2) == pytest.approx(np.array(track))
    drift = (gradient * feature).sum()
    start = -0.5 * np.sign(drift)
    onset = graph.onset(feature, gradient, start=start, rate=2.0)
    assert graph.weight_flow(feature, gradient, times=onset, start=start, rate=2.0) == pytest.approx(
        0, abs=1e-12
    )
    assert graph.onset(feature, gradient, start=-start) == 0


def test_recursion_counterexample() -> None:
    latent, feature, passed = np.array([1.0, 1.0]), np.array([1.0, 0.0]), np.array([-0.1, 1.0])
    gate = feature > 0
    assert graph.correlation(latent, passed, normalised=False) == pytest.approx(0.9)
    assert graph.correlation(latent, gate * passed, normalised=False) == pytest.approx(-0.1)
    near, agreed = graph.correlation(latent, feature), graph.correlation(latent, passed)
    assert graph.gated_correlation_bound(agreed, near) == 0


@given(st.integers(2, 6), st.integers(0, 2**32))
def test_gated_bound_holds_for_relu(samples: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    latent = directions(random, 300, samples)
    feature = np.maximum(latent + random.uniform(0, 2, (300, 1)) * directions(random, 300, samples), 0)
    passed = latent + random.uniform(0, 1.5, (300, 1)) * directions(random, 300, samples)
    alive = feature.any(axis=-1)
    latent, feature, passed = latent[alive], feature[alive], passed[alive]
    near, agreed = graph.correlation(latent, feature), graph.correlation(latent, passed)
    kept = (near > 0) & (agreed > 0) & (near**2 + agreed**2 > 1.0001)
    gated = graph.correlation(latent[kept], ((feature > 0) * passed)[kept])
    bound = graph.gated_correlation_bound(np.minimum(agreed[kept], 1), np.minimum(near[kept], 1))
    assert np.all(gated >= bound - 1e-9)


def test_gated_bound_is_sharp() -> None:
    """Among all gradients of cosine C with the latent the worst comes down to the bound."""
    near, agreed = 0.9, 0.8
    closed = np.sqrt(1 - near**2)
    latent = np.array([near, 0.0, closed])  # two open samples, one closed
    assert graph.correlation(latent, [1.0, 0.0, 0.0]) == pytest.approx(near)
    turn = np.linspace(0, 2 * np.pi, 20_001)[:, None]
    across = np.cos(turn) * np.array([closed, 0, -near]) + np.sin(turn) * np.array([0, 1.0, 0])
    gradients = agreed * latent + np.sqrt(1 - agreed**2) * across
    assert graph.correlation(latent, gradients) == pytest.approx(agreed)
    worst = graph.correlation(latent, gradients * np.array([1, 1, 0])).min()
    assert worst == pytest.approx(float(graph.gated_correlation_bound(agreed, near)), abs=1e-6)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(-1, 1))
def test_next_level_loses_and_is_the_law_of_sines(c1: float, c2: float, c3: float) -> None:
    total = float(graph.angle_sum(c1, c2, c3))
    assume(abs(total - np.pi / 2) > 1e-6)
    child = float(graph.next_level(c1, c2, c3))
    if total > np.pi / 2:
        assert child == 0
    else:
        a, b, c = np.arccos([c1, abs(c3), c2])
        assert 1 - child**2 == pytest.approx(np.sin(a + b) ** 2 + np.sin(c) ** 2, abs=1e-12)
        assert child <= c1 + 1e-12


def test_next_level_holds_for_random_parents() -> None:
    """Two parents, a shared latent, a ReLU child: what it passes on agrees as well as promised."""
    random = np.random.default_rng(8)
    samples, tested = 12, 0
    for _ in range(4000):
        latent = directions(random, 1, samples)[0]
        latent = np.where(random.uniform(size=samples) < 0.9, np.abs(latent), latent)
        feature = np.maximum(latent + 0.2 * random.uniform() * directions(random, 1, samples)[0], 0)
        labels = latent + 0.3 * random.uniform() * directions(random, 2, samples)
        gradients = labels + 0.3 * random.uniform() * directions(random, 2, samples)
        c1 = graph.correlation(labels, gradients).min()
        c2 = float(graph.correlation(latent, feature))
        c3 = graph.correlation(labels, latent).min()
        if min(c1, c2, c3) <= 0 or graph.angle_sum(c1, c2, c3) >= np.pi / 2:
            continue
        passed = ((gradients @ feature)[:, None] * gradients).sum(axis=0)
        gated = graph.correlation(latent, (feature > 0) * passed)
        assert gated >= graph.next_level(c1, c2, c3) - 1e-9
        tested += 1
    assert tested > 500


def test_recursion_depth() -> None:
    cosines = np.cos(np.deg2rad([31, 29, 15, 5, 1]))
    depths = [graph.recursion_depth(c, c, c) for c in cosines]
    assert depths[0] == 0
    assert depths == sorted(depths)
    assert all(depth < np.pi / 2 / np.arccos(c) for depth, c in zip(depths, cosines, strict=True))
    assert graph.recursion_depth(1, 1, 1, most=7) == 7


@given(st.integers(0, 2**32))
def test_equation_2_is_exact_for_two_values_only(seed: int) -> None:
    random = np.random.default_rng(seed)
    latent = np.array([0, 1] * 10)
    centres = random.standard_normal((2, 4))
    weights, gradients = random.standard_normal(4), random.standard_normal(20)
    inputs = centres[latent]
    exact = graph.weight_gradient(weights, inputs, gradients)
    assert graph.two_valued_weight_gradient(weights, inputs, gradients, latent) == pytest.approx(
        exact, abs=1e-12
    )
    ideal = 2.0 * latent - 1
    assert graph.two_valued_weight_gradient(weights, inputs, gradients, latent, ideal=True) == pytest.approx(
        graph.weight_gradient(weights, inputs, ideal), abs=1e-12
    )
    spread = inputs + random.standard_normal(inputs.shape)
    law = graph.two_valued_weight_gradient(weights, spread, gradients, latent, derivative=np.ones_like)
    true = graph.weight_gradient(weights, spread, gradients, derivative=np.ones_like)
    assert np.linalg.norm(law - true) > 1e-6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: graph.correlation(np.ones(3), np.ones(4)), "same number of samples"),
        (lambda: graph.correlation(np.ones(3), np.zeros(3)), "zero signal"),
        (lambda: graph.correlation([np.nan, 1.0], np.ones(2)), "not finite"),
        (lambda: graph.violation_rate(1), "at least two"),
        (lambda: graph.angle_sum(1.1, 0.5, 0.5), r"label_gradient = 1\.1 is outside \[0, 1\]"),
        (lambda: graph.guaranteed_correlation(0.5, -0.1, 0.5), "latent_feature"),
        (lambda: graph.guaranteed_correlation(0.5, 0.5, float("nan")), "label_latent"),
        (lambda: graph.guaranteed_without_label(2, 0.5), "latent_gradient"),
        (lambda: graph.gated_correlation_bound(-0.1, 0.5), "latent_gradient"),
        (lambda: graph.onset([1.0, 0.0], [0.0, 1.0], start=0.1), "only if neither"),
        (lambda: graph.weight_gradient(np.ones(2), np.ones((3, 4)), np.ones(3)), r"\(samples, d\)"),
        (
            lambda: graph.two_valued_weight_gradient(np.ones(2), np.ones((3, 2)), np.ones(3), np.ones(3)),
            "both must occur",
        ),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
