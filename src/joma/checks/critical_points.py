"""Lemma 4 with its missing condition, the search for critical points, and Theorem 3."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from joma.core.claim import Claim, above, at_least, equal, statements, within_error
from joma.core.errors import InputError
from joma.theory.critical_points import (
    CriticalPoint,
    balancing_ratio,
    equation_58,
    find_critical_points,
    linearise,
    linearise_printed,
    partner,
)
from joma.theory.isotropic import RELU, mixture_flow
from joma.theory.isotropic_laws import Gaussian, IsotropicLaw, LaplaceMarginal, MultivariateT, UniformBall

Array = NDArray[np.float64]

STATEMENTS = statements(
    {
        "lemma4.gaussian_runs_away": "JoMA Lemma 4 | With Gaussian data (v, xi) grows linearly for ever "
        "instead of reaching a critical point.",
        "lemma4.necessary": "JoMA Lemma 4, Eq. 54 | At a critical point sum_j a_j F(r_j) = 0 (with "
        "distances rho_j).",
        "lemma4.sufficient": "JoMA Lemma 4, Eq. 56 | F(r_+)/F(r_-) = theta_1(r_+)/theta_1(r_-) = a_-/a_+ is "
        "necessary and sufficient.",
        "lemma4.balance": "JoMA Lemma 4, Eq. 51-53 | |v| v.v' = sum_j a_j F(r_j) - |v| xi xi'.",
        "lemma4.none_for_log_concave": "JoMA Lemma 4 and Eq. 57-59 (existence) | For strictly log-concave "
        "laws H = F/theta_1 rises, and there is no critical point mu != 0 of the joint flow of v and xi.",
        "lemma4.laplace_boundary": "JoMA Eq. 58 | The Laplace marginal is the boundary: theta_2(0) p_n(0) = "
        "1/4 and H = 1 on rho <= 0, where every point is critical for its own ratio.",
        "lemma4.ratio_range": "JoMA Eq. 59 | Every ratio a_-/a_+ in S lies in (1/2, 1) or (1, 2).",
        "theorem3.matrix": "JoMA Thm 3, Eq. 72-74 | C(mu) with beta_2 = a_+ |xbar_+|/|mu|^4 (xi theta_1' - "
        "2 theta_1).",
        "theorem3.sign": "JoMA Thm 3, Eq. 5 against Eq. 72-74 | s_mu stands both before the braces (Eq. 5) "
        "and in beta_1, beta_2 (Eq. 73-74).",
        "theorem3.eigenvalue_along": "JoMA Thm 3 and A.4 (xi* < 0) | With Eq. 73-74 the eigenvalue along mu "
        "is (a_+ X/l^2)(xi theta_1' - theta_1): negative whenever xi <= 0, so that mu would never be stable.",
        "theorem3.stability": "JoMA Thm 3 | C is positive definite, and mu stable at fixed xi, if and only "
        "if s = +1, rho_- != 0 and a_- p(rho_-) > a_+ p(rho_+).",
        "theorem3.ray": "JoMA Thm 3 | In the joint flow a critical point is a ray: J (mu, xi) = 0.",
        "lemma4.equation_58": "JoMA Eq. 58 | theta_2(0) p_n(0) > 1/4 suffices for critical points (it is "
        "not necessary: t_3 has {of_t_3:.3f} and has them).",
    },
    exact=True,
)


def _flow(law: IsotropicLaw, state: Array, centre: Array, a_plus: float, a_minus: float) -> Array:
    """(v', xi') of state (v, xi), classes at ``centre`` and at 0."""
    centres = np.stack([centre, np.zeros_like(centre)])
    drift, drive = mixture_flow(law, RELU, state[:-1], float(state[-1]), centres, [a_plus, -a_minus])
    return np.append(drift, drive)


def _partner(law: IsotropicLaw, rho: float) -> CriticalPoint:
    pair = partner(law, rho)
    if pair is None:
        raise InputError(f"{law.name} has no second rho with the mean excess of rho = {rho:g}.")
    return pair


def _jacobian(rate: Callable[[Array], Array], at: Array) -> Array:
    h = 1e-5
    return np.stack([(rate(at + h * e) - rate(at - h * e)) / (2 * h) for e in np.eye(at.size)], axis=1)


def lemma4() -> list[Claim]:
    """Where v' = 0 and xi' = 0."""
    heavy = [(MultivariateT(nu), rho) for nu, rho in ((3.0, -3.0), (3.0, -1.0), (1.5, -0.1))]
    at_rest = oblique = residual = 0.0
    ratios = []
    for law, rho in heavy:
        pair = _partner(law, rho)
        ratios.append(pair.amplitude_ratio)
        quotient = float(law.F(pair.rho_plus) / law.F(rho))
        residual = max(residual, abs(quotient / pair.amplitude_ratio - 1))
        state = 1.7 * np.array([1.0, 0.0, rho])
        for aside in (0.0, 0.5):
            rate = _flow(law, state, np.array([pair.distance, aside]), 1.0, pair.amplitude_ratio)
            size = float(np.abs(rate).max())
            if aside:
                oblique = max(oblique, size)
            else:
                at_rest = max(at_rest, size)

    balance, balance_printed = _balance()
    concave = (Gaussian(), UniformBall(2), UniformBall(3), UniformBall(10))
    distances = (0.3, 1.0, 4.0)
    searches = [find_critical_points(law, d) for law in concave for d in distances]
    heavy_search = find_critical_points(MultivariateT(3), 4.4)
    counts = [len(s.points) + (s.continuum is not None) for s in searches]
    laplace = max(
        float(np.abs(LaplaceMarginal().mean_excess(np.linspace(-40, 0, 81)) - 1).max()),
        abs(equation_58(LaplaceMarginal()) - 0.25),
    )
    sufficient = [MultivariateT(nu) for nu in (1.2, 1.5, 1.8)]
    products = [equation_58(law) for law in sufficient]
    found = [len(find_critical_points(law, 1.0).points) for law in sufficient]
    outside = max(max(ratio - 2.0, 0.5 - ratio, 0.0) for ratio in ratios)
    return [
        STATEMENTS["lemma4.necessary"].judge(
            within_error(1e-10, max(at_rest, residual)),
            evidence="three critical points of t_3 and t_1.5: v' and xi' vanish and F_+/F_- = a_-/a_+",
        ),
        STATEMENTS["lemma4.sufficient"].correct(
            "Also needed: v parallel to xbar_+ - xbar_-, so that |rho_+ - rho_-| = |xbar_+ - xbar_-|; "
            "critical points exist for special a_-/a_+ only, and come as rays.",
            printed_error=oblique,
            error=at_rest,
            tolerance=1e-10,
            evidence="largest of |v'|, |xi'| where Eq. 56 holds, v aligned with the centres or not",
        ),
        STATEMENTS["lemma4.balance"].correct(
            "v.v' + xi xi' = |v| sum_j a_j F(rho_j).",
            printed_error=balance_printed,
            error=balance,
            tolerance=1e-12,
            evidence="Gaussian, |v| = 2",
        ),
        STATEMENTS["lemma4.none_for_log_concave"].judge(
            above(0, [s.least_rise for s in searches], of="rise of ln H over any distance")
            & equal(0, counts, of="number of critical points", across="for every such law")
            & at_least(1, len(heavy_search.points), of="number of critical points for t_3"),
            null=heavy_search.least_rise,
            null_description=f"multivariate t_3, where the same search finds {len(heavy_search.points)}",
            evidence="Gaussian and uniform ball n = 2, 3, 10; centres .3, 1, 4 apart; rho from -40 to 10",
        ),
        _divergence(),
        STATEMENTS["lemma4.laplace_boundary"].judge(
            within_error(1e-13, laplace), evidence="rho from -40 to 0"
        ),
        STATEMENTS["lemma4.equation_58"]
        .fill(of_t_3=equation_58(MultivariateT(3)))
        .judge(
            above(0, found, of="number of critical points", across="for each law")
            & above(0.25, products, of="theta_2(0) p_n(0)", across="for each law"),
            null=sum(len(s.points) for s in searches),
            null_description="laws that do not fulfil it: Gaussian, uniform balls",
            evidence="t_1.2, t_1.5, t_1.8; products " + ", ".join(f"{p:.3f}" for p in products),
        ),
        STATEMENTS["lemma4.ratio_range"].correct(
            "Not for S as defined: only with y restricted to [1/2, 1), where it is trivial; t_3 has "
            "ratios " + ", ".join(f"{ratio:.4g}" for ratio in ratios[:2]) + ".",
            printed_error=outside,
            error=residual,
            tolerance=1e-10,
            evidence="how far outside the interval; and how well Eq. 56 holds there (relative)",
        ),
    ]


def _balance() -> tuple[float, float]:
    law, centre = Gaussian(), np.array([0.9, 0.4])
    state = np.array([1.2, -1.6, 0.3])
    rate = _flow(law, state, centre, 1.0, 0.7)
    norm = 2.0
    rhos = np.array([state[:2] @ centre + state[2], state[2]]) / norm
    level = float(np.array([1.0, -0.7]) @ law.F(rhos))
    printed_level = float(np.array([1.0, -0.7]) @ law.F(norm * rhos))
    growth, drive = float(state[:2] @ rate[:2]), float(state[2] * rate[2])
    return abs(growth + drive - norm * level), abs(norm * growth + norm * drive - printed_level)


def _divergence() -> Claim:
    """The joint flow with Gaussian data, which has nowhere to rest."""
    worst = 0.0
    sizes = []
    for ratio in (0.8, 1.5, 3.0):

        def rate(_: float, state: Array, r: float = ratio) -> Array:
            return _flow(Gaussian(), state, np.array([1.0, 0.0]), 1.0, r)

        path = solve_ivp(
            rate, (0.0, 400.0), [0.4, 0.3, 0.0], t_eval=[100.0, 200.0, 400.0], rtol=1e-8, atol=1e-10
        )
        norm = np.linalg.norm(path.y, axis=0)
        sizes.append(float(norm[-1]))
        worst = max(worst, abs(float((norm[2] - norm[1]) / (norm[1] - norm[0])) / 2 - 1))
    return STATEMENTS["lemma4.gaussian_runs_away"].judge(
        within_error(1e-5, worst),
        evidence="a_-/a_+ = .8, 1.5, 3; |(v, xi)| at t = 400: "
        + ", ".join(f"{s:.0f}" for s in sizes)
        + "; relative difference of its speed over t = 200-400 and 100-200",
    )


def _settings() -> list[tuple[IsotropicLaw, float, float, int, int]]:
    """law, rho_-, distance, s, dimension. |mu| = 1, where Lemma 1's misprint does not show."""
    return [
        (Gaussian(), -0.5, 1.1, 1, 3),
        (Gaussian(), 0.4, 0.8, -1, 2),
        (MultivariateT(3), -3.0, 4.396838645938642, 1, 5),
        (MultivariateT(1.5), -0.8, 1.2, 1, 2),
        (UniformBall(3), -0.3, 0.6, 1, 3),
        (MultivariateT(3), -3.0, 1.0, 1, 2),
        (MultivariateT(3), -3.0, 2.0, -1, 3),
    ]


def theorem3() -> list[Claim]:
    """The linearised flow near a critical point, xi held fixed."""
    right = printed = twice = along = along_printed = neutral = 0.0
    bare = np.inf
    wrong_signs = wrong_by_sign = 0
    for law, rho, distance, s, dimension in _settings():
        a_plus = 1.3
        a_minus = a_plus * balancing_ratio(law, rho, distance, s=s)
        centre = np.zeros(dimension)
        centre[0] = distance
        mu = s * centre / distance

        def drift(
            v: Array, law: IsotropicLaw = law, xi: float = rho, c: Array = centre, a: float = a_minus
        ) -> Array:
            return _flow(law, np.append(v, xi), c, 1.3, a)[:-1]

        measured = -_jacobian(drift, mu)
        ours = linearise(law, norm=1.0, rho_minus=rho, distance=distance, a_plus=a_plus, a_minus=a_minus, s=s)
        theirs = linearise_printed(law, norm=1.0, rho_minus=rho, distance=distance, a_plus=a_plus, s=s)
        right = max(right, float(np.abs(measured - ours.matrix(mu)).max()))
        printed = max(printed, float(np.abs(measured - theirs.matrix(mu)).max()))
        if s < 0:
            twice = max(twice, float(np.abs(measured + ours.matrix(mu)).max()))
        slope = float(mu @ measured @ mu)
        along = max(along, abs(slope - ours.along))
        if s > 0 and rho < 0:
            along_printed = max(along_printed, abs(slope - theirs.along))
        inner, outer = a_minus * float(law.density(rho)), a_plus * float(law.density(rho + s * distance))
        stable = bool(np.linalg.eigvals(measured).real.min() > 0)
        wrong_signs += int(stable != (s > 0 and rho != 0 and inner > outer))
        wrong_by_sign += int(stable != (s > 0))

    for law, rho in ((MultivariateT(3), -3.0), (MultivariateT(1.5), -0.1)):
        pair = _partner(law, rho)
        state = np.array([1.0, 0.0, rho])
        centre = np.array([pair.distance, 0.0])

        def both(
            y: Array, law: IsotropicLaw = law, c: Array = centre, a: float = pair.amplitude_ratio
        ) -> Array:
            return _flow(law, y, c, 1.0, a)

        jacobian = _jacobian(both, state)
        neutral = max(neutral, float(np.abs(jacobian @ state).max()))
        bare = min(bare, float(np.abs(jacobian @ [1.0, 0.0, 0.0]).max()))
    how = "central differences of the flow at |mu| = 1; Gaussian, t_3, t_1.5, ball; n = 2, 3, 5"
    return [
        STATEMENTS["theorem3.matrix"].correct(
            "beta_2 = -(1/l^2)[beta_1 + s (rho_-^2/l)(a_+ p(rho_+) - a_- p(rho_-))], l = |mu|, and "
            "beta_1 = a_+ |xbar_+| theta_1(rho_+)/l.",
            printed_error=printed,
            error=right,
            tolerance=1e-6,
            evidence=how,
        ),
        STATEMENTS["theorem3.sign"].correct(
            "It counts once: C = s (beta_1 I + beta_2 mu mu'), beta_1 > 0.",
            printed_error=twice,
            error=right,
            tolerance=1e-6,
            evidence="s = -1, the corrected matrix with s counted twice",
        ),
        STATEMENTS["theorem3.eigenvalue_along"].correct(
            "It is (rho_-^2/l)(a_- p(rho_-) - a_+ p(rho_+)).",
            printed_error=along_printed,
            error=along,
            tolerance=1e-6,
            evidence=how,
        ),
        STATEMENTS["theorem3.stability"].judge(
            equal(
                0,
                wrong_signs,
                of="number of cases in which the condition and the measured Jacobian's eigenvalues disagree",
            ),
            null=wrong_by_sign,
            null_description="wrong cases of s = +1 alone",
            evidence=how,
        ),
        STATEMENTS["theorem3.ray"].judge(
            within_error(1e-8, neutral), null=bare, null_description="J (mu, 0)", evidence="t_3 and t_1.5"
        ),
    ]


CHECKS: Mapping[str, Callable[[], list[Claim]]] = {"lemma4": lemma4, "theorem3": theorem3}
