"""The script and Eq. 6, each with its nulls: courses, entropies, half times, clocks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from joma.core.arguments import Array
from joma.core.progress import Progress
from joma.dynamics.salience_flow import attention_entropy, script_dynamics
from joma.experiments.joma_paper.fig4 import ACTING, CAPTION, DYNAMICS, VARIANTS, Fig4
from joma.theory.salience import elapsed_time, solve

Chosen = NDArray[np.int64]
"""Which of the times are drawn."""


def run(settings: Fig4, progress: Progress) -> dict[str, pd.DataFrame]:
    """Both dynamics, each with its two nulls."""
    mu = critical_points(settings)
    tables: dict[str, list[pd.DataFrame]] = {
        name: [] for name in ("weights", "entropy", "extremes", "half_times")
    }
    for dynamics in DYNAMICS:
        for variant in VARIANTS:
            target = np.full_like(mu, mu.mean()) if variant == "equal mu" else mu
            course = _script if dynamics == "script" else _equation_6
            times, weights, drawn = course(settings, target, variant != "no attention")
            labels = {"run": dynamics, "variant": variant}
            for temperature in sorted({settings.temperature, ACTING, CAPTION}):
                curve, extremes = _entropies(times, weights, drawn, temperature)
                tables["entropy"].append(curve.assign(**labels))
                tables["extremes"].append(extremes.assign(**labels))
            tables["half_times"].append(_half_times(times, weights, target).assign(**labels))
            if variant == "attention":
                tables["weights"].append(_weights(times, weights, drawn, target).assign(**labels))
    return {
        "components": pd.DataFrame(
            {"component": np.arange(mu.size), "metric": "mu", "value": mu, "dtype": "float64"}
        ),
        **{name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()},
        "clocks": _clocks(settings, mu),
    }


def critical_points(settings: Fig4) -> Array:
    """``mu`` as the authors draw it: low + (high - low) torch.rand after their seeding, sorted."""
    uniform = torch.rand(settings.components, generator=torch.Generator().manual_seed(settings.seed))
    mu = settings.smallest_mu + (settings.largest_mu - settings.smallest_mu) * uniform
    return np.asarray(np.sort(mu.numpy()), dtype=np.float64)


def _script(settings: Fig4, mu: Array, attention: bool) -> tuple[Array, Array, Chosen]:
    """Iterations, weights at each, and which of them to draw."""
    weights = script_dynamics(
        mu,
        steps=settings.iterations,
        learning_rate=settings.learning_rate,
        w0=settings.initial,
        temperature=settings.temperature,
        attention=attention,
    )
    times = np.arange(settings.iterations, dtype=np.float64)
    return times, weights, np.unique(np.linspace(0, settings.iterations - 1, 500).astype(int))


def _equation_6(settings: Fig4, mu: Array, attention: bool) -> tuple[Array, Array, Chosen]:
    """Times (dense where the entropy is least), weights at each, and which of them to draw."""

    def weights(times: Array) -> Array:
        if attention:
            return solve(mu, times, v0=settings.initial).v
        return np.asarray(mu - (mu - settings.initial) * np.exp(-times[:, None]))

    # Until the slowest component of the real run is within e^-12 of its end, for every variant.
    end = elapsed_time(critical_points(settings), 12.0, v0=settings.initial).max()
    times = np.concatenate([[0.0], np.geomspace(1e-3 * end, end, 4000)])
    coarse = weights(times)
    for temperature in (ACTING, CAPTION):
        least = int(np.argmin(attention_entropy(coarse, temperature)))
        near = times[max(least - 2, 0)], times[min(least + 2, times.size - 1)]
        times = np.union1d(times, np.linspace(*near, 801))
        coarse = weights(times)
    drawn = np.unique(np.searchsorted(times, np.geomspace(1e-3 * end, end, 1200)).clip(0, times.size - 1))
    return times, coarse, np.union1d([0], drawn)


def _clocks(settings: Fig4, mu: Array) -> pd.DataFrame:
    """The time of Eq. 6 that each component of the script tells: equal for all if it *is* Eq. 6."""
    iterations, weights, _ = _script(settings, mu, True)
    rows = []
    for at in np.unique(np.linspace(0, settings.iterations - 1, 21)[1:].astype(int)):
        gap = 1.0 - weights[at] / mu
        moving = np.flatnonzero(gap > 1e-6)  # beyond, 1 - v/mu is rounding
        if moving.size < 2:
            continue
        for exponent, kappa in (("v^2/2", 1.0), ("v^2/T", 2.0 / settings.temperature)):
            told = elapsed_time(mu[moving], -np.log(gap[moving]), v0=settings.initial, kappa=kappa)
            row = {"step": int(iterations[at]), "component": moving, "exponent": exponent, "value": told}
            rows.append(pd.DataFrame(row))
    table = pd.concat(rows, ignore_index=True)
    return table.assign(run="script", metric="time of Eq. 6", unit="time", dtype="float64")


def _entropies(
    times: Array, weights: Array, drawn: Chosen, temperature: float
) -> tuple[pd.DataFrame, pd.DataFrame]:
    values = attention_entropy(weights, temperature)
    least = int(np.argmin(values))
    shown = np.union1d(drawn, [least])
    curve = pd.DataFrame({"step": times[shown], "value": values[shown]}).assign(metric="entropy", unit="nats")
    numbers = {
        "start": values[0],
        "minimum": values[least],
        "argmin": times[least],
        "end": values[-1],
        "drop": values[0] - values[least],
        "rebound": values[-1] - values[least],
    }
    extremes = pd.DataFrame({"metric": list(numbers), "value": list(numbers.values())})
    extremes["unit"] = np.where(extremes["metric"] == "argmin", "step", "nats")
    return curve.assign(temperature=temperature), extremes.assign(temperature=temperature)


def _half_times(times: Array, weights: Array, mu: Array) -> pd.DataFrame:
    """When each component first reaches half its mu, linear between steps; missing where it does not."""
    when = [float(np.interp(0.5, weights[:, k] / mu[k], times, right=np.nan)) for k in range(mu.size)]
    return pd.DataFrame({"component": np.arange(mu.size), "mu": mu, "metric": "half time", "value": when})


def _weights(times: Array, weights: Array, drawn: Chosen, mu: Array) -> pd.DataFrame:
    steps, components = drawn.size, mu.size
    return pd.DataFrame(
        {
            "step": np.repeat(times[drawn], components),
            "component": np.tile(np.arange(components), steps),
            "mu": np.tile(mu, steps),
            "metric": "v",
            "value": weights[drawn].ravel(),
        }
    )
