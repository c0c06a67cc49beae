r"""JoMA Theorem 2: linear activation under exp attention, solved exactly (Eq. 3, 4, 19-22).

With ``phi(x) = x`` and stationary back-propagated gradients, Theorem 1 turns the training of a block
under exp attention into one equation for the lower MLP weights ``v_k`` (one row a node, one column a
contextual token)::

    dv_kl/dt = eta_w (Delta_kl / A) exp(z_l / T),    Delta_kl = E[g_k x_l],
    z_l = z_l(0) + eta_z / (2 T eta_w) sum_k (v_kl^2 - v_kl(0)^2)

which separates token by token: ``v_.l`` moves along its own fixed direction ``Delta_.l`` in the space
of the nodes, and the normal distribution function of ``sqrt(kappa) v`` grows linearly in time,
``kappa = eta_z / (eta_w T^2)``. The token with the shortest blow-up time wins: its weight diverges in
*finite* time, and all others stop at finite limits.

Where the print is wrong: Eq. 4 and 22 have ``erf(v/2)`` for ``erf(v/sqrt 2)``; Eq. 3 lacks ``1/A``; the
rates and the temperature are tacitly one; the blow-up is not mentioned to be in finite time. The
solution here also covers any number of nodes and any initial state, which the paper does not.

The remark on softmax attention (equal normalisers for all samples, uniform mean attention) only
re-parametrises time. The new clock is elementary too: ``softmax_weights``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import erf, erfcx, erfinv, log_ndtr, ndtri_exp

from joma.core.arguments import finite, number, positive, within_floats
from joma.core.errors import InputError
from joma.theory.attention import Array

# The square of the winner's weight (in standard form) must be a float.
_LARGEST_WEIGHT = 1e150


@dataclass(frozen=True, kw_only=True, eq=False)
class WinnerTakeAll:
    """The exact course of the weights of Theorem 2, from any initial state (float64).

    ``drive`` is Delta, of shape (tokens,) for one node or (nodes, tokens); ``initial_weights`` has the
    same shape and ``initial_logits`` has shape (tokens,); both default to zero. All tokens, all nodes
    and all times asked for are computed at once; results have shape ``times.shape + drive.shape``.
    Raises ``InputError`` for shapes that do not match, numbers that are not finite, and rates,
    temperature or normaliser that are not positive.
    """

    drive: ArrayLike
    normaliser: float = 1.0
    """The constant A of exp attention."""
    attention_rate: float = 1.0
    """eta_z."""
    weight_rate: float = 1.0
    """eta_w."""
    temperature: float = 1.0
    """T, which divides the attention logits."""
    initial_weights: ArrayLike | None = None
    initial_logits: ArrayLike | None = None

    def __post_init__(self) -> None:
        for name in ("normaliser", "attention_rate", "weight_rate", "temperature"):
            positive("WinnerTakeAll", name, getattr(self, name))
        if not 1e-150 < self.temperature < 1e150 or not 1e-150 < self.kappa < 1e150:
            raise InputError(
                "WinnerTakeAll: eta_z / (eta_w T^2) is beyond float64; bring rates and T nearer."
            )
        delta = finite("WinnerTakeAll", "drive", self.drive)
        if delta.ndim not in (1, 2) or delta.size == 0:
            raise InputError(
                f"WinnerTakeAll: drive has shape {delta.shape}; give (tokens,) or (nodes, tokens)."
            )
        for name, shape in (("initial_weights", delta.shape), ("initial_logits", delta.shape[-1:])):
            given = getattr(self, name)
            if given is not None and finite("WinnerTakeAll", name, given).shape != shape:
                raise InputError(
                    f"WinnerTakeAll: {name} has shape {np.shape(given)} where drive needs {shape}."
                )
        with np.errstate(over="ignore"):
            squares = np.square(self._delta).sum(axis=0), np.square(self._initial)
        lost = (squares[0] == 0) & np.any(self._delta != 0, axis=0)
        if not np.all(np.isfinite(squares[0])) or np.any(lost):
            raise InputError("WinnerTakeAll: the squares of drive are beyond float64; rescale it.")
        if not np.all(self.kappa * squares[1] < 1e150):
            raise InputError(
                "WinnerTakeAll: the squares of initial_weights are beyond float64; rescale them."
            )
        if not np.all(np.isfinite(self._pace)):
            raise InputError("WinnerTakeAll: exp(initial_logits / temperature) overflows; shift them.")

    @property
    def kappa(self) -> float:
        """``eta_z / (eta_w T^2)``: how strongly the logits feed back on the weights."""
        return self.attention_rate / (self.weight_rate * self.temperature**2)

    @cached_property
    def blow_up_times(self) -> Array:
        """When each token's weight would diverge if it were alone, shape (tokens,); inf for no drive.

        ``t*_l = (A / (eta_w |Delta_l| e^{z_l(0)/T})) sqrt(pi / (2 kappa)) erfcx(sqrt(kappa/2) p_l(0))``
        with ``p_l(0) = v_.l(0).Delta_.l / |Delta_.l|``; from zero, ``sqrt(pi/2) A / |Delta_l|`` at unit
        rates. An overflow (a start far on the wrong side) is inf as well.
        """
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            times = 0.5 * erfcx(self._start / np.sqrt(2)) / self._pace
        return np.where(self._pace > 0, times, np.inf)

    @property
    def blow_up_time(self) -> float:
        """``t*``, the end of the solution: ``sqrt(pi/2) A / max|Delta|`` from zero at unit rates."""
        return float(self.blow_up_times.min())

    def winners(self, relative_gap: float = 1e-12) -> NDArray[np.bool_]:
        """Which tokens diverge at ``t*``: more than one only where they tie (within a relative gap)."""
        if not 0 <= number("WinnerTakeAll.winners", "relative_gap", relative_gap) < 1:
            raise InputError(f"WinnerTakeAll.winners: relative_gap = {relative_gap!r} must lie in [0, 1).")
        if not np.isfinite(self.blow_up_time):
            return np.zeros(self.blow_up_times.shape, dtype=bool)
        return np.asarray(self.blow_up_times <= self.blow_up_time * (1 + relative_gap))

    def weights(self, time: ArrayLike) -> Array:
        """The weights at each time, ``0 <= time < t*``.

        Close to ``t*`` the winner depends on ``t* - time``, which float64 resolves to 1e-16 t* only
        (an error of 3e-5 in the winner at ``t* - 1e-12``); ``weights_before_blow_up`` takes the
        remaining time itself and has no such limit.
        """
        elapsed = finite("WinnerTakeAll.weights", "time", time)
        end = self.blow_up_time
        if np.any(elapsed < 0):
            raise InputError(f"WinnerTakeAll.weights: time {elapsed.min():g} is negative; start at 0.")
        if np.any(elapsed >= end):
            raise InputError(
                f"WinnerTakeAll.weights: time {elapsed.max():.17g} is not before the blow-up time "
                f"t* = {end:.17g}, where the winning weight diverges; ask for earlier times."
            )
        remaining = end - elapsed if np.isfinite(end) else np.full(elapsed.shape, np.inf)
        return self._weights(elapsed, np.log(remaining))

    def weights_before_blow_up(self, remaining: ArrayLike) -> Array:
        """The weights at the times ``t* - remaining``, ``0 < remaining <= t*``.

        Accurate however small ``remaining`` is, so that the winner can be followed to ``v = 38``
        (``remaining = 1e-308``) where ``t* - remaining`` rounds to ``t*``.
        """
        left = finite("WinnerTakeAll.weights_before_blow_up", "remaining", remaining)
        end = self.blow_up_time
        if not np.isfinite(end):
            raise InputError("WinnerTakeAll.weights_before_blow_up: no token blows up; use weights(time).")
        if np.any(left <= 0) or np.any(left > end):
            raise InputError(
                f"WinnerTakeAll.weights_before_blow_up: remaining times must lie in (0, t* = {end:.17g}]; "
                f"got {left.min():g} to {left.max():g}."
            )
        return self._weights(end - left, np.log(left))

    def limits(self, relative_gap: float = 1e-12) -> Array:
        """The weights as ``t -> t*``: +-inf for the winners, finite for every loser.

        From zero a loser ends at ``sqrt(2/kappa) erfinv(|Delta_l| / |Delta_max|)`` along its own
        direction (the sign is kept). Without any drive nothing moves.
        """
        end = self.blow_up_time
        if not np.isfinite(end):
            return np.array(self._initial[0] if np.ndim(self.drive) == 1 else self._initial)
        along = self._along(np.asarray(end), np.asarray(-np.inf))
        winners = self.winners(relative_gap)
        state = self._rest + np.where(winners, 0.0, along) * self._direction
        infinite = winners & (self._direction != 0)
        state = np.where(infinite, np.copysign(np.inf, self._direction), state)
        return state[0] if np.ndim(self.drive) == 1 else state

    def logits(self, weights: ArrayLike) -> Array:
        """The attention logits that Theorem 1 gives for these weights, shape ``(..., tokens)``."""
        state = finite("WinnerTakeAll.logits", "weights", weights)
        if state.shape[-np.ndim(self.drive) :] != np.shape(self.drive):
            raise InputError(
                f"WinnerTakeAll.logits: weights have shape {state.shape}, which does not end in "
                f"{np.shape(self.drive)} like drive."
            )
        with np.errstate(all="ignore"):
            squares = state**2 if np.ndim(self.drive) == 1 else (state**2).sum(axis=-2)
            grown = squares - (self._initial**2).sum(axis=0)
            logits = self._logits + self.attention_rate / (2 * self.temperature * self.weight_rate) * grown
        return within_floats("WinnerTakeAll.logits", logits, "give smaller weights")

    # Below, tokens are handled in standard form: q = sqrt(kappa) p, with p the component of v_.l along
    # its drive, obeys Phi(q)' = const, and Phi(-q) e^{q0^2/2} = pace (t*_l - t).

    @cached_property
    def _delta(self) -> Array:
        return np.atleast_2d(np.asarray(self.drive, dtype=np.float64))

    @cached_property
    def _initial(self) -> Array:
        given = np.zeros(np.shape(self.drive)) if self.initial_weights is None else self.initial_weights
        return np.atleast_2d(np.asarray(given, dtype=np.float64))

    @cached_property
    def _logits(self) -> Array:
        given = np.zeros(self._delta.shape[1]) if self.initial_logits is None else self.initial_logits
        return np.asarray(given, dtype=np.float64)

    @cached_property
    def _strength(self) -> Array:
        return np.asarray(np.linalg.norm(self._delta, axis=0))

    @cached_property
    def _direction(self) -> Array:
        return np.divide(
            self._delta, self._strength, out=np.zeros_like(self._delta), where=self._strength > 0
        )

    @cached_property
    def _start(self) -> Array:
        """q0, shape (tokens,)."""
        return np.asarray(np.sqrt(self.kappa) * (self._initial * self._direction).sum(axis=0))

    @cached_property
    def _rest(self) -> Array:
        """The part of the initial weights across the drive, which never changes: (nodes, tokens)."""
        return np.asarray(self._initial - self._start / np.sqrt(self.kappa) * self._direction)

    @cached_property
    def _pace(self) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            gain = np.exp(self._logits / self.temperature)
            speed = self.weight_rate * self._strength * gain / self.normaliser
        return np.asarray(np.sqrt(self.kappa / (2 * np.pi)) * speed)

    def _along(self, elapsed: Array, log_remaining: Array) -> Array:
        """The component of each token's weights along its drive; ``times.shape + (tokens,)``.

        Three forms of one function: near ``Phi(q) = 1/2`` by erfinv, in the tails by the inverse of
        log Phi, each where it loses no digits.
        """
        start, pace = self._start, self._pace
        elapsed, log_remaining = np.asarray(elapsed)[..., None], np.asarray(log_remaining)[..., None]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
            gap = np.log(self.blow_up_times - self.blow_up_time)
            upper = np.log(pace) + np.logaddexp(gap, log_remaining) - start**2 / 2
            lower = np.log(0.5 * erfcx(-start / np.sqrt(2)) + pace * elapsed) - start**2 / 2
            middle = erf(start / np.sqrt(2)) + 2 * np.exp(-(start**2) / 2) * pace * elapsed
            standard = np.select(
                [np.broadcast_to(pace == 0, middle.shape), np.abs(middle) < 0.9, lower < upper],
                [np.broadcast_to(start, middle.shape), np.sqrt(2) * erfinv(middle), ndtri_exp(lower)],
                -ndtri_exp(upper),
            )
        return np.asarray(standard / np.sqrt(self.kappa))

    def _weights(self, elapsed: Array, log_remaining: Array) -> Array:
        state = self._rest + self._along(elapsed, log_remaining)[..., None, :] * self._direction
        return state[..., 0, :] if np.ndim(self.drive) == 1 else state


def erf_invariant(weights: ArrayLike, drive: ArrayLike, *, kappa: float = 1.0) -> Array:
    """``erf(sqrt(kappa/2) |v_.l|) / |Delta_.l|`` of each token: equal for all tokens (Eq. 4, corrected).

    ``weights`` has shape ``(..., tokens)`` for a ``drive`` of shape (tokens,), or ``(..., nodes,
    tokens)``. Holds from zero weights and equal initial logits; its value is
    ``sqrt(2 kappa/pi) eta_w t / A``. With one node the sign of v and of Delta agree and cancel.
    """
    return _ratio(weights, drive, np.sqrt(positive("erf_invariant", "kappa", kappa) / 2))


def printed_invariant(weights: ArrayLike, drive: ArrayLike) -> Array:
    """``erf(|v_.l|/2) / |Delta_.l|``: Eq. 4 as printed, which is *not* equal for all tokens."""
    return _ratio(weights, drive, 0.5)


def softmax_weights(flow: WinnerTakeAll, frequency: ArrayLike, time: ArrayLike) -> Array:
    """Theorem 2 under softmax attention, as its remark has it, in closed form but for one scalar root.

    Assumes what the remark assumes, ``z = (v^2 - const)/2`` with a shift shared by all tokens, and one
    normaliser for all samples, ``A(t) = sum_l frequency_l exp(z_l / T)``. Since
    ``1 = sum_l frequency_l exp(z_l/T) / A`` and ``dp_l/dt = eta_w |Delta_l| exp(z_l/T) / A`` for the
    component ``p_l`` along the drive, time itself is ``t = sum_l frequency_l (p_l - p_l(0)) / (eta_w
    |Delta_l|)``. So the course is that of exp attention, the limits of the losers are the same, and the
    winner grows linearly, ``|Delta| eta_w t / frequency``, without any blow-up.

    ``flow`` must have normaliser 1 and some drive, ``frequency`` shape (tokens,), not negative, positive
    where a token wins. Any ``time >= 0``; the result has shape ``time.shape + drive.shape``.
    """
    share = finite("softmax_weights", "frequency", frequency)
    times = finite("softmax_weights", "time", time)
    if share.shape != flow.blow_up_times.shape or np.any(share < 0):
        raise InputError(
            f"softmax_weights: frequency must be {flow.blow_up_times.shape[0]} numbers, none negative; "
            f"got shape {share.shape}, least {share.min(initial=0):g}."
        )
    if np.any(times < 0):
        raise InputError(f"softmax_weights: time {times.min():g} is negative; start at 0.")
    if flow.normaliser != 1:
        raise InputError("softmax_weights: the flow has a normaliser of its own; give it normaliser=1.")
    winner = int(np.argmin(flow.blow_up_times))
    if not np.isfinite(flow.blow_up_time) or share[winner] == 0:
        raise InputError("softmax_weights: needs a winning token of positive frequency.")
    clock = _SoftmaxClock(flow, share, winner)
    state = np.array([flow._weights(*clock.internal(t)) for t in times.ravel()])
    return state.reshape(times.shape + np.shape(flow.drive))


class _SoftmaxClock:
    """From softmax's time to the time of exp attention, by way of the winner's weight."""

    def __init__(self, flow: WinnerTakeAll, frequency: Array, winner: int) -> None:
        self.flow, self.frequency, self.winner = flow, frequency, winner
        self.moving = flow._strength > 0
        gain = np.exp(flow._logits / flow.temperature)
        self.idle = float((frequency * gain)[~self.moving].sum())

    def exp_time(self, standard: float) -> tuple[Array, Array]:
        """Elapsed and log remaining time of exp attention when the winner stands at ``standard``."""
        start, pace = self.flow._start[self.winner], self.flow._pace[self.winner]
        scale = np.exp(start**2 / 2) / pace
        grown = 0.5 * (erf(standard / np.sqrt(2)) - erf(start / np.sqrt(2)))
        return np.asarray(scale * grown), np.asarray(log_ndtr(-standard) + np.log(scale))

    def softmax_time(self, standard: float) -> float:
        flow, moving = self.flow, self.moving
        elapsed, log_remaining = self.exp_time(standard)
        grown = flow._along(elapsed, log_remaining) - flow._start / np.sqrt(flow.kappa)
        steps = self.frequency[moving] * grown[moving] / (flow.weight_rate * flow._strength[moving])
        return float(steps.sum() + self.idle * elapsed)

    def internal(self, time: float) -> tuple[Array, Array]:
        low = float(self.flow._start[self.winner])
        if time == 0:
            return np.asarray(0.0), np.asarray(np.log(self.flow.blow_up_time))
        slope = self.flow.weight_rate * self.flow._strength[self.winner] / self.frequency[self.winner]
        high = low + float(np.sqrt(self.flow.kappa) * slope * time) * (1 + 1e-12)
        if not high < _LARGEST_WEIGHT:
            raise InputError(
                f"softmax_weights: by time {time:g} the winner is beyond float64; ask for earlier times."
            )
        root = brentq(lambda q: self.softmax_time(q) - time, low, high, xtol=1e-300, rtol=1e-15)
        return self.exp_time(float(root))


def _ratio(weights: ArrayLike, drive: ArrayLike, scale: float) -> Array:
    state, delta = finite("erf invariant", "weights", weights), finite("erf invariant", "drive", drive)
    if delta.ndim not in (1, 2) or state.shape[-delta.ndim :] != delta.shape:
        raise InputError(
            f"erf invariant: weights of shape {state.shape} do not end in drive's {delta.shape}."
        )
    if delta.ndim == 2:
        state, delta = np.linalg.norm(state, axis=-2), np.linalg.norm(delta, axis=0)
    if np.any(delta == 0):
        raise InputError("erf invariant: a token without drive has none; leave it out.")
    return np.asarray(erf(scale * state) / delta)
