"""Eq. 6 for 10,000 components at 1,000 times: joma's exact solution beside ``scipy``'s ``solve_ivp``.

Three ways to use ``solve_ivp`` (DOP853), all at the tolerance that brings them nearest to 1e-9:

- *one by one, in ln 1/delta*: a call for each component, in the variables that lose nothing to saturation
  and stiffness. The way to have every component right to 1e-9, whatever its mu, and the baseline of the
  target. Timed in turn with the exact solution, on a sample of the components, and scaled up to all.
- *together, in ln 1/delta*: all components in one call. The strongest baseline while mu is moderate; its
  error control averages over the components and its cost grows with exp(mu^2/2).
- *together, as written*: v' = (mu - v) exp(v^2/2) in one call, as one would write it first.

Run it alone on the machine: ``python benchmarks/bench_eq6.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import mpmath
import numpy as np
from scipy.integrate import solve_ivp

from joma.theory.salience import solve

COMPONENTS, TIMES, ROUNDS, SAMPLE, ACCURACY = 10_000, 1_000, 5, 20, 1e-9
RANGES = ((1.0, 4.0, 3.0), (0.5, 5.0, 10.0))  # mu from, to (the first is Fig. 4's), and the last time


def as_written(mu, times, tolerance):
    with np.errstate(over="ignore", invalid="ignore"):
        solution = solve_ivp(
            lambda _, v: (mu - v) * np.exp(0.5 * v * v),
            (0.0, times[-1]),
            np.zeros(mu.size),
            method="DOP853",
            t_eval=times,
            rtol=tolerance,
            atol=tolerance,
        )
    return solution.y.T


def in_log_delta(mu, times, tolerance):
    solution = solve_ivp(
        lambda _, s: np.exp(0.5 * (mu * np.expm1(-s)) ** 2),
        (0.0, times[-1]),
        np.zeros(mu.size),
        method="DOP853",
        t_eval=times,
        rtol=tolerance,
        atol=tolerance,
    )
    return mu * -np.expm1(-solution.y.T)


def timed(call: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def own_error(mu, times, v) -> float:
    """The exact solution against 30-digit quadrature at a few points: the error of v that t admits."""
    worst = 0.0
    rng = np.random.default_rng(1)
    with mpmath.workdps(30):
        for _ in range(12):
            i, k = rng.integers(times.size), rng.integers(mu.size)
            m, at = float(mu[k]), float(v[i, k])
            s = -mpmath.log1p(-mpmath.mpf(at) / m)
            if s > 25:  # v is mu to all digits
                continue
            told = _time(m, s)
            worst = max(worst, abs(float(told - times[i])) * (m - at) * np.exp(0.5 * at**2))
    return worst


def _time(mu: float, s: mpmath.mpf) -> mpmath.mpf:
    edges = [*np.arange(0.0, float(s), 0.5), s]
    return mpmath.quad(lambda x: mpmath.exp(-((mu * mpmath.expm1(-x)) ** 2) / 2), edges)


def main() -> None:
    rng = np.random.default_rng(0)
    solve(rng.uniform(1.0, 4.0, 100), np.linspace(0.0, 1.0, 10))  # imports and first touches
    print(f"{COMPONENTS:,} components at {TIMES:,} times, {ROUNDS} rounds, seconds (median)")
    for low, high, last in RANGES:
        mu = rng.uniform(low, high, COMPONENTS)
        times = np.linspace(0.0, last, TIMES + 1)[1:]
        sample = rng.choice(COMPONENTS, SAMPLE, replace=False)
        exact, one_by_one, error = [], [], 0.0
        for _ in range(ROUNDS):
            seconds, v = timed(lambda mu=mu, times=times: solve(mu, times).v)
            exact.append(seconds)
            seconds, found = timed(
                lambda mu=mu, times=times, sample=sample: np.hstack(
                    [in_log_delta(mu[k : k + 1], times, 1e-12) for k in sample]
                )
            )
            one_by_one.append(seconds * COMPONENTS / SAMPLE)
            error = float(np.abs(found - v[:, sample]).max())
        strongest = [timed(lambda mu=mu, times=times: in_log_delta(mu, times, 1e-11)) for _ in range(2)]
        logs, right = min(strongest, key=lambda run: run[0])
        base = float(np.median(exact))
        ratio = float(np.median(np.array(one_by_one) / np.array(exact)))
        print(f"\nmu from {low:g} to {high:g}, t to {last:g}")
        rows = [
            ("joma, exact", base, own_error(mu, times, v), ""),
            (
                "solve_ivp, one by one, in ln 1/delta",
                float(np.median(one_by_one)),
                error,
                f"scaled up from {SAMPLE} components",
            ),
            ("solve_ivp, together, in ln 1/delta", logs, float(np.abs(right - v).max()), "best of two"),
        ]
        if high <= 4.0:  # beyond, it takes minutes
            together, wrong = timed(lambda mu=mu, times=times: as_written(mu, times, 1e-12))
            rows.append(
                ("solve_ivp, together, as written", together, float(np.abs(wrong - v).max()), "one round")
            )
        for name, seconds, worst, note in rows:
            reached = "reached" if worst <= ACCURACY else "missed"
            print(
                f"  {name:38s}{seconds:10.2f} s{seconds / base:9.1f}x   "
                f"worst error of v {worst:.1e} ({ACCURACY:g} {reached})  {note}"
            )
        print(f"  median ratio at {ACCURACY:g} (one by one / exact): {ratio:.0f}x, target 10x")


if __name__ == "__main__":
    main()
