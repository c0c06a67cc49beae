"""Does something run through the layers, early ones first? Dates of the layers, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from joma.core.arguments import Array

LEAST_LAYERS = 4
"""Of three layers in order, one shuffle in six is in order too: nothing could be told."""
_SHUFFLES = 9_999


@dataclass(frozen=True)
class Order:
    """How far layers are dated in their order."""

    correlation: float
    """Spearman's, of layer and date, mean over the runs: 1 where early layers come first."""
    null: float
    """95 % point of the same with the layers of every run shuffled."""
    probability: float
    """Share of the shuffles with a correlation at least as large."""
    runs: int
    layers: int
    """Dated ones, the fewest of any run."""


def half_fallen(steps: Array, values: Array) -> float:
    """When the curve has fallen half of the way from its highest point to its lowest; NaN if it only rises.

    Between neighbours the curve is taken for straight.
    """
    low = int(np.argmin(values))
    high = int(np.argmax(values[: low + 1]))
    return _find_crossing(steps[high : low + 1], values[high : low + 1])


def half_back(steps: Array, values: Array) -> float:
    """When it has risen half of the way from its lowest point to the highest after; NaN if it never does."""
    low = int(np.argmin(values))
    return _find_crossing(steps[low:], -values[low:])


def _find_crossing(steps: Array, falling: Array) -> float:
    if len(steps) < 2 or falling.max() == falling.min():
        return float("nan")
    end = int(np.argmin(falling))
    half = (falling[0] + falling[end]) / 2
    after = int(np.argmax(falling[: end + 1] <= half))
    share = (falling[after - 1] - half) / (falling[after - 1] - falling[after])
    return float(steps[after - 1] + share * (steps[after] - steps[after - 1]))


def layer_order(dates: Sequence[Array], seed: int = 0) -> Order | None:
    """Are layers dated in their order? Against the order of layers shuffled, in every run by itself.

    Args:
        dates: of each run, the date of every layer (layers,); NaN where it has none.
        seed: of the shuffles.

    Returns:
        None where a run has fewer than four dated layers.
    """
    ranks = [rankdata(run[np.isfinite(run)]) for run in map(np.asarray, dates)]
    if not ranks or min(map(len, ranks)) < LEAST_LAYERS:
        return None
    random = np.random.default_rng(seed)
    correlation = np.mean([_spearman(one[None], np.arange(len(one)))[0] for one in ranks])
    shuffled = np.mean(
        [
            _spearman(random.permuted(np.tile(one, (_SHUFFLES, 1)), axis=1), np.arange(len(one)))
            for one in ranks
        ],
        axis=0,
    )
    hits = int(np.sum(shuffled >= correlation - 1e-12))
    return Order(
        correlation=float(correlation),
        null=float(np.quantile(shuffled, 0.95)),
        probability=(1 + hits) / (1 + _SHUFFLES),
        runs=len(ranks),
        layers=min(map(len, ranks)),
    )


def _spearman(rows: Array, layers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Array:
    centred = rows - rows.mean(axis=1, keepdims=True)
    position = layers - layers.mean()
    size = np.sqrt((centred**2).sum(axis=1) * (position**2).sum())
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(size > 0, centred @ position / size, 0.0)


def top_above_bottom(rebounds: Array | Sequence[Array], seed: int = 0) -> tuple[float, float, float]:
    """Do the upper half of the layers rebound further than the lower half?

    Args:
        rebounds: (layers,), or (runs, layers), from the bottom, in units that layers can be compared in; of
            runs of several depths a sequence of (layers,), each of which has halves of its own.

    Returns:
        Difference of the halves' means, the 95 % point of the same with layers shuffled, and the share of
        shuffles that differ at least as much.
    """
    random = np.random.default_rng(seed)
    runs = [rebounds] if isinstance(rebounds, np.ndarray) and rebounds.ndim == 1 else list(rebounds)
    measured, drawn = 0.0, np.zeros(_SHUFFLES)
    for depth in sorted({run.size for run in runs}):
        half, alike = depth // 2, np.stack([run for run in runs if run.size == depth])
        shuffled = random.permuted(np.tile(alike, (_SHUFFLES, 1, 1)), axis=-1)

        def difference(rows: Array, half: int = half) -> Array:
            return np.asarray((rows[..., -half:] - rows[..., :half]).mean(axis=(-1, -2)))

        share = len(alike) / len(runs)
        measured += share * float(difference(alike))
        drawn += share * difference(shuffled)
    hits = int(np.sum(drawn >= measured - 1e-12))
    return measured, float(np.quantile(drawn, 0.95)), (1 + hits) / (1 + _SHUFFLES)
