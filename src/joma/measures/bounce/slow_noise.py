"""Could slow noise alone have moved one curve so far? A null that includes long memory and hidden wander.

Of all trends that never rise, the flat one lets noise rise furthest, because a falling trend lowers every
later value beside every earlier one; so a null curve is noise alone, and counts with its largest rise from
any point to any later one. By symmetry the same null serves the fall of a curve that never falls.

No curve tells of what kind its noise is: fast noise may hide a slow wander that a smooth trend takes along.
So several kinds of noise are drawn (``_KINDS``): a random walk, autoregressions, and autoregressions
over random walks, between which 1/f noise lies. What a smooth trend leaves of the curve has a spectrum, and
each kind is weighed by how likely it makes that spectrum (a normal law of the logarithms of its powers in
bands, whose mean and covariance the drawn curves of that kind have) and by a weight of its own. The
probability is the mean over the kinds, so weighed, of the share of drawn curves that rise as far. The kinds'
own weights were chosen so that the rates of ``docs/rates.md`` hold, on other random curves than that table's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy.fft import dct
from scipy.interpolate import CubicSpline
from scipy.ndimage import convolve1d, median_filter
from scipy.signal import lfilter, savgol_coeffs

from joma.core.arguments import Array
from joma.measures.bounce.valleys import smooth

LEVEL = 0.05


@dataclass(frozen=True)
class _Kind:
    """Noise of deviation 1, if it has one, plus a random walk that ends with deviation ``wander``."""

    name: str
    weight: float
    """Of this kind before a curve of 100 points is seen, beside the others'."""
    growth: float
    """The power of the number of points that the weight follows: the longer a curve, the better fast noise
    averages out, so the more a wander below it shows, and the better a plain random walk is recognised."""
    memory: float
    """Correlation of neighbours in an autoregression; 1 for no noise but the walk."""
    wander: float


_KINDS = (
    _Kind("random walk", 0.33, -3.0, 1.0, 1.0),
    _Kind("fast noise", 0.06, 0.0, 0.3, 0.0),
    _Kind("autoregression", 0.19, 0.0, 0.65, 0.0),
    _Kind("autoregression over a slight random walk", 0.26, 0.5, 0.65, 0.7),
    _Kind("autoregression over a random walk", 0.055, 1.0, 0.5, 1.4),
    _Kind("white noise over a random walk", 0.085, 0.0, 0.0, 1.4),
    _Kind("white noise over a large random walk", 0.0015, 2.0, 0.0, 3.0),
    _Kind("white noise over a dominant random walk", 0.0011, 2.5, 0.0, 6.0),
    _Kind("autoregression over a dominant random walk", 0.012, 3.0, 0.5, 6.0),
)
_CLIP = 4.0
_SPIKE = 3.0
_ROOM = 1.15
_BINS_PER_WINDOW = 8
_MOST_BINS = 1000
_LIKELY = 0.1
"""A kind is likely that explains a curve so well beside the likeliest."""
_FEWEST = 200
"""Curves of each kind without which the law of its spectrum is not known."""
_FIRST_BAND, _BAND_RATIO, _NARROWEST = (1, 5), 1.5, 3
# Dense at the start, where learning curves fall fastest.
_KNOTS, _FEW_KNOTS, _MANY_POINTS = (0.0, 0.04, 0.12, 0.3, 0.6, 1.0), (0.0, 0.12, 0.4, 1.0), 30


@dataclass(frozen=True)
class Chance:
    """How likely noise alone moves a curve so far."""

    probability: float
    """Over all kinds of noise, each weighed; of one curve, its ends held against their neighbours."""
    likely: float
    """The least at a likely kind of noise, each point taken at its word."""
    null: float
    """How far one null curve in twenty moves."""


@dataclass(frozen=True)
class SlowNoise:
    """What ``slow_noise`` finds."""

    fall: Chance
    rise: Chance
    likeliest: str
    """The kind of noise whose spectrum is most like the curve's."""


def slow_noise(curves: Array, window: int, resamples: int, seed: int) -> list[SlowNoise]:
    """Of each curve (curves, points), judge the fall to its smooth's lowest point, and the rise from there.

    Single outliers do not count. Where the window holds many points, or the curve more than 1,000, means
    over bins stand for them (and the oldest that fill no bin are left out).
    """
    points = curves.shape[1]
    width = max(1, window // _BINS_PER_WINDOW, -(-points // _MOST_BINS))
    bins = points // width
    means = curves[:, points - bins * width :].reshape(len(curves), bins, width).mean(axis=2)
    window = 2 * (window // (2 * width)) + 1
    units = np.ptp(means, axis=1)
    units[units == 0] = 1.0
    noise = _noise_of((means - means[:, :1]) / units[:, None])
    null = _null(bins, window, max(resamples, _FEWEST), seed)
    likelihoods = null.log_likelihoods(noise.spectrum)
    before = [kind.weight * (points / 100) ** kind.growth for kind in _KINDS]
    weights = np.exp(likelihoods - likelihoods.max(axis=1, keepdims=True)) * before
    weights /= weights.sum(axis=1, keepdims=True)
    scales = noise.scale(null.ratios) * units[:, None]
    trusted, doubted = (_without_spikes(means, ends) for ends in ("nearest", "mirror"))
    found = []
    likely = likelihoods > likelihoods.max(axis=1, keepdims=True) + np.log(_LIKELY)
    for i, likeliest in enumerate(likelihoods.argmax(axis=1)):
        rises = null.rises * scales[i][:, None]
        edge = one_in_twenty(rises, weights[i])
        chances = [
            Chance(
                exceedance(rises, weights[i], move),
                min(exceedance(rises[[kind]], np.ones(1), trust) for kind in np.flatnonzero(likely[i])),
                edge,
            )
            for move, trust in zip(_moves(doubted[i], window), _moves(trusted[i], window), strict=True)
        ]
        found.append(SlowNoise(chances[0], chances[1], _KINDS[likeliest].name))
    return found


def exceedance(rises: Array, weights: Array, move: float) -> float:
    """The weighed share of null curves (kinds, curves) that rise as far; the curve is one more of each."""
    if move == 0:
        return 1.0
    return float(min(1.0, (1 + weights @ (rises >= move).sum(axis=1)) / (1 + rises.shape[1])))


def one_in_twenty(rises: Array, weights: Array) -> float:
    """The largest of the rises (kinds, curves) whose probability is not below ``LEVEL``."""
    order = np.argsort(rises, axis=None)[::-1]
    beyond = np.cumsum(np.repeat(weights, rises.shape[1])[order])
    return float(rises.flat[order[np.argmax((1 + beyond) / (1 + rises.shape[1]) >= LEVEL)]])


def _moves(curve: Array, window: int) -> tuple[float, float]:
    """The fall to the smooth's lowest point, and the rise from there."""
    level = smooth(curve, window)
    floor = int(np.argmin(level))
    return float(level[: floor + 1].max() - level[floor]), float(level[floor:].max() - level[floor])


@dataclass(frozen=True)
class _Noise:
    """What a smooth trend leaves of each curve."""

    coarse: Array
    """Its deviation (curves,)."""
    fine: Array
    """The deviation of the curve about its neighbours (curves,)."""
    spectrum: Array
    """Logarithms of its mean powers in bands, less that of the highest band (curves, bands)."""

    def scale(self, ratios: Array) -> Array:
        """The noise's size (curves, kinds): a trend that the splines miss inflates the coarse deviation, but
        not the fine one, which is in proportion in each kind of noise."""
        return np.minimum(self.coarse[:, None], _ROOM * ratios * self.fine[:, None])


@dataclass(frozen=True)
class _Null:
    """What noise of each kind looks like."""

    means: Array
    """Of the spectra (kinds, bands)."""
    whitenings: Array
    """(kinds, bands, bands): a spectrum less its mean, times this, has covariance 1."""
    ratios: Array
    """Of the coarse deviation to the fine one, the median (kinds,)."""
    rises: Array
    """The largest rise of each curve in the scale of its own noise (kinds, curves)."""

    def log_likelihoods(self, spectra: Array) -> Array:
        """Of each curve's spectrum under each kind, (curves, kinds), up to a constant."""
        gaps = np.einsum("ckb,kbd->ckd", spectra[:, None] - self.means, self.whitenings)
        sizes = np.log(np.abs(np.diagonal(self.whitenings, axis1=1, axis2=2))).sum(axis=1)
        return np.asarray(sizes - 0.5 * (gaps**2).sum(axis=2))


@lru_cache(maxsize=32)
def _null(bins: int, window: int, resamples: int, seed: int) -> _Null:
    random = np.random.default_rng(seed)
    parts = []
    for kind in _KINDS:
        curves = _noise(kind, resamples, bins, random)
        noise = _noise_of(curves)
        covariance = np.atleast_2d(np.cov(noise.spectrum.T))
        ratio = np.median(noise.coarse / noise.fine)
        level = _smooth_curves(curves, window)
        rises = (level - np.minimum.accumulate(level, axis=1)).max(axis=1)
        rises /= noise.scale(np.array([ratio]))[:, 0]
        whitening = np.linalg.cholesky(np.linalg.inv(covariance))
        parts.append((noise.spectrum.mean(axis=0), whitening, ratio, rises))
    return _Null(*(np.stack(part) for part in zip(*parts, strict=True)))


def _noise(kind: _Kind, rows: int, points: int, random: np.random.Generator) -> Array:
    """Curves (rows, points) of that kind."""
    walk = kind.wander * np.cumsum(random.standard_normal((rows, points)), axis=1) / np.sqrt(points)
    if kind.memory == 1:
        return np.asarray(walk)
    steps = random.standard_normal((rows, points))
    steps[:, 1:] *= np.sqrt(1 - kind.memory**2)
    return np.asarray(walk + lfilter([1.0], [1.0, -kind.memory], steps, axis=1))


def _noise_of(curves: Array) -> _Noise:
    """Of curves (curves, points)."""
    trend = _splines(curves.shape[1])
    coarse, rest = _clip(curves - (curves @ trend) @ trend.T)
    kernel = savgol_coeffs(9 if curves.shape[1] >= _MANY_POINTS else 5, 2)
    inside = slice(kernel.size // 2, -(kernel.size // 2))
    fine, _ = _clip((curves - convolve1d(curves, kernel, axis=1))[:, inside])
    begins = _bands(curves.shape[1])
    power = dct(rest, norm="ortho", axis=1) ** 2
    bands = np.add.reduceat(power, begins, axis=1) / np.diff([*begins, curves.shape[1]])
    logarithms = np.log(np.maximum(bands, np.finfo(float).tiny))
    return _Noise(coarse, fine, logarithms[:, :-1] - logarithms[:, -1:])


@lru_cache(maxsize=64)
def _bands(points: int) -> list[int]:
    """Where the bands begin, in half periods of the curve: each is wider than the one before."""
    ends = list(_FIRST_BAND)
    while (following := max(ends[-1] + _NARROWEST, int(_BAND_RATIO * ends[-1]))) < points:
        ends.append(following)
    # The last band takes in a rest that is too narrow for one of its own.
    if points - ends[-1] < points / 5 and len(ends) > 2:
        del ends[-1]
    return ends


@lru_cache(maxsize=64)
def _splines(points: int) -> Array:
    """An orthonormal basis (points, few) of natural cubic splines."""
    knots = _KNOTS if points >= _MANY_POINTS else _FEW_KNOTS
    place = (np.arange(points) + 0.5) / points
    return np.linalg.qr(CubicSpline(knots, np.eye(len(knots)), bc_type="natural")(place))[0]


def _clip(rest: Array) -> tuple[Array, Array]:
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


def _without_spikes(curves: Array, ends: Literal["nearest", "mirror"]) -> Array:
    """Single points far beside the median of five are pulled near it: one outlier is no rebound.

    With ``ends`` "nearest" the first and the last point are their own medians and stay; with "mirror" they
    are held against their two neighbours, since nothing beyond them tells a move from a spike.
    """
    medians: Array = median_filter(curves, (1, 5), mode=ends)
    beside = curves - medians
    inner = beside[:, 2:-2]
    away = np.where(inner == 0, np.nan, np.abs(inner))
    away[np.isnan(away).all(axis=1)] = 0.0
    bound = np.repeat(_SPIKE * 1.4826 * np.nanmedian(away, axis=1, keepdims=True), curves.shape[1], axis=1)
    if ends == "mirror" and curves.shape[1] < _MANY_POINTS:
        bound[:, [0, -1]] = 0.0  # so few deviations do not tell what is far
    return np.asarray(curves - beside + np.clip(beside, -bound, bound))


def _smooth_curves(curves: Array, window: int) -> Array:
    """``joma.measures.bounce.valleys.smooth`` of many curves at once: a triangle is a box of a box."""
    weights = _triangles(np.ones((1, curves.shape[1])), window // 2 + 1)
    return _triangles(curves, window // 2 + 1) / weights


def _triangles(curves: Array, box: int) -> Array:
    once = np.cumsum(np.pad(curves, ((0, 0), (box, box - 1))), axis=1)
    twice = np.cumsum(np.pad(once[:, box:] - once[:, :-box], ((0, 0), (1, 0))), axis=1)
    points = curves.shape[1]
    return np.asarray(twice[:, box : box + points] - twice[:, :points])
