"""The trained block where attention learns faster than the MLP, beside the laws of its bounce.

What is trained are v, z and xi by Eq. 2, in steps; the laws know no attention: z = kappa v^2/2 (Theorem 1),
with the drift of the tree's own contexts (``drift``), or with C = I about the end of uniform attention
(``rest``, ``joma.theory.bounce_law.bounce_law``), or component by component with the drift that each one
has along the course of uniform attention (``components``: time there is int e^{-w}/(1 + w) dtau, tau the time
of uniform attention, so that it needs no flow at all).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from joma.core.arguments import Array
from joma.dynamics.block_salience_flow import integrate_attended
from joma.theory.block_salience import entropy, lambert
from joma.theory.bounce_law import bounce_law
from joma.theory.drift import of_labels

WIDTH = 0.005
"""Over which the law's gate is rounded: a flow slides along ReLU's own kinks. A tenth of the weights' start
and less of their end; halved, rebounds change by less than a hundredth of a nat."""
_MOMENTS = 4000
# Steps between the moments at which the entropy of the trained block is taken.
_EVERY = 10


def rebound(course: Array) -> float:
    """From an entropy's least value to its largest after it, in nats."""
    return float(course[course.argmin() :].max() - course.min())


def threshold(kappas: Array, rebounds: Array, level: float) -> float:
    """The kappa at which the rebound first reaches a level, interpolated in ln kappa; inf if never."""
    above = np.flatnonzero(rebounds >= level)
    if not above.size:
        return float("inf")
    i = above[0]
    if i == 0:
        return float(kappas[0])
    part = (level - rebounds[i - 1]) / (rebounds[i] - rebounds[i - 1])
    return float(np.exp(np.log(kappas[i - 1]) + part * np.log(kappas[i] / kappas[i - 1])))


def descend(
    contexts: tuple[Array, Array, Array], kappas: Array, *, start: float, time: float, step: float
) -> tuple[Array, Array]:
    """Entropy (S, B) along the training and attended weights at its end (B, n), at ``kappas`` (B,).

    ``contexts`` are x (N, n), labels (N,) and probabilities (N,). Weights start at ``start``, on the
    invariant.
    """
    drift = of_labels(*contexts)
    rate = kappas[:, None]
    v = np.full((kappas.size, contexts[0].shape[1]), start)
    z, xi = 0.5 * rate * v * v, np.zeros(kappas.size)
    courses = [entropy(z)]
    for number in range(1, round(time / step) + 1):
        gain = np.exp(z)
        pull, push = drift(v * gain, xi)
        move = step * gain * pull
        z, v, xi = z + rate * v * move, v + move, xi + step * push
        if number % _EVERY == 0:
            courses.append(entropy(z))
    return np.stack(courses), v * np.exp(z)


def law(contexts: tuple[Array, Array, Array], kappa: float, *, start: float, time: float) -> Array:
    """Entropy in time (S,) with the drift of the contexts and Theorem 1's logits."""
    size = contexts[0].shape[1]
    u0 = np.full(size, start * np.exp(0.5 * kappa * start**2))
    moments = np.concatenate([[0.0], np.geomspace(1e-3, time, _MOMENTS)])
    return entropy(integrate_attended(of_labels(*contexts, width=WIDTH), u0, moments, kappa=kappa).logits)


def of_components(uniform: Array, times: Array, kappa: float) -> Array:
    """Entropy in time (S,), each component by its own drift along uniform attention's course ``uniform``
    (S, n).

    ``times`` (S,) are uniform attention's. A component that has come to the end of its course stays there.
    """
    w = lambert(kappa * np.square(uniform))
    slowness = np.exp(-w) / (1.0 + w)
    spans = 0.5 * (slowness[1:] + slowness[:-1]) * np.diff(times)[:, None]
    clock = np.vstack([np.zeros(w.shape[1]), np.cumsum(spans, axis=0)])
    moments = np.geomspace(1e-3, clock.max(), _MOMENTS)
    return entropy(
        np.stack([np.interp(moments, t, 0.5 * z) for t, z in zip(clock.T, w.T, strict=True)], axis=1)
    )


def table(
    contexts: tuple[Array, Array, Array], kappas: Array, *, start: float, time: float, step: float
) -> pd.DataFrame:
    """Rebounds in nats: kappa, run (trained, drift, components, rest), metric, value."""
    courses, _ = descend(contexts, kappas, start=start, time=time, step=step)
    moments = np.concatenate([[0.0], np.geomspace(1e-3, time, _MOMENTS)])
    size = contexts[0].shape[1]
    # kappa near 0 is uniform attention.
    uniform = integrate_attended(
        of_labels(*contexts, width=WIDTH), np.full(size, start), moments, kappa=1e-12
    ).attended
    rows = []
    for kappa, course in zip(kappas, courses.T, strict=True):
        numbers = {
            "trained": rebound(course),
            "drift": rebound(law(contexts, float(kappa), start=start, time=time)),
            "components": rebound(of_components(uniform, moments, float(kappa))),
            "rest": bounce_law(uniform[-1], kappa=float(kappa)).rebound,
        }
        rows += [
            {"kappa": float(kappa), "run": name, "metric": "rebound", "value": value}
            for name, value in numbers.items()
        ]
    return pd.DataFrame(rows)
