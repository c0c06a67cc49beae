"""JoMA Theorem 2 and its remarks, against the full flow of weights and logits on random data."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import softmax

from joma.core.claim import Claim, below, statements, within_error
from joma.dynamics import block_flow
from joma.theory.attention import Array, Attention
from joma.theory.block import Block, Embeddings
from joma.theory.winner_take_all import WinnerTakeAll, erf_invariant, printed_invariant, softmax_weights

TOKENS, SAMPLES, NORMALISER = 4, 8, 0.5
FLOW = "the full (v, z) flow of Eq. 2 on 8 random samples of 4 tokens, DOP853 at 1e-11"

STATEMENTS = statements(
    {
        "theorem2.one_hot": "JoMA Thm 2, remarks | Training ends one-hot (true of attention; the weights "
        "get there only as fast as sqrt(2 ln 1/(t* - t))).",
        "theorem2.invariant": "JoMA Thm 2, Eq. 4 | erf(v_l/2) / Delta_l is the same for all tokens l.",
        "theorem2.normaliser": "JoMA Eq. 3 | dv/dt = Delta exp(v^2/2 + c), whatever the constant A of exp "
        "attention.",
        "theorem2.trajectory": "JoMA Thm 2 (the paper gives the ratios only) | v_l(t) = sqrt2 "
        "erfinv(sqrt(2/pi) Delta_l t / A): the trajectories in closed form.",
        "theorem2.blow_up": "JoMA Thm 2, remarks | The winner goes to infinity (in finite time: t* = "
        "sqrt(pi/2) A / max|Delta|).",
        "theorem2.losers": "JoMA Thm 2, remarks | All others converge to finite numbers; these are sqrt2 "
        "erfinv(Delta_l / |Delta_max|).",
        "theorem2.rates": "JoMA Thm 2 (tacitly eta_z = eta_w, T = 1); poster: any learning rates | The "
        "invariant is the same for any learning rates (even with sqrt 2 put right).",
        "theorem2.nodes": "JoMA Thm 2 for K > 1 (the paper has K = 1) | With several nodes v_kl = s_l "
        "Delta_kl, and |v_.l|, |Delta_.l| obey the theorem: the winner is the token of the longest Delta_.l.",
        "theorem2.any_start": "JoMA Thm 2 (the paper has zero initialisation) | From any v(0), z(0): the "
        "part of v_.l across Delta_.l stays, the part p_l along it moves so that Phi(sqrt(kappa) p_l) grows "
        "linearly in time.",
        "theorem2.softmax_clock": "JoMA Thm 2, remark on softmax | With A the same for all samples and bbar "
        "uniform, Theorem 2 also applies (in another time, t = sum_l x_l v_l / Delta_l: the winner grows "
        "linearly, and nothing blows up).",
        "theorem2.softmax_premise": "JoMA Thm 2, remark on softmax | Where A is the same for all samples "
        "and bbar starts uniform, Theorem 2 applies to softmax training.",
    },
    exact=True,
)


def _data(nodes: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(TOKENS), SAMPLES), rng.normal(size=(SAMPLES, nodes))


def _drive(x: Array, g: Array) -> Array:
    return np.asarray(np.einsum("nk,nm->km", g, x) / len(x))


def _flow(
    x: Array,
    g: Array,
    times: Array,
    *,
    attention: Attention | None = None,
    weights: Array | None = None,
    logits: Array | None = None,
    speed_limit: float = 1e9,
    weight_rate: float = 1.0,
    attention_rate: float = 1.0,
) -> block_flow.Trajectory:
    tokens = x.shape[1]
    start = np.zeros((g.shape[1], tokens + 1))
    if weights is not None:
        start[:, :tokens] = weights
    return block_flow.solve(
        Block(Embeddings.orthonormal(tokens), attention or Attention(kind="exp", normaliser=NORMALISER)),
        x,
        g,
        weights=start,
        logits=np.zeros(tokens) if logits is None else logits,
        times=times,
        speed_limit=speed_limit,
        weight_rate=weight_rate,
        attention_rate=attention_rate,
    )


def _weights(course: block_flow.Trajectory, times: Array) -> Array:
    """``v`` (S, K, M) at all the times asked for; the last state stands after a blow-up."""
    known = course.context_weights
    return known[np.minimum(np.arange(len(times)), len(known) - 1)]


def _spread(values: Array) -> float:
    return float(np.ptp(values) / np.abs(values).mean())


def _single_node() -> list[Claim]:
    x, g = _data(1)
    closed = WinnerTakeAll(drive=_drive(x, g)[0], normaliser=NORMALISER)
    times = np.array([0.0, 0.5, 0.9, 0.99, 0.999999, 1.1]) * closed.blow_up_time
    course = _flow(x, g, times, speed_limit=1e12)
    v = _weights(course, times)[:, 0]
    late, drive = v[3], _drive(x, g)[0]
    without_normaliser = WinnerTakeAll(drive=drive).weights(times[1])
    limits = closed.limits()
    losers = ~closed.winners()
    return [
        STATEMENTS["theorem2.invariant"].correct(
            "erf(v_l/sqrt 2) / Delta_l is the same for all tokens l, namely sqrt(2/pi) t/A.",
            printed_error=_spread(printed_invariant(late, drive)),
            error=_spread(erf_invariant(late, drive)),
            tolerance=1e-9,
            evidence=f"Relative spread over tokens at 0.99 t*; {FLOW}.",
        ),
        STATEMENTS["theorem2.normaliser"].correct(
            "dv/dt = (Delta / A) exp(v^2/2 + c), as in Eq. 19.",
            printed_error=np.abs(without_normaliser / v[1] - 1).max(),
            error=np.abs(closed.weights(times[1]) / v[1] - 1).max(),
            tolerance=1e-9,
            evidence=f"Relative error of the solution at t*/2 with A = {NORMALISER}; {FLOW}.",
        ),
        STATEMENTS["theorem2.trajectory"].judge(
            within_error(1e-9, np.abs(closed.weights(times[:4]) - v[:4]).max()),
            evidence=f"Largest error up to 0.99 t*; {FLOW}.",
        ),
        STATEMENTS["theorem2.blow_up"].judge(
            within_error(1e-6, abs((course.blow_up_time or np.inf) / closed.blow_up_time - 1)),
            evidence=f"Relative distance of the event 'speed above 1e12' from t*; {FLOW}.",
        ),
        STATEMENTS["theorem2.losers"].judge(
            within_error(1e-5, np.abs(v[4, losers] - closed.limits()[losers]).max()),
            evidence="Largest gap to the limits at (1 - 1e-6) t*, the largest limit being "
            f"{np.abs(limits[losers]).max():.3g}; {FLOW}.",
        ),
        _one_hot(closed, course),
    ]


def _one_hot(closed: WinnerTakeAll, course: block_flow.Trajectory) -> Claim:
    last = np.abs(closed.weights_before_blow_up([1e-12, 1e-300]))
    share = last.max(axis=1) / last.sum(axis=1)
    off = 1 - softmax(course.logits, axis=1).max(axis=1)
    return STATEMENTS["theorem2.one_hot"].judge(
        within_error(1e-4, off[-1]),
        null=off[0],
        null_description="at the start",
        evidence=f"Attention off the winner at (1 - 1e-6) t*; {FLOW}. The winner's share of the weights' "
        f"sizes is {share[0]:.3f} at t* - 1e-12, and {share[1]:.3f} at t* - 1e-300.",
    )


def _further_laws() -> list[Claim]:
    """Rates and temperature, several nodes, any start, ties."""
    eta_w, eta_z = 2.0, 0.3
    x, g = _data(1)
    drive = _drive(x, g)[0]
    hot = WinnerTakeAll(
        drive=drive, normaliser=NORMALISER, temperature=0.7, weight_rate=eta_w, attention_rate=eta_z
    )
    attention = Attention(kind="exp", normaliser=NORMALISER, temperature=0.7)
    times = np.array([0.0, 0.95]) * hot.blow_up_time
    course = _flow(x, g, times, attention=attention, weight_rate=eta_w, attention_rate=eta_z)
    v = _weights(course, times)
    claims = [
        STATEMENTS["theorem2.rates"].correct(
            "erf(sqrt(kappa/2) v_l) / Delta_l with kappa = eta_z / (eta_w T^2).",
            printed_error=_spread(erf_invariant(v[1, 0], drive)),
            error=_spread(erf_invariant(v[1, 0], drive, kappa=hot.kappa)),
            tolerance=1e-9,
            evidence=f"Relative spread over tokens at 0.95 t*, eta_z = 0.3, eta_w = 2, T = 0.7; {FLOW}.",
        )
    ]
    x, g = _data(3, seed=1)
    drive = _drive(x, g)
    several = WinnerTakeAll(drive=drive, normaliser=NORMALISER)
    time = 0.95 * several.blow_up_time
    times = np.array([0.0, time])
    v = _weights(_flow(x, g, times), times)[1]
    each = np.stack([WinnerTakeAll(drive=row, normaliser=NORMALISER).weights(time) for row in drive])
    claims.append(
        STATEMENTS["theorem2.nodes"].judge(
            within_error(1e-9, np.abs(several.weights(time) - v).max()),
            null=np.abs(each - v).max(),
            null_description="each node solved as if it were alone",
            evidence=f"Largest error at 0.95 t*, K = 3; {FLOW}.",
        )
    )
    rng = np.random.default_rng(2)
    start, logits = rng.normal(size=(3, TOKENS)), rng.normal(size=TOKENS)
    anywhere = WinnerTakeAll(
        drive=drive,
        normaliser=NORMALISER,
        weight_rate=eta_w,
        attention_rate=eta_z,
        initial_weights=start,
        initial_logits=logits,
    )
    time = 0.9 * anywhere.blow_up_time
    times = np.array([0.0, time])
    course = _flow(x, g, times, weights=start, logits=logits, weight_rate=eta_w, attention_rate=eta_z)
    v = _weights(course, times)[1]
    claims.append(
        STATEMENTS["theorem2.any_start"].judge(
            within_error(1e-8, np.abs(anywhere.weights(time) - v).max()),
            evidence=f"Largest error at 0.9 t*, K = 3, random start; {FLOW}.",
        )
    )
    return claims


def _softmax() -> list[Claim]:
    """Samples that hold one token of each of three pairs: one normaliser for all, at all times."""
    strengths = np.array([1.0, 0.6, -0.3])
    signs = np.array(list(itertools.product([1, -1], repeat=3)))
    x = np.zeros((len(signs), 6))
    for pair in range(3):
        x[np.arange(len(signs)), 2 * pair + (signs[:, pair] < 0)] = 1 / 3
    g = (signs @ strengths)[:, None]
    drive = _drive(x, g)[0]
    closed = WinnerTakeAll(drive=drive)
    time, late, frequency = 7.0, 16.0, x.mean(axis=0)
    course = _flow(x, g, np.array([0.0, late]), attention=Attention())
    masses = (x * np.exp(course.logits[1])).sum(axis=1)
    real = course.context_weights[1, 0]
    ideal = softmax_weights(closed, frequency, late)
    # The remark's own premises as an equation: dv/dt = Delta exp(v^2/2) / sum_l x_l exp(v_l^2/2).
    assumed = _remark_flow(drive, frequency, time)
    return [
        STATEMENTS["theorem2.softmax_clock"].judge(
            within_error(1e-9, np.abs(softmax_weights(closed, frequency, time) - assumed).max()),
            null=np.abs(closed.weights(time) - assumed).max(),
            null_description="the course of exp attention, in its own time",
            evidence=f"Largest error at t = {time:g}, against an integration of what the remark assumes.",
        ),
        STATEMENTS["theorem2.softmax_premise"].judge(
            below(
                1e-3,
                _spread(np.abs(erf_invariant(real, drive))),
                of="relative spread of erf(v/sqrt 2)/Delta over tokens",
            ),
            null=_spread(np.abs(erf_invariant(ideal, drive))),
            null_description="the same if bbar stayed uniform",
            evidence=f"Softmax flow at t = {late:g} on samples of one token from each of three pairs, where "
            f"A is the same for all at all times (to {np.ptp(masses) / masses.mean():.1g}). But bbar does "
            "not stay uniform once a token wins.",
        ),
    ]


def _remark_flow(drive: Array, frequency: Array, time: float) -> Array:
    def velocity(_: float, v: Array) -> Array:
        gain = np.exp((v**2 - np.max(v**2)) / 2)
        return np.asarray(drive * gain / (frequency @ gain))

    return np.asarray(
        solve_ivp(velocity, (0, time), np.zeros(len(drive)), method="DOP853", rtol=1e-12, atol=1e-13).y[:, -1]
    )


def theorem2() -> list[Claim]:
    """Winner-take-all: the invariant, the course, the blow-up, the losers, and how far all that reaches."""
    return [*_single_node(), *_further_laws(), *_softmax()]


CHECKS: dict[str, Callable[[], list[Claim]]] = {"theorem2": theorem2}
