"""The clock of Eq. 6: the time to reach a point of the course, and the point reached at a time.

Along ``v' = (mu - v) exp(v^2 / 2)`` every component moves on its own, and with ``s = ln 1/|1 - v/mu|``

    dt = exp(-v^2 / 2) ds,    v = mu (1 - sign e^-s),    sign = sign(1 - v/mu),

so that time is an integral over ``s``. Written in ``s`` it stays exact where ``delta = e^-s`` is far
below the smallest float. This module holds the quadrature and its inversion and knows no theorem;
``joma.theory.salience`` says what they mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# A panel spans this much of the integrand's logarithm (and of its Gaussian width near v = 0). At this
# size four Gauss-Legendre points integrate a panel to rounding, and a cubic guess followed by one
# Halley step inverts it to rounding.
_PANEL = 0.12
_POINTS, _WEIGHTS = (0.5 * a for a in np.polynomial.legendre.leggauss(4))
_POINTS = _POINTS + 0.5
# Beyond s_end the integrand is its limit exp(-mu^2/2) to a relative 1e-18.
_TAIL = 41.5
_ROWS = 1024
# Points inverted at once: the working arrays then stay in the cache.
_CACHED = 16384


def _exponent(mu: Array, sign: Array, s: Array) -> tuple[Array, Array]:
    """``w = v^2 / 2`` and ``dw/ds``."""
    e = np.exp(-s)
    x = 1.0 - sign * e
    return 0.5 * np.square(mu * x), np.square(mu) * x * sign * e


@dataclass(frozen=True)
class Clock:
    """Panels of ``s`` with the time at each of their ends, one row per component.

    Attributes: ``mu``, ``sign``, ``start`` of shape (m,), positive ``mu``; ``nodes`` and ``times`` of
    shape (m, n + 1), the times counted from ``start``. Rows that need fewer panels than others end
    in panels of no width.
    """

    mu: Array
    sign: Array
    nodes: Array
    times: Array

    @classmethod
    def build(cls, mu: Array, sign: Array, start: Array) -> Clock:
        """Panels fine enough for every component, from ``start`` until the rate is constant."""
        end = np.maximum(start, 0.0) + _TAIL + 2.0 * np.log(np.maximum(mu, 1.0))
        nodes = [start]
        while np.any(nodes[-1] < end):
            s = nodes[-1]
            _, slope = _exponent(mu, sign, s)
            density = np.abs(slope) + mu * np.exp(-s) + np.exp(-0.1 * np.maximum(s, 0.0))
            nodes.append(np.minimum(s + _PANEL / density, end))
        s = np.stack(nodes, axis=1)
        panel_times = _integrate(mu[:, None], sign[:, None], s[:, :-1], np.diff(s, axis=1))
        times = np.zeros_like(s)
        np.cumsum(panel_times, axis=1, out=times[:, 1:])
        return cls(mu, sign, s, times)

    @property
    def offset(self) -> Array:
        """``lim t - exp(-mu^2/2) s`` as s grows: what the start costs beyond the final rate, (m,)."""
        return self.times[:, -1] - np.exp(-0.5 * np.square(self.mu)) * self.nodes[:, -1]

    def time(self, row: int, s: Array) -> Array:
        """Time from the start until each ``s`` of one component, ``s`` of any shape."""
        nodes, mu, sign = self.nodes[row], self.mu[row], self.sign[row]
        last = nodes.size - 1
        k = np.clip(np.searchsorted(nodes, s, side="right") - 1, 0, last)
        inside = np.minimum(s, nodes[-1])
        partial = _integrate(mu, sign, nodes[k], inside - nodes[k])
        beyond = np.exp(-0.5 * mu**2) * np.maximum(s - nodes[-1], 0.0)
        return np.asarray(self.times[row][k] + partial + beyond)

    def position(self, t: Array) -> Array:
        """``s`` at the times ``t``: (m, n_times) for ``t`` of shape (n_times,), rising, non-negative."""
        out = np.empty((self.mu.size, t.size))
        rows = max(1, _CACHED // max(t.size, 1))
        for first in range(0, self.mu.size, rows):
            self._positions(slice(first, first + rows), t, out[first : first + rows])
        return out

    def _positions(self, rows: slice, t: Array, out: Array) -> None:
        nodes, times, mu, sign = self.nodes[rows], self.times[rows], self.mu[rows], self.sign[rows]
        # As both rise, the times that fall into a panel are neighbours: count them, panel by panel.
        counts = np.diff(np.searchsorted(t, times), axis=1)
        inside = counts.sum(axis=1)
        # Past the panels the rate is constant.
        rate = np.exp(0.5 * np.square(mu))[:, None]
        np.multiply(t - times[:, -1:], rate, out=out)
        out += nodes[:, -1:]
        panels = counts.ravel()
        used = panels > 0
        panels = panels[used]

        def spread(table: Array) -> Array:
            return np.repeat(table.ravel()[used], panels)

        begun = np.arange(t.size) < inside[:, None]
        begin = times[:, :-1]
        elapsed = np.broadcast_to(t, out.shape)[begun] - spread(begin)
        pace = np.exp(_exponent(mu[:, None], sign[:, None], nodes)[0])
        left, width, duration = spread(nodes[:, :-1]), spread(np.diff(nodes)), spread(np.diff(times))
        paces = spread(pace[:, :-1]), spread(pace[:, 1:])
        out[begun] = left + _invert(
            np.repeat(mu, inside), np.repeat(sign, inside), elapsed, left, width, duration, paces
        )


def _integrate(mu: Array | float, sign: Array | float, left: Array, width: Array) -> Array:
    """Integral of ``exp(-v^2/2)`` over [left, left + width], within one panel."""
    total = np.zeros(np.broadcast_shapes(np.shape(left), np.shape(width)))
    edge = sign * np.exp(-left)
    half = -0.5 * np.square(mu)
    for point, weight in zip(_POINTS, _WEIGHTS, strict=True):
        x = 1.0 - edge * np.exp(-point * width)
        total += weight * np.exp(half * np.square(x))
    return np.asarray(total * width)


def _invert(
    mu: Array,
    sign: Array,
    elapsed: Array,
    left: Array,
    width: Array,
    duration: Array,
    pace: tuple[Array, Array],
) -> Array:
    """How far into a panel, ``width`` wide and crossed in ``duration``, one is after ``elapsed``.

    ``pace`` is ds/dt at its two ends.
    """
    # Cubic Hermite guess, from the panel's ends and the pace there ...
    tau = elapsed / duration
    begin, end = (duration * p for p in pace)
    curve = begin - width + tau * (2.0 * width - begin - end)
    step = np.clip(tau * (width + (1.0 - tau) * curve), 0.0, width)
    # ... and one Halley step on the integral itself, whose error is the cube of the guess's.
    w, slope = _exponent(mu, sign, left + step)
    newton = (_integrate(mu, sign, left, step) - elapsed) * np.exp(w)
    step = step - newton / (1.0 + 0.5 * newton * slope)
    return np.asarray(np.clip(step, 0.0, width))


def blocks(mu: Array) -> Iterator[NDArray[np.intp]]:
    """Indices of the components in blocks of like ``mu``, which need about as many panels."""
    order = np.argsort(mu, kind="stable")
    for first in range(0, order.size, _ROWS):
        yield order[first : first + _ROWS]
