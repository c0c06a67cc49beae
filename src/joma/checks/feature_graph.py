"""The draft "Multi-layer Analysis" (CDAG): its theorem, its weight, its recursion, its Eq. 2-3."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad

from joma.core.claim import Claim, at_most, below, equal, statements, within_error
from joma.theory import feature_graph as graph

Array = NDArray[np.float64]
SOURCE = "CDAG Thm 1"
ROUNDING = 1e-10
"""acos loses up to half the digits next to 1; everything else here is exact to rounding."""

STATEMENTS = statements(
    {
        "cdag.theorem1": f"{SOURCE} | corr(z_alpha, s) > 0, corr(z_beta, f_k) > 0, |corr(z_alpha, z_beta)| "
        "> 0 give corr(z_beta, g_jk) > 0.",
        "cdag.sharp": f"{SOURCE} | The corrected condition and its bound cannot be improved: planar signals "
        "attain them.",
        "cdag.coin": f"{SOURCE} | Among random signals that meet the hypotheses, the conclusion fails at "
        "the rate E[theta | theta < pi/2] / pi: 1/4 for two samples, 1/pi for three, towards 1/2 for many.",
        "cdag.weaker": f"{SOURCE} | |corr(z_beta, s)| > sqrt(1 - C2^2) is enough, without any label.",
        "cdag.normalisation": "CDAG Sec. 1.1 | corr is the inner product over the data, and large "
        "thresholds C1, C2, C3 suffice.",
        "cdag.recursion": "CDAG Sec. 1.2 | corr(z_beta, f_k) and corr(z_beta, g_k) large make corr(z_beta, "
        "sigma'_k g_k) large.",
        "cdag.depth": "CDAG Sec. 1.2 | The recursion could continue. By the bound, sin^2 a' = sin^2(a + b) "
        "+ sin^2 c, it does, and ends before 90/x levels at an angle of x degrees for each of a, b, c.",
        "cdag.equation2": "CDAG Eq. 2 | w_j' is the sum over z = 1, 0 of sigma'(w . x) E[g | z] P[z] x, "
        "exactly if z gives x. It breaks where x spreads around its class means, as the draft's own note "
        "would have it.",
        "cdag.equation3": "CDAG Eq. 3 | E[g | z = 1] is about 1 and E[g | z = 0] about -1.",
        "cdag.weight": f"{SOURCE}, proof | w_jk = corr(f_k, s) by the gradient rule.",
    },
    exact=True,
)


def _directions(random: np.random.Generator, count: int, samples: int) -> Array:
    vectors = random.standard_normal((count, samples))
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def _random_signals(random: np.random.Generator, count: int, samples: int) -> graph.Signals:
    """Independent directions that meet the printed hypotheses with some positive C's."""
    signals = graph.Signals(*(_directions(random, count, samples) for _ in range(4)))
    first, second, _ = signals.hypotheses()
    kept = (first > 0) & (second > 0)
    return graph.Signals(*(x[kept] for x in _four(signals)))


def _four(signals: graph.Signals) -> tuple[Array, Array, Array, Array]:
    return signals.label, signals.latent, signals.feature, signals.gradient


def _rate(samples: int) -> float:
    """E[theta | theta < pi/2] / pi with a density proportional to sin^(n-2) theta, by plain quadrature."""

    def moment(power: int) -> float:
        return float(quad(lambda t: t**power * np.sin(t) ** (samples - 2), 0, np.pi / 2, epsrel=1e-12)[0])

    return moment(1) / moment(0) / np.pi


def _planar(*degrees: float) -> graph.Signals:
    """Label, latent, feature, gradient at these angles in the plane."""
    return graph.Signals(*(np.array([np.cos(a), np.sin(a)]) for a in np.deg2rad(degrees)))


def theorem() -> list[Claim]:
    """The statement as printed, the sharp condition, and how often the printed one fails."""
    example = graph.counterexample()
    printed = float(example.conclusion())
    hypotheses = [float(value) for value in example.hypotheses()]

    random = np.random.default_rng(1)
    sizes = (2, 3, 50)
    gap, below, rates, expected, errors, exact = [], [], [], [], [], []
    for samples in sizes:
        signals = _random_signals(random, 60_000, samples)
        first, second, third = signals.hypotheses()
        conclusion = signals.conclusion()
        gap.append(float((conclusion - graph.guaranteed_correlation(first, second, third)).min()))
        rate = float((conclusion <= 0).mean())
        rates.append(rate)
        expected.append(graph.violation_rate(samples))
        errors.append(abs(rate - expected[-1]) / np.sqrt(rate * (1 - rate) / len(conclusion)))
        exact.append(abs(expected[-1] - _rate(samples)))
        passed, feature = graph.correlation(signals.latent, signals.gradient), second
        enough = np.abs(passed) > np.sqrt(1 - feature**2)
        bound = graph.guaranteed_without_label(passed[enough], feature[enough])
        if enough.any():
            below.append(float((conclusion[enough] - bound).min()))

    # Just inside the condition every conclusion is positive, just outside one is negative.
    attained, signs = 0.0, []
    for c1, c2, c3 in (
        (0.9, 0.95, 0.9),
        (0.5, 0.99, 0.9),
        (0.8, 0.9, -0.99),
        (0.97, 0.7, 0.97),
        (0.5, 0.7, 0.5),
    ):
        extreme = graph.extremal_signals(c1, c2, c3)
        bound_here = float(graph.guaranteed_correlation(c1, c2, c3))
        attained = max(attained, abs(float(extreme.conclusion()) - bound_here))
        excess = float(graph.angle_sum(c1, c2, c3)) - np.pi / 2
        signs.append((bound_here > 0) == (excess < 0))

    off = 0.0
    for turn, apart in ((20, 30), (10, 75), (50, 5)):
        bound = graph.guaranteed_without_label(np.cos(np.deg2rad(turn)), np.cos(np.deg2rad(apart)))
        off = max(off, abs(float(_planar(0, 0, -apart, turn).conclusion()) - float(bound)))

    large = 1e3
    scaled = graph.Signals(*(large * x for x in _four(example)))
    scaled_hypotheses = min(float(value) for value in scaled.hypotheses(normalised=False))
    cosines = [float(value) for value in scaled.hypotheses()]
    return [
        STATEMENTS["cdag.theorem1"].correct(
            "For unit signals it holds if and only if acos C1 + acos C2 + acos C3 < pi/2; then "
            "corr(z_beta, g_jk) >= cos(a + b) cos(a + b + c).",
            printed_error=max(0.0, -printed),
            error=max(0.0, -min(gap)),
            tolerance=ROUNDING,
            evidence=f"counterexample: hypotheses {', '.join(f'{h:.3f}' for h in hypotheses)}, "
            f"conclusion {printed:.4f}; random signals over 2, 3, 50 samples fall short of the bound by at "
            f"most {max(0.0, -min(gap)):.1e}",
        ),
        STATEMENTS["cdag.sharp"].judge(
            within_error(ROUNDING, attained, of="distance from the bound")
            & equal(
                0,
                signs.count(False),
                of="number of choices where the bound's sign is not that of pi/2 less the angles",
            ),
            evidence="five choices of (C1, C2, C3), two inside the condition, three outside",
        ),
        STATEMENTS["cdag.coin"].judge(
            within_error(4, errors, of="error for random signals", unit="standard errors")
            & within_error(1e-9, exact, of="error for the integral"),
            evidence="; ".join(
                f"n = {n}: {rate:.4f}, predicted {law:.4f}"
                for n, rate, law in zip(sizes, rates, expected, strict=True)
            ),
        ),
        STATEMENTS["cdag.weaker"].judge(
            within_error(
                ROUNDING,
                max(off, -min(below)),
                of="shortfall below cos(t) cos(t + c), or distance of planar signals from it,",
            ),
            evidence="random signals over 2, 3, 50 samples that meet it: shortfall below cos(t) cos(t + c)",
        ),
        STATEMENTS["cdag.normalisation"].correct(
            "Only cosines can be compared with thresholds: they do not change with the signals' scale.",
            printed_error=max(0.0, -float(scaled.conclusion(normalised=False))),
            error=max(abs(a - b) for a, b in zip(cosines, hypotheses, strict=True)),
            tolerance=ROUNDING,
            evidence=f"counterexample scaled by {large:g}: all hypotheses above {scaled_hypotheses:.3g}, the "
            "conclusion still negative; cosines unchanged",
        ),
    ]


def weight() -> list[Claim]:
    """What w_jk is: the first step, not the weight."""
    random = np.random.default_rng(2)
    feature, gradient = random.standard_normal((2, 40))
    start, rate, steps, h = 0.3, 5e-4, 400, 1e-3

    def gain(weight: float) -> float:
        """What the signal makes of a node that passes ``weight`` times the feature on."""
        return float((gradient * (weight * feature)).sum())

    walked = start
    for _ in range(steps):
        walked += rate * (gain(walked + h) - gain(walked - h)) / (2 * h)
    target = float(graph.correlation(feature, gradient, normalised=False))
    law = float(graph.weight_flow(feature, gradient, times=steps * rate, start=start, rate=1.0))
    return [
        STATEMENTS["cdag.weight"].correct(
            "Its first step from zero; with stationary signals w(t) = w(0) + eta t corr(f_k, s).",
            printed_error=abs(target - walked),
            error=abs(law - walked),
            tolerance=ROUNDING,
            evidence=f"{steps} steps along the numerical derivative of E[s w f], random signals of 40 "
            "samples",
        ),
    ]


def recursion() -> list[Claim]:
    """The step to the next level, through the child's own nonlinearity."""
    latent, feature = np.array([1.0, 1.0]), np.array([1.0, 0.0])
    near_feature = float(graph.correlation(latent, feature, normalised=False))
    passed, gate = np.array([-0.1, 1.0]), np.array([1.0, 0.0])
    before = float(graph.correlation(latent, passed, normalised=False))
    after = float(graph.correlation(latent, gate * passed, normalised=False))

    random = np.random.default_rng(3)
    short = 0.0
    tested = 0
    for samples in (2, 3, 6, 20):
        z = _directions(random, 40_000, samples)
        # Features and gradients in a range of distances from the latent, so that the condition is often met.
        f = np.maximum(z + random.uniform(0, 2, (len(z), 1)) * _directions(random, len(z), samples), 0)
        g = z + random.uniform(0, 1.5, (len(z), 1)) * _directions(random, len(z), samples)
        alive = np.linalg.norm(f, axis=-1) > 0
        z, f, g = z[alive], f[alive], g[alive]
        near, agreed = graph.correlation(z, f), graph.correlation(z, g)
        met = (near > 0) & (agreed > 0) & (near**2 + agreed**2 > 1)
        z, f, g = z[met], f[met], g[met]
        bound = graph.gated_correlation_bound(np.minimum(agreed[met], 1), np.minimum(near[met], 1))
        short = max(short, float((bound - graph.correlation(z, (f > 0) * g)).max()))
        tested += len(z)
    # The gradient that loses most where the feature is off: the bound is attained.
    off = 0.0
    for near_one, agreed_one in ((0.8, 0.9), (0.95, 0.5), (0.7, 0.75)):
        away = np.sqrt(1 - near_one**2)
        along = (agreed_one**2 - away**2) / (agreed_one * near_one)
        across = np.sqrt(1 - along**2 - (away / agreed_one) ** 2)
        z, g = np.array([near_one, 0.0, away]), np.array([along, across, away / agreed_one])
        bound = graph.gated_correlation_bound(agreed_one, near_one)
        off = max(off, abs(float(graph.correlation(z, g * [1, 1, 0]) - bound)))
    depths = {
        angle: graph.recursion_depth(*(np.cos(np.deg2rad(angle)),) * 3)
        for angle in (1, 2, 3, 5, 8, 15, 25, 31)
    }
    share = max(depth * angle / 90 for angle, depth in depths.items())
    return [
        STATEMENTS["cdag.recursion"].correct(
            "For ReLU: cos(z_beta, sigma'_k g_k) >= sqrt(C^2 + C2^2 - 1), C and C2 the two cosines, if "
            "C^2 + C2^2 > 1; attained.",
            printed_error=max(0.0, -after),
            error=max(off, short),
            tolerance=ROUNDING,
            evidence=f"z = (1, 1), f = (1, 0), g = (-.1, 1): correlations {near_feature:.0f}, {before:.1f}, "
            f"then {after:.1f}; {tested} random ReLU features that meet the condition fall short by at most "
            f"{max(0.0, short):.1e}",
        ),
        STATEMENTS["cdag.depth"].judge(
            below(1, share, of="number of levels in units of 90/x", across="at every x")
            & equal(0, depths[31], of="number of levels at 31 degrees")
            & at_most(0, np.diff(list(depths.values())), of="growth of that number with x"),
            evidence="levels reached: "
            + ", ".join(f"{depth} at {angle} degrees" for angle, depth in depths.items()),
        ),
    ]


def two_values() -> list[Claim]:
    """Eq. 2 and 3: one latent, two values of the input."""
    random = np.random.default_rng(4)
    samples, width = 400, 6
    latent = (random.uniform(size=samples) < 0.3).astype(np.int64)
    centres = random.standard_normal((2, width))
    weights = random.standard_normal(width)
    exact_inputs = centres[latent]
    spread_inputs = exact_inputs + random.standard_normal((samples, width))
    gradient = latent - 1 / (1 + np.exp(-(exact_inputs @ weights)))  # a logistic loss on top of the node

    def relative(inputs: Array, *, ideal: bool = False) -> float:
        truth = graph.weight_gradient(weights, inputs, gradient, derivative=np.ones_like)
        law = graph.two_valued_weight_gradient(
            weights, inputs, gradient, latent, derivative=np.ones_like, ideal=ideal
        )
        return float(np.linalg.norm(law - truth) / np.linalg.norm(truth))

    def relative_gated(inputs: Array) -> float:
        truth = graph.weight_gradient(weights, inputs, gradient, derivative=_softplus_slope)
        law = graph.two_valued_weight_gradient(weights, inputs, gradient, latent, derivative=_softplus_slope)
        return float(np.linalg.norm(law - truth) / np.linalg.norm(truth))

    return [
        STATEMENTS["cdag.equation2"].judge(
            within_error(ROUNDING, relative_gated(exact_inputs)),
            null=relative_gated(spread_inputs),
            null_description="inputs that spread around the two points, class means in the formula",
            evidence=f"{samples} samples in {width} dimensions, softplus, logistic gradient: relative errors",
        ),
        STATEMENTS["cdag.equation3"].correct(
            "E[g | z] as it is: for a logistic loss 1 - p and -p, which fall as the node learns.",
            printed_error=relative(exact_inputs, ideal=True),
            error=relative(exact_inputs),
            tolerance=ROUNDING,
            evidence=f"{samples} samples on two points, linear node, logistic gradient: relative errors",
        ),
    ]


def _softplus_slope(preactivation: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-preactivation)))


def cdag() -> list[Claim]:
    """All of the draft."""
    return [*theorem(), *weight(), *recursion(), *two_values()]


CHECKS: dict[str, Callable[[], list[Claim]]] = {"cdag": cdag}
