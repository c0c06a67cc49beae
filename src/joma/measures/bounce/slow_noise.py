"""Could slow noise alone have moved one curve so far? A null that includes autoregressions and random walks.

The noise is y_t = phi y_(t-1) + e_t, with phi from 0 (white) to 1 (a random walk). Of all trends that
never rise, the flat one lets noise rise furthest, because a falling trend lowers every later value beside
every earlier one; so a null curve is noise alone, and counts with its largest rise from any point to any
later one. By symmetry the same null serves the fall of a curve that never falls.

A curve shows phi and the size of its noise only through what a smooth trend leaves, which flatters slow
noise: the trend takes it along. Therefore null curves go through the same trend and the same estimates,
and a phi is refused where fewer than one in twenty of its curves look as fast as this one (the inversion
of Andrews, Econometrica 61 (1993) 139, with splines as the trend and as an upper limit; unit root allowed).
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.ndimage import convolve1d, median_filter
from scipy.signal import lfilter, savgol_coeffs

from joma.core.arguments import Array
from joma.measures.bounce.valleys import smooth

LEVEL = 0.05

_COEFFICIENTS = (0, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 1)
_CLIP = 4.0
_SPIKE = 3.0
_ROOM = 1.15
_BINS_PER_WINDOW = 8
_MOST_BINS = 1000
# Dense at the start, where learning curves fall fastest.
_KNOTS, _FEW_KNOTS, _MANY_POINTS = (0.0, 0.04, 0.12, 0.3, 0.6, 1.0), (0.0, 0.12, 0.4, 1.0), 30


@dataclass(frozen=True)
class Chance:
    """How likely noise alone moves a curve so far."""

    probability: float
    """At the slowest noise that the curve does not exclude."""
    likely: float
    """At the likeliest noise."""
    null: float
    """How far one null curve in twenty moves, at the slowest noise."""


@dataclass(frozen=True)
class SlowNoise:
    """What ``slow_noise`` finds."""

    fall: Chance
    rise: Chance
    memory: float
    """phi from one point to the next: the likeliest (median-unbiased)."""
    memory_limit: float
    """The upper 95 % limit of phi: 1 where a random walk is not excluded."""


def slow_noise(curves: Array, window: int, resamples: int, seed: int) -> list[SlowNoise]:
    """Of each curve (curves, points), judge the fall to its smooth's lowest point, and the rise from there.

    Single outliers do not count. Where the window holds many points, or the curve more than 1,000, means
    over bins stand for them (and the oldest that fill no bin are left out), in the null as in the curve.
    """
    points = curves.shape[1]
    width = max(1, window // _BINS_PER_WINDOW, -(-points // _MOST_BINS))
    bins = points // width
    means = curves[:, points - bins * width :].reshape(len(curves), bins, width).mean(axis=2)
    window = 2 * (window // (2 * width)) + 1
    units = np.ptp(means, axis=1)
    units[units == 0] = 1.0
    seen = _energies((means - means[:, :1]) / units[:, None])

    def null(index: int) -> _Null:
        return _null(index, bins, width, window, resamples, seed)

    def last_within(share: float, most: int, correlation: float) -> int:
        def excluded(index: int) -> bool:
            as_fast = np.searchsorted(null(index).correlations, correlation, side="right")
            return bool(as_fast < share * resamples)

        return bisect.bisect_left(range(1, most + 1), True, key=excluded)

    found = []
    for curve, unit, coarse, fine, correlation in zip(
        _without_spikes(means), units, seen.coarse, seen.fine, seen.correlation, strict=True
    ):
        limit = last_within(LEVEL, len(_COEFFICIENTS) - 1, correlation)
        likely = last_within(0.5, limit, correlation)
        level = smooth(curve, window)
        floor = int(np.argmin(level))
        moves = (level[: floor + 1].max() - level[floor]) / unit, (level[floor:].max() - level[floor]) / unit
        scales = [null(index).scale(coarse, fine) for index in (likely, limit)]
        fall, rise = (_chance(float(move), float(unit), null(likely), null(limit), scales) for move in moves)
        memories = [float(_COEFFICIENTS[index] ** (1 / width)) for index in (likely, limit)]
        found.append(SlowNoise(fall, rise, *memories))
    return found


@dataclass(frozen=True)
class _Energies:
    """Of each curve's noise: its deviation about a smooth trend, about its neighbours, its correlation."""

    coarse: Array
    fine: Array
    correlation: Array


@dataclass(frozen=True)
class _Null:
    """What noise of one phi looks like: sorted correlations, sorted largest rises, coarse over fine."""

    correlations: Array
    rises: Array
    ratio: float
    one_in_twenty: float

    def scale(self, coarse: Array, fine: Array) -> Array:
        return _scale(coarse, fine, self.ratio)

    def exceeded(self, rise: float) -> float:
        count = self.rises.size
        return float(1 + count - np.searchsorted(self.rises, rise, side="left")) / (1 + count)


def _scale(coarse: Array, fine: Array, ratio: float) -> Array:
    # A trend that the splines miss inflates the coarse deviation, but not the fine one.
    return np.minimum(coarse, _ROOM * ratio * fine)


def _chance(move: float, unit: float, likely: _Null, limit: _Null, scales: list[Array]) -> Chance:
    moves = [0.0 if move == 0 else move / float(scale) if scale > 0 else np.inf for scale in scales]
    at_likely, at_limit = likely.exceeded(moves[0]), limit.exceeded(moves[1])
    return Chance(max(at_likely, at_limit), at_likely, limit.one_in_twenty * float(scales[1]) * unit)


@lru_cache(maxsize=256)
def _null(index: int, bins: int, width: int, window: int, resamples: int, seed: int) -> _Null:
    curves = _autoregressions(_COEFFICIENTS[index] ** (1 / width), (resamples, bins), width, seed)
    energies = _energies(curves)
    ratio = float(np.median(energies.coarse / energies.fine))
    level = _smoothed(curves, window)
    rises = (level - np.minimum.accumulate(level, axis=1)).max(axis=1)
    rises = np.sort(rises / _scale(energies.coarse, energies.fine, ratio))
    return _Null(np.sort(energies.correlation), rises, ratio, float(np.quantile(rises, 1 - LEVEL)))


def _autoregressions(phi: float, shape: tuple[int, int], width: int, seed: int) -> Array:
    """Stationary autoregressions (walks from 0 where phi is 1): their means over bins of ``width`` points."""
    first, steps = np.split(_normals(shape[0], shape[1] + 1, seed), [1], axis=1)
    start = first / np.sqrt(1 - phi**2) if phi < 1 else np.zeros_like(first)
    # From the last value before a bin follow, jointly Gaussian, the bin's own last value and its mean.
    powers = phi ** np.arange(width + 1.0)
    to_last, to_mean = powers[:width], np.cumsum(powers[:width]) / width
    spread = float(np.linalg.norm(to_last))
    ends: Array
    ends, _ = lfilter([spread], [1.0, -powers[width]], steps, axis=1, zi=powers[width] * start)
    if width == 1:
        return ends
    along = float(to_last @ to_mean) / spread
    across = np.sqrt(max(0.0, float(to_mean @ to_mean) - along**2))
    before = np.concatenate([start, ends[:, :-1]], axis=1)
    means: Array = powers[1:].mean() * before + along * steps + across * _normals(*shape, seed + 1)
    return means


@lru_cache(maxsize=2)
def _normals(rows: int, columns: int, seed: int) -> Array:
    """The same for every phi, so that what differs between them is phi."""
    return np.random.default_rng(seed).standard_normal((rows, columns))


def _energies(curves: Array) -> _Energies:
    trend = _splines(curves.shape[1])
    coarse, rest = _clipped(curves - (curves @ trend) @ trend.T)
    power = np.mean(rest**2, axis=1)
    products = np.mean(rest[:, 1:] * rest[:, :-1], axis=1)
    # A curve without noise excludes nothing.
    correlation = np.divide(products, power, out=np.ones_like(power), where=power > 0)
    kernel = savgol_coeffs(9 if curves.shape[1] >= _MANY_POINTS else 5, 2)
    inside = slice(kernel.size // 2, -(kernel.size // 2))
    fine, _ = _clipped((curves - convolve1d(curves, kernel, axis=1))[:, inside])
    return _Energies(coarse, fine, correlation)


@lru_cache(maxsize=64)
def _splines(points: int) -> Array:
    """An orthonormal basis (points, few) of natural cubic splines."""
    knots = _KNOTS if points >= _MANY_POINTS else _FEW_KNOTS
    place = (np.arange(points) + 0.5) / points
    return np.linalg.qr(CubicSpline(knots, np.eye(len(knots)), bc_type="natural")(place))[0]


def _clipped(rest: Array) -> tuple[Array, Array]:
    """The deviation of residuals where it is largest, by thirds, and the residuals without outliers.

    By thirds, because noise grows or shrinks along training; without outliers, because a steep stretch
    lies beside its trend without being noise.
    """
    parts = []
    for part in np.array_split(rest, 3 if rest.shape[1] >= _MANY_POINTS else 1, axis=1):
        middle = part.shape[1] // 2
        typical = 1.4826 * np.partition(np.abs(part), middle, axis=1)[:, middle, None]
        bound = np.where(typical > 0, _CLIP * typical, np.inf)
        parts.append(np.clip(part, -bound, bound))
    power = np.max([np.mean(part**2, axis=1) for part in parts], axis=0)
    return np.sqrt(power), np.concatenate(parts, axis=1)


def _without_spikes(curves: Array) -> Array:
    """Single points far beside the median of five are pulled near it: one outlier is no rebound."""
    beside = curves - median_filter(curves, (1, 5), mode="nearest")
    away = np.where(beside == 0, np.nan, np.abs(beside))
    away[np.isnan(away).all(axis=1)] = 0.0
    bound = _SPIKE * 1.4826 * np.nanmedian(away, axis=1, keepdims=True)
    return curves - beside + np.clip(beside, -bound, bound)


def _smoothed(curves: Array, window: int) -> Array:
    """``joma.measures.bounce.valleys.smooth`` of many curves at once: a triangle is a box of a box."""
    weights = _triangles(np.ones((1, curves.shape[1])), window // 2 + 1)
    return _triangles(curves, window // 2 + 1) / weights


def _triangles(curves: Array, box: int) -> Array:
    once = np.cumsum(np.pad(curves, ((0, 0), (box, box - 1))), axis=1)
    twice = np.cumsum(np.pad(once[:, box:] - once[:, :-box], ((0, 0), (1, 0))), axis=1)
    points = curves.shape[1]
    return np.asarray(twice[:, box : box + points] - twice[:, :points])
