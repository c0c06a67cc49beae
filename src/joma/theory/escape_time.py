"""How long the block stays where it starts: at v = 0 its gate is shut, for ever.

Theorem 4, Eq. 6 and Fig. 4 start at v = 0, "zero initialisation", where (mu - v) is largest. But (mu - v) is
the drift near mu alone. The drift that Theorem 3 linearises (ReLU, fixed bias xi = rho_- |mu| with xi < 0,
one positive class at distance X, the negative one at the origin; a_-/a_+ is the ratio that makes mu a rest)
vanishes at v = 0: no sample passes the gate, v = 0 is an equilibrium. From the share s of mu, along mu, with
uniform attention (and with exp attention while kappa u^2 is small) in units of |mu|/a_+

    ds/dt = X theta_1(X + r) + theta_2(X + r) - ratio theta_2(r),    r = rho_-/s,
    ratio = (X theta_1(rho_+) + theta_2(rho_+))/theta_2(rho_-),      rho_+ = X + rho_-,

since the gate sees the bias over the weights' length. For Gaussian data the way out takes, with R =
|rho_-|/s,

    t ~ sqrt(2 pi) (s^3/rho_-^2) e^{(R - X)^2/2},    R - X large,

more than exponentially long in 1/s. Of a law of bounded support no gate opens below a certain s at all, and
of a heavy-tailed one (t_5) small weights shrink: the negative class passes the gate more often than the
positive one's pull makes up for. A leaky gate is never shut: it leaves v = 0 at the speed X phi'(-0).

Times are given in time constants of the rest's transverse direction, |mu|/(a_+ X theta_1(rho_+)) = 1/beta_1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from joma.core.arguments import broadcast, number, positive
from joma.core.errors import InputError
from joma.theory.isotropic import RELU, HomogeneousGate, gate_moments
from joma.theory.isotropic_laws import Gaussian, IsotropicLaw

Array = NDArray[np.float64]

GAUSSIAN = Gaussian()
# Gauss-Legendre points of a panel of ln s, and the widest one. The integrand falls by e over 1/(R |R - X|).
_POINTS, _WEIGHTS = (0.5 * a for a in np.polynomial.legendre.leggauss(16))
_POINTS = _POINTS + 0.5
# Beyond R - X = 40 a Gaussian tail is below 1e-300 and the integrand that is left is the leaky gate's.
_WIDEST, _FARTHEST = 0.1, 40.0


def speed(
    share: ArrayLike,
    *,
    distance: float,
    rho_minus: float,
    law: IsotropicLaw = GAUSSIAN,
    gate: HomogeneousGate = RELU,
) -> Array:
    """ds/dt at the share s of mu, uniform attention, per time constant of the rest's transverse direction.

    Args:
        share: s > 0, any shape.
        distance: X, of the positive class's centre from the negative one's, in the unit of the law.
        rho_minus: xi/|mu|, not positive.
        law: of both classes.
        gate: phi'.

    Raises:
        InputError: a share that is not positive, or a bias that is positive.
    """
    at = np.asarray(share, dtype=np.float64)
    apart, below = positive("speed", "distance", distance), number("speed", "rho_minus", rho_minus)
    if below > 0 or not np.all(at > 0):
        raise InputError(f"speed: share must be positive and rho_minus = {below:g} must not be.")
    first, second = gate_moments(law, gate, apart + below, 1.0)
    ratio = (apart * first + second) / gate_moments(law, gate, below, 1.0)[1]
    jump = gate.plus - gate.minus
    r = below / at
    pull = apart * (gate.minus + jump * law.theta_1(apart + r)) + jump * law.theta_2(apart + r)
    return np.asarray((pull - ratio * jump * law.theta_2(r)) / (apart * first))


def escape_time(
    start: float,
    *,
    distance: float,
    rho_minus: float,
    end: float = 0.5,
    law: IsotropicLaw = GAUSSIAN,
    gate: HomogeneousGate = RELU,
) -> float:
    """The time from the share ``start`` of mu to the share ``end``, in transverse time constants; may be inf.

    By quadrature, to a relative 1e-10. 0 < start <= end < 1; the rest as for ``speed``.
    """
    begin, stop = positive("escape_time", "start", start), positive("escape_time", "end", end)
    if not begin <= stop < 1:
        raise InputError(f"escape_time: start = {begin:g} and end = {stop:g}; give start <= end < 1.")

    if not float(speed(begin, distance=distance, rho_minus=rho_minus, law=law, gate=gate)) > 1e-300:
        return float("inf")
    edges, last = [float(np.log(begin))], float(np.log(stop))
    while edges[-1] < last:
        far = min(-rho_minus / np.exp(edges[-1]), distance + _FARTHEST)
        edges.append(min(edges[-1] + min(_WIDEST, 1.0 / (1.0 + far * abs(far - distance))), last))
    left, width = np.array(edges[:-1])[:, None], np.diff(edges)[:, None]
    s = np.exp(left + width * _POINTS)
    pace = speed(s, distance=distance, rho_minus=rho_minus, law=law, gate=gate)
    return float(np.sum((s / pace) @ _WEIGHTS * width[:, 0]))


def escape_time_asymptotic(start: ArrayLike, *, distance: float, rho_minus: float) -> Array:
    """The law of order exp((|rho_-|/s - X)^2/2), for Gaussian data and ReLU; s small, any shape."""
    where = "escape_time_asymptotic"
    s, apart, below = broadcast(where, start=start, distance=distance, rho_minus=rho_minus)
    far = -below / s - apart
    if np.any(s <= 0) or np.any(far <= 0):
        raise InputError(f"{where}: it is about shares s < |rho_minus|/distance, with rho_minus negative.")
    with np.errstate(over="ignore"):
        way = np.sqrt(2 * np.pi) * s**3 / np.square(below) * np.exp(0.5 * far * far)
    return np.asarray(way * apart * GAUSSIAN.theta_1(apart + below))


def least_start(
    patience: float,
    *,
    distance: float,
    rho_minus: float,
    end: float = 0.5,
    law: IsotropicLaw = GAUSSIAN,
    gate: HomogeneousGate = RELU,
) -> float:
    """The least share of mu from which ``end`` is reached within ``patience`` transverse time constants.

    0 where the gate is open at v = 0 and even that is soon enough.
    """
    wanted = positive("least_start", "patience", patience)

    def late(log_s: float) -> float:
        time = escape_time(
            float(np.exp(log_s)), distance=distance, rho_minus=rho_minus, end=end, law=law, gate=gate
        )
        return float(np.log(min(time, 1e300)) - np.log(wanted))

    high, low = float(np.log(end)) - 1e-9, float(np.log(1e-4 * end))
    if late(low) < 0:
        return 0.0
    return float(np.exp(brentq(late, low, high, xtol=1e-9)))
