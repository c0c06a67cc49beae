"""Lemmas 1, 2, 3 and 5 of JoMA, tested against quasi-Monte-Carlo and quadrature."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.stats import qmc

from joma.core.claim import Claim, statements, within_error
from joma.theory.isotropic import (
    RELU,
    Gate,
    HomogeneousGate,
    SmoothGate,
    gate_moments,
    gated_expectation,
    mixture_flow,
    potential,
    theta_derivatives,
    theta_derivatives_printed,
)
from joma.theory.isotropic_laws import (
    Gaussian,
    IsotropicLaw,
    LaplaceMarginal,
    MultivariateT,
    RadialLaw,
    UniformBall,
)

Array = NDArray[np.float64]

SIGMOID = SmoothGate(lambda x: 0.5 * (1.0 + np.tanh(0.5 * np.asarray(x, dtype=np.float64))))
LEAKY = HomogeneousGate(0.1, 1.0)
LAWS: tuple[IsotropicLaw, ...] = (Gaussian(), UniformBall(3), MultivariateT(3), LaplaceMarginal())

STATEMENTS = statements(
    {
        "lemma1.expectation": "JoMA Lemma 1, Eq. 23 and 31-41 | E[psi] = theta_1(r)/|v| and E[x psi] = "
        "theta_1(r)/|v| xbar + theta_2(r)/|v|^3 RR'v.",
        "lemma1.always_open": "JoMA Lemma 1 and the remark to Lemma 2 (theta_1 = 1, theta_2 = 0) | With psi "
        "= 1, E[x psi] is theta_1/|v| xbar.",
        "lemma1.independent_of_v": "JoMA Lemma 1 | theta_1 and theta_2 depend only on psi and the law, but "
        "not on v.",
        "lemma1.marginal": "JoMA Eq. 33-36 | The marginal p_n follows from the radial density by Eq. 35, "
        "and Eq. 36 is Eq. 35.",
        "lemma2.flow": "JoMA Lemma 2, Eq. 42-43 and 50 | v' = 1/|v| sum a_j theta_1(r_j) xbar_j + 1/|v|^3 "
        "sum a_j theta_2(r_j) v.",
        "lemma3.derivative": "JoMA Lemma 3, Eq. 48 | F' = theta_1, with rho the distance.",
        "lemma3.split": "JoMA Lemma 3, Eq. 49 | theta_2(rho) = F(rho) - rho theta_1(rho).",
        "lemma3.activation": "JoMA Lemma 3 | F is the expected activation: E[phi(v.x + xi)] = |v| F(rho).",
        "lemma5.derivatives": "JoMA Lemma 5, Eq. 61 | theta_1' = (c_- + c_+) p_n, theta_2' = -(c_- + c_+) r "
        "p_n.",
        "lemma5.step": "JoMA Lemma 5 | phi(x) = c_- 1[x < 0] + c_+ 1[x > 0] if phi(x) = phi'(x) x.",
    },
    exact=True,
)


@cache
def _sample(kind: str, dimension: int) -> Array:
    """65,536 scrambled Sobol points of a Gaussian or of the unit ball, (2^16, dimension)."""
    uniform = qmc.Sobol(dimension + 1, seed=7).random_base2(16)
    normal = special.ndtri(np.clip(uniform[:, :dimension], 1e-12, 1 - 1e-12))
    if kind == "Gaussian":
        return np.asarray(normal)
    radius = uniform[:, dimension:] ** (1 / dimension)
    return np.asarray(normal / np.linalg.norm(normal, axis=1, keepdims=True) * radius)


def _sampled_expectation(kind: str, gate: Gate, v: Array, centre: Array, bias: float) -> tuple[float, Array]:
    x = centre + _sample(kind, v.size)
    psi = gate(x @ v + bias)
    return float(psi.mean()), np.asarray((x * psi[:, None]).mean(axis=0))


def _cases() -> list[tuple[str, IsotropicLaw, Gate, Array, Array, float]]:
    cases: list[tuple[str, IsotropicLaw, Gate, Array, Array, float]] = []
    for dimension in (2, 3):
        laws: tuple[tuple[str, IsotropicLaw], ...] = (
            ("Gaussian", Gaussian()),
            ("ball", UniformBall(dimension)),
        )
        direction = np.array([0.6, -0.8, 0.0])[:dimension]
        centre = np.array([0.3, 0.5, -0.2])[:dimension]
        for kind, law in laws:
            for norm in (0.5, 2.0):
                for gate in (RELU, SIGMOID):
                    cases.append((kind, law, gate, norm * direction, centre, 0.15 * norm))
    return cases


def lemma1() -> list[Claim]:
    """Expectations of a gate across a hyperplane."""
    right = printed = 0.0
    for kind, law, gate, v, centre, bias in _cases():
        share, mean = _sampled_expectation(kind, gate, v, centre, bias)
        for as_printed in (False, True):
            theta, vector = gated_expectation(law, gate, v, centre, bias, printed=as_printed)
            error = max(abs(theta - share), float(np.abs(vector - mean).max()))
            if as_printed:
                printed = max(printed, error)
            else:
                right = max(right, error)

    always_open = HomogeneousGate(1.0, 1.0)
    v, centre = np.array([1.2, -1.6]), np.array([0.4, 0.7])
    open_error, open_printed = (
        float(np.abs(gated_expectation(Gaussian(), always_open, v, centre, 0.3, printed=p)[1] - centre).max())
        for p in (False, True)
    )

    rho, norms = 0.4, (0.5, 1.0, 4.0)
    homogeneous = np.ptp([gate_moments(Gaussian(), LEAKY, rho * norm, norm)[0] for norm in norms])
    smooth = np.ptp([gate_moments(Gaussian(), SIGMOID, rho * norm, norm)[0] for norm in norms])

    marginals = 0.0
    for dimension in (1, 2, 3, 6):
        normal = RadialLaw(_normal_density(dimension), dimension)
        s = np.array([0.0, 0.7, 2.5])
        marginals = max(marginals, float(np.abs(normal.density(s) / Gaussian().density(s) - 1).max()))
    fronts = max(abs(_front_36(n) / _front_35(n) - 1) for n in range(3, 20))
    return [
        STATEMENTS["lemma1.expectation"].correct(
            "E[psi] = Theta_1, E[x psi] = Theta_1 xbar + Theta_2 RR'v/|RR'v| with "
            "Theta_i = int s^(i-1) psi(|v| s + r) p_n(s) ds.",
            printed_error=printed,
            error=right,
            tolerance=1e-3,
            evidence="65,536 Sobol points; Gaussian and uniform ball, n = 2, 3, |v| = .5, 2, two gates",
        ),
        STATEMENTS["lemma1.always_open"].correct(
            "It is xbar, whatever |v|.",
            printed_error=open_printed,
            error=open_error,
            tolerance=1e-12,
            evidence="|v| = 2",
        ),
        STATEMENTS["lemma1.independent_of_v"].correct(
            "True of homogeneous gates, as functions of rho = r/|v|; a smooth gate needs r and |v|.",
            printed_error=smooth,
            error=homogeneous,
            tolerance=1e-12,
            evidence="range of theta_1 over |v| = .5, 1, 4 at rho = .4: sigmoid, and leaky ReLU",
        ),
        STATEMENTS["lemma1.marginal"].judge(
            within_error(1e-9, max(marginals, fronts)),
            evidence="Gaussian in 1, 2, 3, 6 dimensions; the factors for n = 3 ... 19",
        ),
    ]


def _normal_density(n: int) -> Callable[[float], float]:
    """The standard normal density in n dimensions, as a function of the radius."""
    return lambda r: float(np.exp(-0.5 * r * r) / (2 * np.pi) ** (n / 2))


def _front_35(n: int) -> float:
    return float((n - 1) * np.pi ** ((n - 1) / 2) / special.gamma((n + 1) / 2))


def _front_36(n: int) -> float:
    if n % 2 == 0:
        return float(2 ** (n / 2) * np.pi ** (n / 2 - 1) / special.factorial2(n - 3))
    return float(2 * np.pi ** ((n - 1) / 2) / special.factorial((n - 3) // 2))


def lemma2() -> list[Claim]:
    """The flow that a mixture makes."""
    v, bias = np.array([1.2, -1.0, 0.8]), -0.3
    centres, a = np.array([[0.8, 0.1, 0.3], [0.0, -0.2, 0.1]]), np.array([1.0, -0.7])
    drift, drive = np.zeros(3), 0.0
    for centre, weight in zip(centres, a, strict=True):
        share, mean = _sampled_expectation("Gaussian", RELU, v, centre, bias)
        drift, drive = drift + weight * mean, drive + weight * share
    errors = []
    for printed in (False, True):
        found, bias_rate = mixture_flow(Gaussian(), RELU, v, bias, centres, a, printed=printed)
        errors.append(max(float(np.abs(found - drift).max()), abs(bias_rate - drive)))
    return [
        STATEMENTS["lemma2.flow"].correct(
            "v' = sum a_j [theta_1(rho_j) xbar_j + theta_2(rho_j) v/|v|], rho_j = (v.xbar_j + xi)/|v|, "
            "and xi' = sum a_j theta_1(rho_j).",
            printed_error=errors[1],
            error=errors[0],
            tolerance=1e-3,
            evidence="two Gaussians in 3 dimensions, |v| = 1.75, against 65,536 Sobol points",
        )
    ]


def lemma3() -> list[Claim]:
    """F, the expected activation."""
    derivative = split = 0.0
    h = 1e-5
    for law in LAWS:
        low = -0.9 if np.isfinite(law.support) else -40.0
        rho = np.linspace(low, 3.0, 25)
        slope = (law.log_F(rho + h) - law.log_F(rho - h)) / (2 * h)
        derivative = max(derivative, float(np.abs(slope * law.mean_excess(rho) - 1).max()))
        for at in (-0.8, 0.2):
            step = SmoothGate(lambda x: np.heaviside(x, 0.0))  # by quadrature, not by formula
            theta_1, theta_2 = gate_moments(law, step, at, 1.0)
            split = max(split, abs(theta_2 - float(law.F(at)) + at * theta_1))
    v, centre, bias = np.array([1.2, -1.6]), np.array([0.4, 0.7]), 0.25
    x = centre + _sample("Gaussian", 2)
    y = x @ v + bias
    rho_v = float(v @ centre + bias) / 2.0
    level = 2.0 * float(potential(Gaussian(), LEAKY, rho_v))
    activation = abs(float(np.where(y > 0, y, 0.1 * y).mean()) - level)
    return [
        STATEMENTS["lemma3.derivative"].judge(
            within_error(1e-7, derivative),
            evidence="relative, rho from -40 (the ball: -.9) to 3; Gaussian, ball, t_3, Laplace",
        ),
        STATEMENTS["lemma3.split"].judge(
            within_error(1e-9, split), evidence="theta_1 and theta_2 by quadrature, F in closed form"
        ),
        STATEMENTS["lemma3.activation"].judge(
            within_error(1e-3, activation), evidence="leaky ReLU, Gaussian, |v| = 2, 65,536 Sobol points"
        ),
    ]


def lemma5() -> list[Claim]:
    """How theta_1 and theta_2 change with the distance."""
    h, right, printed = 1e-5, 0.0, 0.0
    for law in LAWS:
        for rho in (-0.7, 0.3):
            ahead, behind = (np.array(gate_moments(law, LEAKY, rho + d, 1.0)) for d in (h, -h))
            slopes = (ahead - behind) / (2 * h)
            right = max(right, float(np.abs(slopes - np.array(theta_derivatives(law, LEAKY, rho))).max()))
            wrong = np.abs(slopes - np.array(theta_derivatives_printed(law, LEAKY, rho))).max()
            printed = max(printed, float(wrong))
    x = np.array([-2.0, -0.5, 0.5, 3.0])
    step = LEAKY(x)
    phi = np.where(x > 0, x, 0.1 * x)
    return [
        STATEMENTS["lemma5.derivatives"].correct(
            "theta_1' = (c_+ - c_-) p_n, theta_2' = -(c_+ - c_-) rho p_n.",
            printed_error=printed,
            error=right,
            tolerance=1e-6,
            evidence="leaky ReLU (.1, 1), central differences; four laws",
        ),
        STATEMENTS["lemma5.step"].correct(
            "That is phi'(x).",
            printed_error=np.abs(step - phi).max(),
            error=np.abs(step * x - phi).max(),
            tolerance=1e-12,
            evidence="leaky ReLU at four points",
        ),
    ]


CHECKS: Mapping[str, Callable[[], list[Claim]]] = {
    "lemma1": lemma1,
    "lemma2": lemma2,
    "lemma3": lemma3,
    "lemma5": lemma5,
}
