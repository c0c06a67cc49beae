"""Lemmas 6-7, Eq. 6 and Theorem 4 of JoMA, against integrations that know nothing of F."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad, solve_ivp
from scipy.special import softmax

from joma.core.claim import Claim, at_least, at_most, below, statements, within_error
from joma.dynamics.salience_flow import (
    Attention,
    integrate,
    integrate_following_softmax,
)
from joma.theory.salience import (
    PRINTED_BOUND,
    PRINTED_LAMBDA_BOUND,
    F,
    asymptotic_ratio,
    convergence_ratio,
    elapsed_time,
    lemma_6,
    lemma_6_maximum,
    lemma_7,
    lemma_7_maximum,
    needed_convergence,
    needed_convergence_printed,
    sharp_bound,
    solve,
    zeta,
)
from joma.theory.salience_variants import (
    linear_attention_ratio,
    softmax_attention_ratio,
    solve_linear_attention,
)

Array = NDArray[np.float64]

STATEMENTS = statements(
    {
        "lemma6.bound": "JoMA Lemma 6 | (1 - exp(-y^2))/y <= 1/sqrt 2 for y >= 0 (loose).",
        "lemma7.bound": "JoMA Lemma 7 | 0 <= exp(-y^2/2) int_0^y exp(x^2/2) dx <= 1 for y >= 0 (loose).",
        "equation6.exact": "JoMA Eq. 6, 79-80 | Eq. 6 from v(0) = 0 is solved by inverting F(r, mu) = t.",
        "equation6.clock": "JoMA Eq. 80 | F(r_j, mu_j) is the same for all components at all times, and is "
        "the time.",
        "equation6.thin": "JoMA Eq. 6 | The solution holds where delta is no float: mu = 30, ln 1/delta "
        "near exp(450).",
        "theorem4.derivative": "JoMA Eq. 81-84 | dF/dmu = sqrt(pi/2) erf(r mu/sqrt 2) + (1 - exp(-r^2 "
        "mu^2/2))/mu - mu F.",
        "theorem4.bound_88": "JoMA Eq. 88 | 0 <= F(r, mu) - exp(-mu^2/2) ln 1/(1-r) <= sqrt(pi/2) + 1 = "
        "2.2533 (loose).",
        "theorem4.exponent_after_88": "JoMA proof of Thm 4, after Eq. 88 (three times) | F - exp(-mu^2) ln "
        "1/delta lies between 0 and sqrt(pi/2) + 1.",
        "theorem4.constant": "JoMA Thm 4, the constant of its condition | |Lambda| is at most C "
        "exp(mu_k^2/2) / ln(1/delta_k) with C = .8643, and no smaller C will do.",
        "theorem4.lambda": "JoMA Thm 4 | |lambda_jk(t)| <= sqrt(2 pi) + 2 = 4.5066 (loose).",
        "theorem4.condition": "JoMA Thm 4 | |Lambda| << 1 when delta_k << exp[-(sqrt(2 pi) + 2) "
        "exp(-mu_k^2)].",
        "theorem4.remark_exponent": "JoMA Thm 4, remarks, and Fig. 4 | The modulation is exp(v^2), hence "
        "the ratio exp(mu_j^2 - mu_k^2).",
        "theorem4.temperature": "JoMA Thm 4 | With rates and temperature the ratio is exp(kappa (mu_j^2 - "
        "mu_k^2)/2), kappa = eta_z/(eta_w T^2).",
        "theorem4.linear_attention": "JoMA Thm 4, remarks | For linear attention the ratio is different: "
        "sqrt(mu_j^2 + c_j)/sqrt(mu_k^2 + c_k).",
        "theorem4.softmax_uniform": "JoMA Thm 4 | For softmax attention with uniform bbar only the clock "
        "changes: F(r_j, mu_j) stays equal for all j.",
        "theorem4.softmax_skewed": "JoMA Thm 4 (not in the paper) | For softmax attention with constant "
        "bbar the ratio is exp[(mu_j^2 - mu_k^2)/2 - (bbar_j - bbar_k) |mu|^2/2].",
        "theorem4.softmax_following": "JoMA Thm 1 and 4 (not in the paper) | Where bbar follows the softmax "
        "attention instead of staying constant, the ratio is exp(z_j - z_k) of the final logits, "
        "{followed:.3f} here; Theorem 4 would have {law:.3f}.",
    },
    exact=True,
)


def lemma6() -> list[Claim]:
    """(1 - exp(-y^2))/y."""
    argmax, maximum = lemma_6_maximum()
    y = np.linspace(1e-3, 30, 30000)
    direct = (1 - np.exp(-(y**2))) / y
    error = float(np.abs(lemma_6(y) - direct).max())
    return [
        STATEMENTS["lemma6.bound"].judge(
            at_most(1 / np.sqrt(2), maximum, of="maximum")
            & below(1e-6, abs(direct.max() - maximum), of="its distance from the largest value on a grid")
            & below(1e-12, error, of="error of the function"),
            evidence=f"the maximum lies at y = {argmax:.9f}; against the expression written out, to y = 30",
        )
    ]


def lemma7() -> list[Claim]:
    """exp(-y^2/2) times the integral of exp(x^2/2)."""
    argmax, maximum = lemma_7_maximum()
    y = np.array([0.3, 1.0, argmax, 4.0])
    direct = [float(np.exp(-0.5 * b * b) * quad(lambda x: np.exp(0.5 * x * x), 0, b)[0]) for b in y]
    error = float(np.abs(lemma_7(y) - direct).max())
    grid = lemma_7(np.linspace(0, 30, 30001))
    return [
        STATEMENTS["lemma7.bound"].judge(
            at_most(1, maximum, of="maximum")
            & at_least(0, grid, of="value", across="on a grid")
            & below(
                1e-6, abs(grid.max() - maximum), of="distance of the maximum from the largest value on a grid"
            )
            & below(1e-12, error, of="error of the function"),
            evidence=f"the maximum lies at y = {argmax:.9f}, where it equals 1/y",
        )
    ]


def equation6() -> list[Claim]:
    """The exact solution."""
    mu, times = np.array([0.7, 2.0, 3.0, -2.5]), np.array([0.05, 0.3, 0.6, 2.0, 20.0])
    exact = solve(mu, times)
    measured = integrate(mu, times)
    error = np.abs(exact.log_inverse_delta / measured.log_inverse_delta - 1).max()
    told = np.abs(elapsed_time(mu, measured.log_inverse_delta) / times[:, None] - 1).max()
    # mu = 30: F = exp(-450) ln 1/delta + R(1, 30), R by plain quadrature in x.
    final, half = np.exp(-450.0), -0.5 * 30.0**2
    rest = sum(
        quad(lambda x: (np.exp(half * x * x) - final) / (1 - x), a, b, epsabs=0, epsrel=1e-13)[0]
        for a, b in ((0.0, 0.05), (0.05, 0.3), (0.3, 1.0))
    )
    late = abs(float(solve(30.0, 1.0).log_inverse_delta[0, 0]) / ((1.0 - rest) / final) - 1)
    return [
        STATEMENTS["equation6.exact"].judge(
            within_error(1e-8, error),
            evidence="ln 1/delta, relative, against DOP853 in ln 1/delta; mu = .7, 2, 3, -2.5, t to 20",
        ),
        STATEMENTS["equation6.clock"].judge(
            within_error(1e-8, told), evidence="F of the integrated courses, relative to t"
        ),
        STATEMENTS["equation6.thin"].judge(
            within_error(1e-12, late),
            evidence="against (t - R) exp(450) at t = 1, R by quadrature in x, relative",
        ),
    ]


def theorem4() -> list[Claim]:
    """Convergence of salient and other components."""
    return [*_bounds(), *_conditions(), *_ratios()]


def _bounds() -> list[Claim]:
    h = 1e-5
    slope = 0.0
    for r, mu in ((0.3, 0.5), (0.9, 2.0), (0.99, 3.0)):
        measured = (float(F(r, mu + h)) - float(F(r, mu - h))) / (2 * h)
        slope = max(slope, abs(measured - float(zeta(r, mu) - mu * F(r, mu))))
    argmax, sharp = sharp_bound()
    rng = np.random.default_rng(0)
    done, points = rng.uniform(0.0, 1.0, 400), rng.uniform(0.05, 12.0, 400)
    done[200:] = 1 - 1e-9
    remainders = F(done, points) + np.exp(-0.5 * points**2) * np.log1p(-done)
    reached = -np.log(1e-300)
    excess = float(elapsed_time(1.0, reached))
    printed, right = excess - np.exp(-1.0) * reached, excess - np.exp(-0.5) * reached
    return [
        STATEMENTS["theorem4.derivative"].judge(
            within_error(1e-8, slope), evidence="central differences at three points"
        ),
        STATEMENTS["theorem4.bound_88"].judge(
            at_most(
                sharp + 1e-12,
                remainders.max(),
                of="largest remainder",
                than=f"the sharp constant max R(1, mu) = R(1, {argmax:.4f})",
            )
            & at_least(sharp - 1e-3, remainders.max(), of="largest remainder", than="that less 0.001")
            & at_least(-1e-15, remainders, of="remainder")
            & below(PRINTED_BOUND, sharp + 1e-12, of="the sharp constant", than="the printed one"),
            evidence="400 random mu to 12, r random or 1 - 1e-9",
        ),
        STATEMENTS["theorem4.exponent_after_88"].correct(
            "F - exp(-mu^2/2) ln 1/delta does.",
            printed_error=max(float(printed) - PRINTED_BOUND, 0.0),
            error=max(float(right) - PRINTED_BOUND, -float(right), 0.0),
            tolerance=1e-9,
            evidence="how far outside, mu = 1, delta = 1e-300",
        ),
    ]


def _conditions() -> list[Claim]:
    rng = np.random.default_rng(1)
    argmax, sharp = sharp_bound()
    largest = 0.0
    for mu_j, mu_k in rng.uniform(0.2, 3.5, (40, 2)):
        _, _, bounded = convergence_ratio(mu_j, mu_k, np.array([0.1, 2.0, 30.0, 700.0]))
        largest = max(largest, float(np.abs(bounded).max()))
    times_needed = 30.0
    deviations = [
        abs(float(convergence_ratio(3.0, 2.0, times_needed * float(needed))[1]))
        for needed in (needed_convergence_printed(2.0), needed_convergence(2.0))
    ]
    # The most salient deviation: mu_j where R is largest, and a component k that is not salient.
    small = 0.01
    reached = np.array([30.0, 1e3, 1e6])
    deviation = np.abs(convergence_ratio(argmax, small, reached)[1])
    attained = deviation * reached / needed_convergence(small)
    return [
        STATEMENTS["theorem4.constant"].judge(
            within_error(0.01, np.abs(attained - 1).max()),
            evidence=f"mu = ({argmax:.3f}, {small}): distance of |Lambda| from that bound, relative, at "
            "three times",
        ),
        STATEMENTS["theorem4.lambda"].judge(
            at_most(sharp + 1e-9, largest, of="|lambda|", than="the bound of both terms of the difference")
            & below(PRINTED_LAMBDA_BOUND, sharp + 1e-9, of="that bound", than="the printed one"),
            evidence="40 random pairs of mu up to 3.5 at four times each",
        ),
        STATEMENTS["theorem4.condition"].correct(
            "When delta_k << exp[-C exp(+mu_k^2/2)], and C = .8643 suffices.",
            printed_error=deviations[0],
            error=deviations[1],
            tolerance=0.04,
            evidence="|Lambda| for mu = (3, 2) where ln 1/delta_k is 30 times what each condition asks",
        ),
    ]


def _measured_ratio(
    attention: Attention,
    mu: Array,
    at: float,
    *,
    kappa: float = 1.0,
    c: float = 0.0,
    bbar: Array | None = None,
) -> float:
    """(d ln 1/delta_0)/(d ln 1/delta_1) from an integration, late: free of the 1/ln(1/delta) of Lambda."""
    course = integrate(mu, [at, 2 * at], attention=attention, kappa=kappa, c=c, bbar=bbar).log_inverse_delta
    gain = course[1] - course[0]
    return float(gain[0] / gain[1])


def _ratios() -> list[Claim]:
    mu = np.array([2.4, 1.5, 2.0])
    plain = _measured_ratio("exp", mu, 40.0)
    law = float(asymptotic_ratio(mu[0], mu[1]))
    warm = max(
        abs(_measured_ratio("exp", mu, 40.0, kappa=k) / float(asymptotic_ratio(mu[0], mu[1], kappa=k)) - 1)
        for k in (0.3, 2 / 3, 1.5)
    )
    linear = _measured_ratio("linear", mu, 40.0, c=0.04)
    linear_law = float(linear_attention_ratio(mu[0], mu[1], 0.04, 0.04))
    times = np.array([0.5, 3.0, 50.0])
    closed = solve_linear_attention(mu, times, c=0.04).log_inverse_delta
    flow = integrate(mu, times, attention="linear", c=0.04).log_inverse_delta
    linear_error = max(abs(linear / linear_law - 1), float(np.abs(closed / flow - 1).max()))

    even = integrate(mu, times, attention="softmax").log_inverse_delta
    told = elapsed_time(mu, even)
    uniform = float(np.ptp(told, axis=1).max())
    skewed = held_back = 0.0
    for bbar in ([0.2, 0.5, 0.3], [0.45, 0.3, 0.25], [0.6, 0.1, 0.3]):
        measured = _measured_ratio("softmax", mu, 4e3, bbar=np.array(bbar))
        expected = float(
            softmax_attention_ratio(mu[0], mu[1], bbar_j=bbar[0], bbar_k=bbar[1], squared_norm=float(mu @ mu))
        )
        skewed = max(skewed, abs(measured / expected - 1))
        held_back = max(held_back, abs(measured / law - 1))
    _, logits = integrate_following_softmax(mu, [8e3])
    final = float(np.exp(logits[-1, 0] - logits[-1, 1]))

    def block(_: float, state: Array) -> Array:
        v, b = state[:3], softmax(state[3:])
        step = 3 * (mu - v) * b
        return np.concatenate([step, v * step - b * (v @ step)])

    late = solve_ivp(block, (0, 20), np.zeros(6), "DOP853", [16.0, 20.0], rtol=1e-12, atol=1e-14).y[:3].T
    gain = -np.diff(np.log(1 - late / mu), axis=0)[0]
    followed = float(gain[0] / gain[1])
    return [
        STATEMENTS["theorem4.remark_exponent"].correct(
            "exp(v^2/2), and exp((mu_j^2 - mu_k^2)/2), as Eq. 6 and 7 have it.",
            printed_error=abs(plain / law**2 - 1),
            error=abs(plain / law - 1),
            tolerance=1e-7,
            evidence="relative, DOP853 in ln 1/delta, mu = 2.4, 1.5",
        ),
        STATEMENTS["theorem4.temperature"].judge(
            within_error(1e-7, warm), evidence="kappa = .3, 2/3, 1.5, by integration"
        ),
        STATEMENTS["theorem4.linear_attention"].judge(
            within_error(1e-7, linear_error),
            evidence=f"ratio {linear_law:.4f} instead of {law:.4f}, and the whole course in closed form",
        ),
        STATEMENTS["theorem4.softmax_uniform"].judge(
            within_error(1e-7, uniform),
            evidence="spread of F over components at three times of the integrated flow",
        ),
        STATEMENTS["theorem4.softmax_skewed"].judge(
            within_error(1e-7, skewed),
            null=held_back,
            null_description="error of Theorem 4's ratio in the same integrations",
            evidence="three bbar, by integration; salience can be turned round (bbar_j = .6, bbar_k = .1)",
        ),
        STATEMENTS["theorem4.softmax_following"]
        .fill(followed=followed, law=law)
        .judge(
            within_error(1e-4, abs(followed / final - 1)),
            null=abs(followed / law - 1),
            null_description="error of Theorem 4's ratio in the same integration",
            evidence="mu = 2.4, 1.5, 2.0 from equal logits, by integration in (v, z)",
        ),
    ]


CHECKS: Mapping[str, Callable[[], list[Claim]]] = {
    "lemma6": lemma6,
    "lemma7": lemma7,
    "equation6": equation6,
    "theorem4": theorem4,
}
