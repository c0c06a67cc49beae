"""One integrator under all flows: its moments checked, its work bounded, its divergence told.

A flow hands over its velocity, a start and the moments it wants; what is common to all flows is here:
which times make sense, how many evaluations may be spent, what a state beyond the finite numbers means,
and the event at which a flow that runs away is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import solve_ivp

from joma.core.arguments import numbers
from joma.core.errors import DivergenceError, InputError, UnfinishedError

Array = NDArray[np.float64]
Method = Literal["DOP853", "RK45", "LSODA", "Radau", "BDF"]


@dataclass(frozen=True, eq=False)
class Solution:
    """A flow at the moments asked for, up to its blow-up if it has one."""

    times: Array
    """(S,)."""
    states: Array
    """(S, n)."""
    blow_up_time: float | None = None
    """When its speed passed the limit: the moments after it are missing."""


class Parts:
    """How the parts of a state, arrays of given shapes, lie one behind the other in one vector."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        self.shapes = shapes
        self.ends = np.cumsum([prod(shape) for shape in shapes])

    def pack(self, *parts: Array | float) -> Array:
        """The parts, each broadcast to its shape, as one vector."""
        whole = zip(parts, self.shapes, strict=True)
        return np.concatenate([np.broadcast_to(part, shape).ravel() for part, shape in whole])

    def unpack(self, state: Array) -> list[Array]:
        """The parts of ``state`` (..., n), each (..., *its shape)."""
        split = np.split(state, self.ends[:-1], axis=-1)
        lead = state.shape[:-1]
        return [part.reshape(*lead, *shape) for part, shape in zip(split, self.shapes, strict=True)]


def moments(where: str, times: ArrayLike, *, least: int = 1, from_zero: bool = False) -> Array:
    """The times of a flow: finite, rising, at least so many, and none before 0 if it starts there."""
    array = np.atleast_1d(numbers(where, "times", times))
    if array.ndim != 1 or array.size < least or not np.isfinite(array).all() or (np.diff(array) <= 0).any():
        few = ", at least two" if least > 1 else ""
        raise InputError(f"{where}: times must be finite and increasing{few}; got {times!r:.80}.")
    if from_zero and array[0] < 0:
        raise InputError(f"{where}: times must not be negative; got {array[0]:g}.")
    return array


class _Headroom:
    """How far the speed is below its limit, as an event that ends the integration."""

    terminal = True
    direction = 0.0

    def __init__(self, velocity: Callable[[float, Array], Array], limit: float, watched: int | None) -> None:
        self.velocity, self.limit, self.watched = velocity, limit, watched

    def __call__(self, time: float, state: Array) -> float:
        fastest = np.abs(self.velocity(time, state)[: self.watched]).max()
        return float(np.log(self.limit) - np.log(min(max(fastest, 1e-300), 1e300)))


def integrate(
    where: str,
    velocity: Callable[[float, Array], Array],
    start: Array,
    times: Array,
    *,
    begin: float | None = None,
    method: Method = "DOP853",
    rtol: float,
    atol: float | Array,
    members: int = 1,
    speed_limit: float | None = None,
    watched: int | None = None,
    max_evaluations: int = 1_000_000,
    advice: str,
) -> Solution:
    """Integrate ``velocity(time, state)`` from ``start`` (n,) over ``times`` (see ``moments``).

    Args:
        where: the caller, for messages.
        velocity: state (n,) -> its rate of change (n,); a DivergenceError of it is a trial step beyond
            what floats can hold, and makes the method take a shorter one.
        start: at ``begin``, which is ``times[0]`` unless given.
        times: (S,).
        begin: the time of ``start``.
        method: of ``scipy.integrate.solve_ivp``.
        rtol: relative tolerance of each step.
        atol: absolute tolerance of each step.
        members: independent flows side by side in the state. A method controls the root mean square over
            the whole state; tolerances are tightened by the root of this, so that no member hides.
        speed_limit: the flow has blown up when a component's rate of change exceeds this; None: never.
        watched: how many components, from the first, that limit concerns; None: all.
        max_evaluations: of ``velocity``.
        advice: what a user whose integration fails may do, for messages.

    Raises:
        UnfinishedError: ``max_evaluations`` did not suffice.
        DivergenceError: the integration failed otherwise than by a blow-up.
    """
    first = float(times[0]) if begin is None else begin
    last = float(times[-1])
    if last == first:
        return Solution(times, start[None])
    evaluations = 0

    def rate(time: float, state: Array) -> Array:
        nonlocal evaluations
        evaluations += 1
        if evaluations > max_evaluations:
            raise UnfinishedError(
                f"{where}: max_evaluations = {max_evaluations} were spent at t = {time:.6g} of {last:.6g}; "
                f"{advice}."
            )
        try:
            if np.isfinite(state).all():
                return velocity(time, state)
        except DivergenceError:
            pass
        if method == "LSODA":
            # It cannot take such a step back.
            raise DivergenceError(f"{where}: the state left the finite numbers at t = {time:.6g}; {advice}.")
        # Infinite speed makes the method take a shorter step.
        return np.full_like(state, np.inf)

    share = np.sqrt(members)
    with np.errstate(over="ignore", invalid="ignore"):
        solution = solve_ivp(
            rate,
            (first, last),
            start,
            method=method,
            t_eval=times,
            events=None if speed_limit is None else _Headroom(rate, speed_limit, watched),
            rtol=max(rtol / share, 3e-14),
            atol=atol / share,
        )
    if not solution.success or not np.isfinite(solution.y).all():
        reached = solution.t[-1] if len(solution.t) else first
        raise DivergenceError(
            f"{where}: the integration stopped at t = {reached:.6g} of {last:.6g} ({solution.message}); "
            f"{advice}."
        )
    ended: Sequence[Array] = solution.t_events or ()
    blow_up = float(ended[0][0]) if ended and ended[0].size else None
    return Solution(solution.t, solution.y.T, blow_up)
