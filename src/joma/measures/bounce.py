"""Dip and bounce: does a noisy curve fall and rise again, when, how far, and could it be noise?"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.signal import savgol_coeffs, savgol_filter

from joma.errors import InputError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Dip:
    """A valley of the smoothed curve."""

    step: float
    """Where the smoothed curve is lowest."""
    value: float
    """The smoothed curve there."""
    depth: float
    """How far it fell: the highest smoothed value before, minus ``value``."""
    rebound: float
    """How far it rose again: the highest smoothed value after, minus ``value``."""
    rebound_step: float
    """Where that highest value after the dip stands."""


@dataclass(frozen=True)
class Bounce:
    """What :func:`bounce` finds on a curve."""

    main: Dip
    """The lowest valley."""
    transients: tuple[Dip, ...]
    """Valleys before the main one that fall and recover by more than the noise, in order."""
    dip_probability: float
    """Share of the null's curves that dip at least as deeply."""
    dip_null: float
    """Depth that one null curve in twenty exceeds."""
    rebound_probability: float
    """Share of the null's curves that rebound at least as far."""
    rebound_null: float
    """Rebound that one null curve in twenty exceeds."""
    noise: float
    """Standard deviation of the curve about its smooth (from the median absolute deviation)."""


def smooth(values: ArrayLike, window: int) -> FloatArray:
    """Centred moving average with triangular weights over ``window`` points (odd), shorter at the ends.

    Raises:
        InputError: values (n,) that are not finite numbers, or a window that is not odd and positive.
    """
    curve = _numbers(values, "smooth", "values")
    if curve.ndim != 1 or curve.size == 0 or not np.all(np.isfinite(curve)):
        raise InputError(f"smooth: values {curve.shape} must be a vector of finite numbers, at least one.")
    if _whole(window, "smooth", "window", 1) % 2 == 0:
        raise InputError(f"smooth: window = {window} must be odd.")
    return _smooth(curve, window)


def _smooth(curve: FloatArray, window: int) -> FloatArray:
    half = window // 2
    weights = _kernel(window)
    total = np.convolve(np.ones_like(curve), weights, mode="full")[half : half + curve.size]
    return np.convolve(curve, weights, mode="full")[half : half + curve.size] / total


def bounce(
    steps: ArrayLike,
    values: ArrayLike,
    *,
    window: int | None = None,
    null: str = "flat",
    resamples: int = 2000,
    seed: int = 0,
) -> Bounce:
    """Find the dip of a curve, its rebound, and the probability that either is noise.

    The curve is smoothed over ``window`` points (an odd number; by default about a twentieth of the
    curve, at least 3). The *main* dip is the smooth's lowest point. Against it stands a null:

    - ``null="flat"``: the curve's noise without its trend, drawn again in blocks (a circular block
      bootstrap, so that its autocorrelation stays). Of all curves that never rise (or never fall),
      the flat one shows a rebound (or a dip) by noise most easily, so it stands for all of them;
    - ``null="shuffled"``: the curve's own values in random order.

    The null's curves are smoothed and measured like the curve itself. Both probabilities are
    (1 + hits) / (1 + resamples), so never zero. *Transients* are valleys before the main dip whose
    depth and rebound both exceed three standard deviations of the noise; since they are short, they
    are sought on a curve smoothed over three points.

    Args:
        steps: (n,) increasing; training steps, or any other time.
        values: (n,) finite; attention entropy in nats, a stable rank, ...
        resamples: curves drawn for each null.

    Raises:
        InputError: fewer than 8 points, unequal lengths, steps that do not increase, values that
            are not finite, an even window, an unknown null, no resamples, or a negative seed.
    """
    if null not in ("flat", "shuffled"):
        raise InputError(f"bounce: null = {null!r} is neither 'flat' nor 'shuffled'.")
    resamples, seed = _whole(resamples, "bounce", "resamples", 1), _whole(seed, "bounce", "seed", 0)
    window = None if window is None else _whole(window, "bounce", "window", 1)
    time, curve = _numbers(steps, "bounce", "steps"), _numbers(values, "bounce", "values")
    _check(time, curve, window)
    if window is None:
        window = max(3, 2 * (curve.size // 40) + 1)
    level = smooth(curve, window)
    main = _dip_at(time, level, int(np.argmin(level)))
    residuals, lost = _noise(curve, window)
    # Robust and clipped, since a steep stretch lies beside its own trend without being noise.
    noise = float(1.4826 * np.median(np.abs(residuals - np.median(residuals))))
    residuals = np.clip(residuals, -4.0 * noise, 4.0 * noise)

    random = np.random.default_rng(seed)
    if null == "shuffled":
        drawn = random.permuted(np.tile(curve, (resamples, 1)), axis=1)
    else:
        drawn = lost * _blocks(residuals, max(2 * window, curve.size // 8), resamples, random)
    null_levels = _smooth_rows(drawn, window)
    depths, rises = _depths(null_levels), _rebounds(null_levels)
    return Bounce(
        main=main,
        transients=_transients(time, smooth(curve, 3), main.step, 3.0 * noise),
        dip_probability=float(1 + np.sum(depths >= main.depth)) / (1 + resamples),
        dip_null=float(np.quantile(depths, 0.95)),
        rebound_null=float(np.quantile(rises, 0.95)),
        rebound_probability=float(1 + np.sum(rises >= main.rebound)) / (1 + resamples),
        noise=noise,
    )


def _numbers(values: ArrayLike, where: str, name: str) -> FloatArray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{where}: {name} = {values!r:.80} is not an array of numbers.") from None


def _whole(value: object, where: str, name: str, least: int) -> int:
    try:
        found = operator.index(value)  # type: ignore[arg-type]  # refusing what has no index is its purpose
    except TypeError:
        found = least - 1
    if found < least or isinstance(value, bool):
        raise InputError(f"{where}: {name} = {value!r:.80} must be a whole number of at least {least}.")
    return found


def _check(time: FloatArray, curve: FloatArray, window: int | None) -> None:
    if time.ndim != 1 or time.shape != curve.shape:
        raise InputError(f"bounce: steps {time.shape} and values {curve.shape} must be equally long vectors.")
    if time.size < 8:
        raise InputError(f"bounce: {time.size} points are too few to tell a dip from noise; give at least 8.")
    if not np.all(np.isfinite(curve)):
        where = time[~np.isfinite(curve)][0]
        raise InputError(f"bounce: the value at step {where:g} is not finite; leave such points out.")
    if not (np.isfinite(time[-1]) and np.all(np.diff(time) > 0)):
        raise InputError("bounce: steps must increase and be finite; sort the curve and drop repeated steps.")
    if window is not None and (window < 1 or window % 2 == 0 or window > curve.size):
        raise InputError(f"bounce: window = {window} must be odd and between 1 and the {curve.size} points.")


def _dip_at(time: FloatArray, level: FloatArray, index: int) -> Dip:
    """The valley whose floor is at ``index``, from where the smooth leaves it to either side."""
    lower = np.flatnonzero(level < level[index])
    begin = lower[lower < index].max(initial=-1) + 1
    end = lower[lower > index].min(initial=level.size)
    after = index + int(np.argmax(level[index:end]))
    return Dip(
        step=float(time[index]),
        value=float(level[index]),
        depth=float(level[begin : index + 1].max() - level[index]),
        rebound=float(level[after] - level[index]),
        rebound_step=float(time[after]),
    )


def _transients(time: FloatArray, level: FloatArray, end: float, least: float) -> tuple[Dip, ...]:
    """Valleys that recover before step ``end``, on a curve smoothed as little as possible."""
    stop = int(np.searchsorted(time, end))
    floors = [i for i in range(1, stop) if level[i] < level[i - 1] and level[i] <= level[i + 1]]
    dips = (_dip_at(time[: stop + 1], level[: stop + 1], i) for i in floors)
    return tuple(dip for dip in dips if min(dip.depth, dip.rebound) > least)


def _noise(curve: FloatArray, window: int) -> tuple[FloatArray, float]:
    """What local parabolas over a quarter of the curve leave of it, and how much that is too little.

    Parabolas, so that a fall and its turn are not taken for noise. They do take some of the noise
    away, most of all slow noise: the second value is the factor by which white noise, *smoothed over*
    ``window``, is larger than its residuals smoothed likewise.
    """
    width = max(5, 2 * (curve.size // 8) + 1)
    kept = -savgol_coeffs(width, 2)
    kept[width // 2] += 1.0
    kernel = _kernel(window)
    lost = np.sqrt(np.sum(kernel**2) / np.sum(np.convolve(kept, kernel) ** 2))
    return np.asarray(curve - savgol_filter(curve, width, 2)), float(lost)


def _kernel(window: int) -> FloatArray:
    half = window // 2
    return np.concatenate([np.arange(1, half + 2), np.arange(half, 0, -1)]).astype(np.float64)


def _smooth_rows(rows: FloatArray, window: int) -> FloatArray:
    return np.stack([_smooth(row, window) for row in rows])


def _depths(levels: FloatArray) -> FloatArray:
    """Per row: the largest value before the row's minimum, minus that minimum."""
    floor = np.argmin(levels, axis=1)
    before = np.maximum.accumulate(levels, axis=1)
    rows = np.arange(len(levels))
    return np.asarray(before[rows, floor] - levels[rows, floor])


def _rebounds(levels: FloatArray) -> FloatArray:
    return _depths(levels[:, ::-1])


def _blocks(residuals: FloatArray, length: int, count: int, random: np.random.Generator) -> FloatArray:
    """``count`` curves of residuals drawn in circular blocks (a circular block bootstrap)."""
    size = residuals.size
    starts = random.integers(0, size, size=(count, -(-size // length)))
    index = (starts[:, :, None] + np.arange(length)) % size
    return np.asarray(residuals[index.reshape(count, -1)[:, :size]])
