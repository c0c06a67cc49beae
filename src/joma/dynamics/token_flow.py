"""Scan&Snap's Y/Z dynamics as a population flow: T -> infinity, time continuous.

The flow integrates ``joma.theory.scan_snap.equations.velocities`` in float64 and carries, as
quadratures, the gain B_n of each class (Theorems 3 and 4). SGD is in ``joma.dynamics.token_sgd``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joma.core.arguments import positive
from joma.core.errors import InputError
from joma.data.next_token import NextTokenData
from joma.dynamics.integrator import Method, Parts, integrate, moments
from joma.theory.scan_snap.equations import Velocities, attended_mass, lumped_multiplicity, unit, velocities

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TokenTrajectory:
    """Y and Z along a population flow; S times, C contextual tokens, K next and L last tokens."""

    data: NextTokenData
    eta_y: float
    eta_z: float
    times: Floats
    """Shape (S,)."""
    decoder: Floats
    """Y, shape (S, C, V): column n < K for next token n; see ``multiplicity`` for the last one."""
    logits: Floats
    """z, shape (S, L, C)."""
    gain: Floats
    """B_n(t) = integral of z_l'/f_nl^2 for the strongest distinct token l of n, shape (S, K).

    NaN for next tokens that have no distinct token: they have no gain.
    """
    multiplicity: Floats
    """Shape (V,): the number of equal logits that each column of Y stands for."""
    normalised: bool

    @cached_property
    def mass(self) -> Floats:
        """c_n(t), shape (S, K, C): where attention looks; sums to one."""
        return attended_mass(self.data.conditional, self.logits[:, self.data.last_of_next])

    @cached_property
    def features(self) -> Floats:
        """f_n(t), shape (S, K, C): what the decoder reads (c_n/|c_n|, or c_n where not normalised)."""
        return unit(self.mass) if self.normalised else self.mass

    def states(self) -> list[Velocities]:
        """``at`` for every time."""
        return [self.at(index) for index in range(self.times.size)]

    def at(self, index: int) -> Velocities:
        """The velocities, and what they are made of, at ``times[index]``."""
        return velocities(
            self.decoder[index],
            self.logits[index],
            conditional=self.data.conditional,
            last_of_next=self.data.last_of_next,
            class_probability=self.data.prior,
            eta_y=self.eta_y,
            eta_z=self.eta_z,
            multiplicity=self.multiplicity,
            normalised=self.normalised,
        )


def token_flow(
    data: NextTokenData,
    *,
    eta_y: float,
    eta_z: float,
    times: ArrayLike,
    logits: ArrayLike | None = None,
    decoder: ArrayLike | None = None,
    normalised: bool = True,
    rtol: float = 1e-9,
    atol: float = 1e-12,
    method: Method = "LSODA",
) -> TokenTrajectory:
    """Integrate the population flow of Y and Z over ``times`` (increasing, the first is the start).

    ``logits`` z(0) (L, C) and ``decoder`` Y(0) (C, M) default to zero. From Y(0) = 0 the M - K columns
    of tokens that never come next are carried as one (V = K + 1 columns); a given Y(0) has all M.
    ``normalised=False`` leaves out the division by |c_n|_2. ``eta_z=0`` freezes attention.
    Raises InputError for shapes or rates that make no sense and DivergenceError, with the time, where
    the integration leaves the finite numbers or cannot go on.
    """
    where = "token_flow"
    times = moments(where, times)
    eta_y, eta_z = positive(where, "eta_y", eta_y, zero=True), positive(where, "eta_z", eta_z, zero=True)
    tokens, lasts, classes = data.contextual_tokens, data.last_tokens, data.classes
    z_start = _start(logits, (lasts, tokens), "logits")
    if decoder is None:
        multiplicity = lumped_multiplicity(classes, data.logits)
        y_start = np.zeros((tokens, multiplicity.size))
    else:
        multiplicity = np.ones(data.logits)
        y_start = _start(decoder, (tokens, data.logits), "decoder")
    strongest = strongest_distinct(data, z_start)
    has_gain = strongest >= 0
    parts = Parts((tokens, multiplicity.size), (lasts, tokens), (classes,))

    def slope(time: float, state: Floats) -> Floats:
        y, z, _ = parts.unpack(state)
        v = velocities(
            y,
            z,
            conditional=data.conditional,
            last_of_next=data.last_of_next,
            class_probability=data.prior,
            eta_y=eta_y,
            eta_z=eta_z,
            multiplicity=multiplicity,
            normalised=normalised,
        )
        own = np.flatnonzero(has_gain)
        first = strongest[own]
        gains = np.zeros(classes)
        gains[own] = v.logits[data.last_of_next[own], first] / v.features[own, first] ** 2
        return parts.pack(v.decoder, v.logits, gains)

    found = integrate(
        where,
        slope,
        parts.pack(y_start, z_start, 0.0),
        times,
        method=method,
        rtol=rtol,
        atol=atol,
        advice="shorten the times or lower the rates",
    )
    y, z, gain = parts.unpack(found.states)
    gain = gain.copy()
    gain[:, ~has_gain] = np.nan
    return TokenTrajectory(
        data=data,
        eta_y=eta_y,
        eta_z=eta_z,
        times=times,
        decoder=y,
        logits=z,
        gain=gain,
        multiplicity=multiplicity,
        normalised=normalised,
    )


def strongest_distinct(data: NextTokenData, logits: ArrayLike | None = None) -> NDArray[np.int64]:
    """Theorem 3's l_0: each next token's distinct token of largest P(l|n) exp(z_ml), shape (K,).

    ``logits`` z (L, C) default to zero; -1 where a next token has no distinct token.
    """
    z = np.zeros((data.last_tokens, 1)) if logits is None else np.asarray(logits, dtype=np.float64)
    weight = np.where(data.distinct, attended_mass(data.conditional, z[data.last_of_next]), -1.0)
    return np.where(data.distinct.any(axis=1), weight.argmax(axis=1), -1)


def _start(values: ArrayLike | None, shape: tuple[int, int], name: str) -> Floats:
    array = np.zeros(shape) if values is None else np.asarray(values, dtype=np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise InputError(
            f"token_flow: {name} must be finite with shape {shape}; got shape {array.shape} (the largest "
            f"value is {np.max(array) if array.size else 'none'})."
        )
    return array
