"""The drift Delta(u) = E[g phi'(u.x + xi) x] that pushes the block's weights, of data and of models of it.

Under uniform attention the weights obey v' = Delta(v), which Theorem 3 approximates by C (mu - v) about a
critical point mu. With attention it is v' = e^z o Delta(v o e^z)
(``joma.dynamics.block_salience_flow``): Delta stays, its argument does not. So whatever Delta is, the
block comes to rest exactly where v o e^z is a zero of it, i.e. where uniform attention rests.

With attention z is the logit over the temperature T throughout.

A drift takes ``u`` (K, n) and ``xi`` (K,) and returns E[g_k h'_k x] (K, n) and E[g_k h'_k] (K,).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from joma.core.arguments import Array, arrays, finite, number, positive
from joma.core.errors import InputError
from joma.theory.critical_points import Linearisation, linearise
from joma.theory.isotropic import HomogeneousGate, gate_moments
from joma.theory.isotropic_laws import IsotropicLaw, require_law

Drift = Callable[[Array, Array], tuple[Array, Array]]


def towards(mu: ArrayLike, stiffness: ArrayLike | None = None) -> Drift:
    """Theorem 3's model: Delta_k(u) = C (mu_k - u_k), with C = I unless ``stiffness`` (n, n) is given.

    ``mu`` is (n,) for one node or (K, n). The full C(mu) of Theorem 3 is s (beta_1 I + beta_2 mu mu'),
    ``joma.theory.critical_points.linearise``; Eq. 6 leaves out the second part.
    """
    points = np.atleast_2d(finite("towards", "mu", mu))
    if points.ndim != 2 or points.size == 0 or np.any(np.all(points == 0, axis=0)):
        raise InputError(f"towards: mu {points.shape} must be (n,) or (K, n), with no component that is 0.")
    c = None
    if stiffness is not None:
        c, points = arrays("towards", stiffness=(stiffness, "n n"), mu=(points, "K n"))

    def drift(u: Array, xi: Array) -> tuple[Array, Array]:
        gap = points - u
        return (gap if c is None else gap @ c.T), np.zeros_like(xi)

    return drift


def of_samples(
    samples: ArrayLike,
    gradient: ArrayLike,
    gate: HomogeneousGate,
    *,
    width: float = 0.0,
    trained_bias: bool = False,
) -> Drift:
    """The drift of a sample: ``x`` (N, n), ``g`` (N,) for all nodes alike, each with weight 1/N.

    A sharp gate makes it a step function with a kink per sample, which may vanish at several points near to
    each other, the more so the larger n; ``width`` > 0 rounds the gate by a logistic function of that width.
    """
    x, g = arrays("of_samples", samples=(samples, "N n"), gradient=(gradient, "N"))
    breadth = positive("of_samples", "width", width, zero=True)
    low, jump = g * gate.minus / g.size, g * (gate.plus - gate.minus) / g.size

    def drift(u: Array, xi: Array) -> tuple[Array, Array]:
        before = u @ x.T + xi[:, None]
        signal = low + jump * (expit(before / breadth) if breadth else before > 0)
        return signal @ x, signal.sum(axis=1) if trained_bias else np.zeros_like(xi)

    return drift


def of_labels(
    contexts: ArrayLike,
    labels: ArrayLike,
    probabilities: ArrayLike,
    *,
    width: float = 0.0,
    trained_bias: bool = True,
) -> Drift:
    """The drift of a ReLU unit that learns labels by a logistic loss: g = y - sigma(phi(u.x + xi)), not
    constant.

    Args:
        contexts: x (N, n).
        labels: y (N,), 0 or 1.
        probabilities: of the contexts (N,).
        width: over which the gate is rounded by a logistic function; 0 is ReLU's own, along whose kinks a
            flow slides.
        trained_bias: whether xi learns, too.
    """
    x, y, p = arrays(
        "of_labels",
        contexts=(contexts, "N n"),
        labels=(labels, "N"),
        probabilities=(probabilities, "N"),
    )
    breadth = positive("of_labels", "width", width, zero=True)

    def drift(u: Array, xi: Array) -> tuple[Array, Array]:
        before = u @ x.T + xi[:, None]
        gate = expit(before / breadth) if breadth else before > 0
        signal = p * (y - expit(np.maximum(before, 0.0))) * gate
        return signal @ x, signal.sum(axis=1) if trained_bias else np.zeros_like(xi)

    return drift


@dataclass(frozen=True, eq=False)
class Mixture:
    """Isotropic laws about ``centres`` (C, n) with signed weights a_j = E[g | j] P[j], (C,): Lemma 2."""

    law: IsotropicLaw
    gate: HomogeneousGate
    centres: NDArray[np.float64]
    amplitudes: NDArray[np.float64]

    def __post_init__(self) -> None:
        require_law("Mixture", self.law)
        arrays("Mixture", centres=(self.centres, "C n"), amplitudes=(self.amplitudes, "C"))

    def drift(self, *, trained_bias: bool = False) -> Drift:
        """The population's drift in closed form (Lemmas 1 and 2, corrected)."""
        jump = self.gate.plus - self.gate.minus

        def drift(u: Array, xi: Array) -> tuple[Array, Array]:
            size = np.linalg.norm(u, axis=1, keepdims=True)
            size = np.where(size > 0, size, 1e-300)
            rho = (u @ self.centres.T + xi[:, None]) / size
            first = self.amplitudes * (self.gate.minus + jump * self.law.theta_1(rho))
            second = self.amplitudes * jump * self.law.theta_2(rho)
            pull = first @ self.centres + second.sum(axis=1, keepdims=True) * u / size
            return pull, first.sum(axis=1) if trained_bias else np.zeros_like(xi)

        return drift

    def sample(self, size: int, seed: int) -> tuple[Array, Array]:
        """``x`` (size, n) and ``g`` (size,), each with weight 1/size: parts in proportion to |a_j|."""
        rng = np.random.default_rng(seed)
        weight = np.abs(self.amplitudes)
        part = rng.choice(weight.size, size=size, p=weight / weight.sum())
        noise = self.law.sample(rng, size, self.centres.shape[1])
        return self.centres[part] + noise, np.sign(self.amplitudes)[part] * weight.sum()


@dataclass(frozen=True, eq=False)
class PlantedMixture:
    """A mixture made to have a critical point: Theorem 3's setting."""

    mixture: Mixture
    bias: float
    """xi, held fixed."""
    stiffness: Linearisation
    """C(mu)."""


def plant(
    law: IsotropicLaw, gate: HomogeneousGate, mu: ArrayLike, *, distance: float, rho_minus: float
) -> PlantedMixture:
    """Two classes whose critical point, at a fixed bias, is ``mu`` (n,).

    The positive class is centred at ``distance`` along mu, the negative one at 0; xi = rho_minus |mu|. The
    ratio a_-/a_+ that makes mu a zero of the drift is (X Theta_1(rho_+) + Theta_2(rho_+))/Theta_2(rho_-),
    rho_+ = X + rho_-; the point attracts if a_- p(rho_-) > a_+ p(rho_+) (Theorem 3, corrected).

    Raises:
        InputError: mu = 0, or a point that repels.
    """
    point = finite("plant", "mu", mu)
    size = float(np.linalg.norm(point))
    if point.ndim != 1 or size == 0:
        raise InputError(f"plant: mu {point.shape} must be a vector other than 0.")
    apart, below = positive("plant", "distance", distance), number("plant", "rho_minus", rho_minus)
    first, second = gate_moments(law, gate, apart + below, 1.0)
    ratio = (apart * first + second) / gate_moments(law, gate, below, 1.0)[1]
    c = linearise(law, norm=size, rho_minus=below, distance=apart, a_plus=1.0, a_minus=ratio, gate=gate)
    if not c.stable:
        raise InputError(
            f"plant: with rho_minus = {below:g} and distance = {apart:g} the critical point of {law.name} "
            f"repels (eigenvalue {c.along:.3g} along it); change rho_minus."
        )
    centres = np.stack([np.zeros_like(point), apart * point / size])
    return PlantedMixture(Mixture(law, gate, centres, np.array([-ratio, 1.0])), below * size, c)
