"""Eq. 6 integrated, for exp, linear, softmax and no attention, and the authors' discrete script.

The state is L = ln 1/|1 - v/mu| rather than v. In v the solution saturates: for mu = (3, 2), when the
slower component has 10 % to go the faster one's delta is 4e-20 and 1 - v/mu is rounding, so the ratio
of Theorem 4 comes out as 15.4 instead of 19.4. In L the same flow reads

    dL/dt = a(v),    v = mu (1 - side e^-L),

with ``a`` the attention that multiplies ``mu - v``. It has no saturation and loses its stiffness when
the components converge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, softmax

from joma.core.arguments import finite, number, numbers, positive, spread, whole, within_floats
from joma.core.errors import InputError
from joma.dynamics import integrator
from joma.theory.salience import Course

Array = NDArray[np.float64]
Attention = Literal["exp", "linear", "softmax", "none"]


def integrate(
    mu: ArrayLike,
    times: ArrayLike,
    *,
    v0: ArrayLike = 0.0,
    attention: Attention = "exp",
    kappa: float = 1.0,
    c: ArrayLike = 0.0,
    bbar: ArrayLike | None = None,
    tolerance: float = 1e-11,
) -> Course:
    """The flow v' = (mu - v) a(v) by DOP853 in L.

    Args:
        mu: critical points, (m,), none zero.
        times: (n,), rising from at least 0.
        v0: initial weights, (m,) or one for all, none equal to its mu.
        attention: ``exp``: a = exp(kappa v^2/2), Eq. 6; ``linear``: a = sqrt(v^2 + c);
            ``softmax``: a = M exp(kappa [v^2 - bbar |v|^2]/2)/sum of the same, M components
            (the factor M makes uniform attention a = 1); ``none``: a = 1.
        kappa: eta_z/(eta_w T^2), for exp and softmax.
        c: z(0)^2 - v(0)^2 for linear attention, (m,) or one for all, with v0^2 + c > 0.
        bbar: average attention for softmax, (m,), held constant (the assumption of Theorem 1);
            uniform unless given.
        tolerance: relative and absolute, of L per step; from 1e-13 to 0.1.

    Raises DivergenceError where the flow outruns float64 times, as exp attention does from |mu| of
    about 7 on; ``joma.theory.salience.solve`` has no such limit.
    """
    m, start, t = _input(mu, v0, times)
    _check_tolerance("salience_flow.integrate", tolerance)
    kappa = positive("salience_flow.integrate", "kappa", kappa)
    with np.errstate(over="ignore"):
        gap = within_floats("salience_flow: 1 - v0/mu", 1.0 - start / m, "bring v0 and mu nearer")
        within = (0.5 * kappa * start * start < 700.0) & (np.abs(start) < 1e150)
        if attention in ("exp", "softmax") and not np.all(within):
            raise InputError(
                "salience_flow.integrate: exp(kappa v0^2/2) is no float64; keep kappa v0^2/2 below 700."
            )
    side = np.sign(gap)
    rate = _attention(attention, m, start, kappa, c, bbar)

    def slope(_: float, log_inverse_delta: Array) -> Array:
        return rate(m * (1.0 - side * np.exp(-log_inverse_delta)))

    found = integrator.integrate(
        "salience_flow.integrate",
        slope,
        -np.log(np.abs(gap)),
        t,
        begin=0.0,
        rtol=tolerance,
        atol=tolerance,
        advice="for exp attention use joma.theory.salience.solve, which is exact",
    )
    return Course(m, t, found.states, side)


def integrate_following_softmax(
    mu: ArrayLike, times: ArrayLike, *, z0: ArrayLike = 0.0, tolerance: float = 1e-11
) -> tuple[Course, Array]:
    """Softmax attention whose average bbar is not held constant but follows the attention.

        v' = M (mu - v) b,    z' = v v' - b (v.v'),    b = softmax(z),    from v(0) = 0

    i.e. the softmax part of Theorem 1 before its assumption of a constant bbar. The logits then stay
    finite, the components' speeds end in the ratio exp(z_j - z_k) at the end, and this is far from
    exp((mu_j^2 - mu_k^2)/2): the more a component is attended to, the more it is held back.

    Args:
        mu: critical points, (m,), positive.
        times: (n,), rising.
        z0: logits at the start, (m,) or one for all.
        tolerance: relative and absolute, per step; from 1e-13 to 0.1.

    Returns the course and the logits z, (n, m).
    """
    m, start, t = _input(mu, 0.0, times)
    if np.any(m < 0):
        raise InputError("integrate_following_softmax: mu must be positive (mirror a negative component).")
    size = m.size
    _check_tolerance("integrate_following_softmax", tolerance)
    logits = spread("integrate_following_softmax", "z0", z0, m.shape)

    def slope(_: float, state: Array) -> Array:
        remaining = np.exp(-state[:size])
        b = softmax(state[size:])
        gain = m * (1.0 - remaining) * m * remaining * size * b
        return np.concatenate([size * b, gain - b * gain.sum()])

    found = integrator.integrate(
        "integrate_following_softmax",
        slope,
        np.concatenate([start, logits]),
        t,
        begin=0.0,
        rtol=tolerance,
        atol=tolerance,
        advice="ask for earlier times",
    )
    return Course(m, t, found.states[:, :size], np.ones(size)), found.states[:, size:]


def attention_entropy(v: ArrayLike, temperature: float = 2.0) -> Array:
    """Entropy in nats of softmax(v^2/T) over the last axis.

    T = 2 is the attention of Eq. 6, exp(v^2/2), normalised; the paper's caption of Fig. 4 says
    softmax(v^2), T = 1; the authors' script plots T = 3.
    """
    where = "attention_entropy"
    weights, temperature = finite(where, "v", v), positive(where, "temperature", temperature)
    if weights.ndim == 0 or weights.size == 0:
        raise InputError(f"{where}: v has shape {weights.shape}; give (..., components), at least one.")
    with np.errstate(over="ignore"):
        logits = within_floats(where, np.square(weights) / temperature, "give smaller v or a larger T")
    p = softmax(logits, axis=-1)
    return np.asarray(logsumexp(logits, axis=-1) - np.sum(p * logits, axis=-1))


def acting_attention(times: ArrayLike, v: ArrayLike, mu: ArrayLike) -> tuple[Array, Array]:
    """The attention that acts, read off a course as v'/(mu - v), normalised over components.

    Between neighbouring ``times`` (n,) it is the increment of ln 1/(1 - v/mu) for ``v`` of shape (n, m);
    returns it and the weights in between, both (n - 1, m) or fewer: rows where some 1 - v/mu has become
    rounding are left out.
    """
    where = "acting_attention"
    moments, weights = finite(where, "times", times), finite(where, "v", v)
    if weights.ndim != 2 or moments.shape != weights.shape[:1] or np.any(np.diff(moments) <= 0):
        raise InputError(
            f"{where}: times {moments.shape} must rise and v {weights.shape} be (times, components)."
        )
    points = spread(where, "mu", mu, weights.shape[1:])
    if np.any(points == 0):
        raise InputError(f"{where}: a component of mu is 0, where 1 - v/mu means nothing; leave it out.")
    gap = 1.0 - weights / points
    told = np.flatnonzero(np.all(gap > 1e-9, axis=1))
    if told.size < 2:
        raise InputError("acting_attention: no two times at which every v is still below its mu.")
    with np.errstate(all="ignore"):
        slopes = np.diff(-np.log(gap[told]), axis=0) / np.diff(moments[told])[:, None]
    between = 0.5 * (weights[told][1:] + weights[told][:-1])
    with np.errstate(all="ignore"):
        shares = slopes / slopes.sum(axis=1, keepdims=True)
    return within_floats(where, shares, "give times at which v moves, further apart"), between


def script_dynamics(
    mu: ArrayLike,
    *,
    steps: int = 5000,
    learning_rate: float = 0.02,
    w0: float = 0.05,
    temperature: float = 3.0,
    attention: bool = True,
    dtype: type[np.floating] = np.float64,
) -> Array:
    """The discrete map of the authors' script for Fig. 4, which is not Eq. 6.

        w <- w + learning_rate (mu - w) softmax(w^2/T),    T = 3

    The softmax couples the components through its normaliser only, so that in the limit of a small
    learning rate this is Eq. 6 with kappa = 2/T on another clock. Without ``attention`` the softmax
    is the constant 1/M.

    Args:
        mu: critical points, (m,), positive.
        steps: states returned, the first of them the initial one.
        learning_rate: of one step, positive; the map is stable below 2 / (the largest attention).
        w0: initial value of every component.
        temperature: T, positive.
        attention: False for the null.
        dtype: the arithmetic's; the script's is float32.

    Returns the weights, (steps, m), in ``dtype``.
    """
    where = "script_dynamics"
    if not (isinstance(dtype, type) and issubclass(dtype, np.floating)):
        raise InputError(
            f"{where}: dtype = {dtype!r} is not a floating type; give numpy.float32 or numpy.float64."
        )
    whole(where, "steps", steps)
    w0, learning_rate = number(where, "w0", w0), positive(where, "learning_rate", learning_rate)
    temperature = positive(where, "temperature", temperature)
    m = numbers(where, "mu", mu).astype(dtype)
    if m.ndim != 1 or m.size == 0 or not np.all(np.isfinite(m)):
        raise InputError("script_dynamics: mu must be a vector of finite numbers, at least one.")
    weights = np.empty((steps, m.size), dtype=dtype)
    w = np.full_like(m, w0)
    eta, scale = dtype(learning_rate), dtype(1 / temperature)
    with np.errstate(all="ignore"):
        for step in range(steps):
            weights[step] = w
            if attention:
                logits = w * w * scale
                share = np.exp(logits - logits.max())
                share /= share.sum()
            else:
                share = np.full_like(w, 1 / m.size)
            w = w + eta * (m - w) * share
    if not np.isfinite(weights).all():
        raise InputError(
            f"{where}: the map diverges at learning_rate = {learning_rate:g}, "
            f"mu up to {np.abs(m).max():g}, w0 = {w0:g} in {np.dtype(dtype).name}; give smaller ones."
        )
    return weights


def _attention(
    kind: str, mu: Array, v0: Array, kappa: float, c: ArrayLike, bbar: ArrayLike | None
) -> Callable[[Array], Array]:
    if kind == "none":
        return np.ones_like
    if kind == "exp":
        return lambda v: np.exp(0.5 * kappa * v * v)
    if kind == "linear":
        offset = spread("salience_flow.integrate", "c", c, mu.shape)
        if np.any(~(v0 * v0 + offset > 0)):
            raise InputError(
                "salience_flow.integrate: linear attention needs z(0)^2 = v0^2 + c > 0; at z(0) = 0 "
                "nothing moves (give c > 0 or v0 != 0)."
            )
        return lambda v: np.sqrt(v * v + offset)
    if kind == "softmax":
        uniform = np.full(mu.shape, 1 / mu.size)
        mean = uniform if bbar is None else finite("salience_flow.integrate", "bbar", bbar)
        if mean.shape != mu.shape or np.any(mean < 0) or abs(float(mean.sum()) - 1) > 1e-9:
            raise InputError(
                f"salience_flow.integrate: bbar (shape {mean.shape}) must be {mu.size} probabilities "
                "that sum to one."
            )
        return lambda v: mu.size * softmax(0.5 * kappa * (v * v - mean * np.dot(v, v)))
    raise InputError(
        f"salience_flow.integrate: attention {kind!r} is unknown; give 'exp', 'linear', 'softmax' or 'none'."
    )


def _input(mu: ArrayLike, v0: ArrayLike, times: ArrayLike) -> tuple[Array, Array, Array]:
    where = "salience_flow.integrate"
    m, t = np.atleast_1d(numbers(where, "mu", mu)), integrator.moments(where, times, from_zero=True)
    if m.ndim != 1 or m.size == 0 or not np.all(np.isfinite(m)) or np.any(m == 0):
        raise InputError("salience_flow.integrate: mu must be a vector of finite numbers other than 0.")
    start = spread(where, "v0", v0, m.shape)
    if np.any(start == m):
        raise InputError("salience_flow.integrate: a component starts at v0 = mu, where nothing moves.")
    return m, start, t


def _check_tolerance(where: str, tolerance: float) -> None:
    if not 1e-13 <= number(where, "tolerance", tolerance) <= 0.1:
        raise InputError(f"{where}: tolerance = {tolerance!r} must lie between 1e-13 and 0.1.")
