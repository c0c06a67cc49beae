"""``joma.bounce``: dip and rebound of a curve, or of several runs' curves, and whether noise made them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.signal import savgol_coeffs

from joma.core.arguments import Array, numbers, whole
from joma.core.errors import InputError
from joma.measures.bounce.several import rise_together
from joma.measures.bounce.slow_noise import LEVEL, slow_noise
from joma.measures.bounce.valleys import Dip, convolve, dip_at, smooth, transients

RESAMPLES = 400
_LARGEST = 1e290
_FEWEST_RUNS = 3
_SAME = 1e-9
"""Of the curves' range: runs that differ by less, but for a constant, are copies."""


@dataclass(frozen=True, repr=False)
class Bounce:
    """What ``bounce`` finds on a curve."""

    main: Dip
    """The lowest valley."""
    transients: tuple[Dip, ...]
    """Valleys before the main one that fall and recover by more than the noise, in order."""
    dip_probability: float
    """How likely noise alone makes a curve that never falls dip at least as deeply."""
    dip_null: float
    """Depth from which ``dip_probability`` is below 0.05."""
    rebound_probability: float
    """How likely noise alone makes a curve that never rises rebound at least as far."""
    rebound_null: float
    """Rebound from which ``rebound_probability`` is below 0.05."""
    cannot_tell: bool
    """No detection: the rebound is beyond a likely kind of noise (below 0.05), but within others, or rarer
    luck, that these curves do not exclude, or it rests on the last point alone, which may be a spike. More
    runs together can tell."""
    noise: float
    """Standard deviation about local parabolas over a quarter of the curve (from the median deviation)."""
    likeliest: str | None
    """The kind of noise that one curve's residuals are most like; None for several curves."""

    def __repr__(self) -> str:
        dip = self.main
        doubt = (
            "; one cannot tell whether it is more than slow noise or a last spike" if self.cannot_tell else ""
        )
        return (
            f"<Bounce: falls by {dip.depth:.4g} to {dip.value:.4g} at step {dip.step:g} (p = "
            f"{self.dip_probability:.2g}), then rises by {dip.rebound:.4g} until step {dip.rebound_step:g} "
            f"(p = {self.rebound_probability:.2g}){doubt}>"
        )


def bounce(
    steps: ArrayLike,
    values: ArrayLike,
    *,
    window: int | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Bounce:
    """Find the dip of a curve, its rebound, and how likely noise alone makes either.

    The curve is smoothed over ``window`` points (an odd number; by default about a twentieth of the
    curve, at least 3). The *main* dip is the smooth's lowest point; the rebound is measured from there.

    **One curve** is set against noise that may be slow (``joma.measures.bounce.slow_noise``):
    autoregressions, 1/f noise, a random walk, and fast noise that hides a slow wander, each weighed by how
    well it explains what a smooth trend leaves of the curve. How often the probability lies below 0.05 for
    curves that only fall or stay is simulated: ``docs/rates.md``. Where a likely kind alone would make the
    rebound significant but all together do not, ``cannot_tell``. So it is where the rebound rests on the
    last point alone, as nothing tells it from a spike there.

    **Several curves** of one setting (seeds), as rows of ``values``, take the noise from their spread
    instead (``joma.measures.bounce.several``): whatever the noise within a run, a random walk too,
    the probability holds if runs are independent and their rises roughly normal. The dip and the noise
    are then those of the mean curve. Five runs or more: three rarely reach 0.05. A copy of a run, moved by a
    constant or not, tells nothing new and does not count; where fewer than three runs differ, their mean is
    judged as one curve.

    *Transients* are valleys before the main dip whose depth and rebound both exceed three standard
    deviations of ``noise``; since they are short, they are sought on a curve smoothed over three points.
    They carry no probability, and slow noise makes them too.

    Args:
        steps: (n,) increasing; training steps, or any other time.
        values: (n,) finite; attention entropy in nats, a stable rank, ... Or (runs, n), at least 3 runs.
        resamples: null curves drawn of each kind of noise, at least 200; the same for each call of a length.
        seed: of these curves.

    Raises:
        InputError: fewer than 8 points, unequal lengths, steps that do not increase, values that
            are not finite, two runs, an even window, no resamples, or a negative seed.

    Examples:
        >>> steps = np.arange(200)
        >>> noise = 0.01 * np.random.default_rng(0).normal(size=200)
        >>> found = joma.bounce(steps, 3 + np.cos(steps / 200 * 2 * np.pi) + noise)
        >>> bool(abs(found.main.step - 100) < 10 and found.rebound_probability < 0.05)
        True
    """
    resamples = whole("bounce", "resamples", resamples)
    seed = whole("bounce", "seed", seed, 0, None)
    time, curves = _check(steps, values)
    if window is None:
        window = max(3, 2 * (time.size // 40) + 1)
    if whole("bounce", "window", window, 1, None) % 2 == 0 or window > time.size:
        raise InputError(f"bounce: window = {window} must be odd and at most the {time.size} points.")
    curve = curves.mean(axis=0)
    level = smooth(curve, window)
    main = dip_at(time, level, int(np.argmin(level)))
    likeliest = None
    runs = _different(curves)
    if len(runs) < _FEWEST_RUNS:
        (found,) = slow_noise(runs.mean(axis=0, keepdims=True), window, resamples, seed)
        fall, rise, likeliest = found.fall, found.rise, found.likeliest
    else:
        levels = np.stack([smooth(one, window) for one in runs])
        fall, rise = rise_together(levels[:, ::-1]), rise_together(levels)
    noise = _noise(curve)
    return Bounce(
        main=main,
        transients=transients(time, smooth(curve, 3), main.step, 3.0 * noise),
        dip_probability=fall.probability,
        dip_null=fall.null,
        rebound_probability=rise.probability,
        rebound_null=rise.null,
        cannot_tell=rise.likely < LEVEL <= rise.probability,
        noise=noise,
        likeliest=likeliest,
    )


def _check(steps: ArrayLike, values: ArrayLike) -> tuple[Array, Array]:
    """The steps (n,), and the curves (runs, n)."""
    time, curves = numbers("bounce", "steps", steps), numbers("bounce", "values", values)
    if time.ndim != 1 or curves.ndim not in (1, 2) or curves.shape[-1] != time.size:
        raise InputError(
            f"bounce: steps {time.shape} and values {curves.shape} must be equally long vectors "
            "(or values one such row for each of several runs)."
        )
    if curves.ndim == 2 and len(curves) < _FEWEST_RUNS:
        raise InputError(
            f"bounce: {len(curves)} rows of values; give one curve as a vector, or at least "
            f"{_FEWEST_RUNS} runs."
        )
    curves = np.atleast_2d(curves)
    if time.size < 8:
        raise InputError(f"bounce: {time.size} points are too few to tell a dip from noise; give at least 8.")
    if not np.all(np.isfinite(curves)):
        where = time[~np.isfinite(curves).all(axis=0)][0]
        raise InputError(f"bounce: the value at step {where:g} is not finite; leave such points out.")
    if np.abs(curves).max() > _LARGEST:
        raise InputError(f"bounce: values reach {np.abs(curves).max():.3g}; divide them by a common unit.")
    if not (np.isfinite(time[-1]) and np.all(np.diff(time) > 0)):
        raise InputError("bounce: steps must increase and be finite; sort the curve and drop repeated steps.")
    return time, curves


def _different(curves: Array) -> Array:
    """The runs without copies, in their order."""
    shapes = curves - curves[:, :1]
    unit = _SAME * max(float(np.abs(shapes).max()), np.finfo(float).tiny / _SAME)
    _, first = np.unique(np.round(shapes / unit), axis=0, return_index=True)
    return np.asarray(curves[np.sort(first)])


def _noise(curve: Array) -> float:
    """Parabolas, so that a fall and its turn are not taken for noise; medians, so that steps are not."""
    width = max(5, 2 * (curve.size // 8) + 1)
    centred = curve - curve.mean()
    trend = convolve(centred, savgol_coeffs(width, 2))[width - 1 : curve.size]
    residuals = centred[width // 2 : curve.size - width // 2] - trend
    return float(1.4826 * np.median(np.abs(residuals - np.median(residuals))))
