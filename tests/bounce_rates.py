"""How often joma.bounce sees a rebound where there is none, and where there is one: simulated rates.

``python tests/bounce_rates.py [CURVES]`` prints the table (2,000 curves a cell by default);
``make rates`` writes it to ``docs/rates.md``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import null_space
from scipy.signal import lfilter

from joma.measures.bounce import smooth
from joma.measures.bounce.found import RESAMPLES
from joma.measures.bounce.several import rise_together
from joma.measures.bounce.slow_noise import LEVEL, _splines, slow_noise

Array = NDArray[np.float64]

COEFFICIENTS = {"white": 0.0, "AR(.5)": 0.5, "AR(.8)": 0.8, "AR(.9)": 0.9, "1/f": None, "walk": 1.0}
"""Of each kind of noise, the correlation of neighbours; None for 1/f noise."""
LENGTHS = (60, 150, 400)
RUNS = 5
ALLOWED = {"white": 0.07, "AR(.5)": 0.07, "AR(.8)": 0.07, "AR(.9)": 0.07, "1/f": 0.07, "walk": 0.10}
LEAST_FOUND = {"white": 0.95, "AR(.5)": 0.80}
LEAST_FOUND_TOGETHER = 0.95
MOST_UNDECIDED = {"white": 0.05, "AR(.5)": 0.20}


@dataclass(frozen=True)
class Shape:
    """A trend over x from 0 to 1, and the deviation of the noise about it."""

    name: str
    trend: Callable[[Array], Array]
    deviation: float


FALLING = (
    Shape("3", lambda x: 3 + 0 * x, 0.05),
    Shape("3 - x/10", lambda x: 3 - x / 10, 0.05),
    Shape("3 + 2 exp(-5x), much noise", lambda x: 3 + 2 * np.exp(-5 * x), 0.3),
    Shape("3 + 2 exp(-5x)", lambda x: 3 + 2 * np.exp(-5 * x), 0.05),
    Shape("3 + 2 exp(-20x)", lambda x: 3 + 2 * np.exp(-20 * x), 0.05),
)
REBOUND = Shape(
    "a rebound of 5 deviations",
    lambda x: 3 + 2 * np.exp(-8 * x) + 0.25 * np.clip((x - 0.5) / 0.4, 0, 1),
    0.05,
)


@dataclass(frozen=True)
class Rate:
    """What was seen in one cell."""

    shape: str
    points: int
    noise: str
    runs: int
    found: float
    """Share of curves (or groups of runs) with a rebound of p < 0.05."""
    undecided: float
    """Share of 'cannot tell'."""

    def within_limits(self, slack: float = 0.0) -> bool:
        """Whether the rate is what is promised, give or take ``slack`` for few curves."""
        undecided = self.undecided <= MOST_UNDECIDED.get(self.noise, 1.0) + slack
        if self.shape == REBOUND.name:
            least = LEAST_FOUND.get(self.noise, 0.0)
            if self.runs > 1 and least:
                least = LEAST_FOUND_TOGETHER
            return undecided and self.found >= least - slack
        limit = ALLOWED[self.noise] if self.runs == 1 else 0.07
        return undecided and self.found <= limit + slack


def long_memory(exponent: float, periods: int, rows: int, points: int, random: np.random.Generator) -> Array:
    """Noise (rows, points) of power 1/f^exponent and deviation 1, down to one period in so many curves."""
    frequency = np.fft.rfftfreq(periods * points)
    frequency[0] = np.inf
    waves = random.standard_normal((2, rows, frequency.size)) * frequency ** (-exponent / 2)
    curves = np.fft.irfft(waves[0] + 1j * waves[1], periods * points, axis=1)[:, :points]
    return np.asarray(curves / np.sqrt(np.mean(curves.var(axis=1))))


def noise(coefficient: float | None, rows: int, points: int, random: np.random.Generator) -> Array:
    """Noise (rows, points) of deviation 1; a walk of end deviation sqrt 2."""
    if coefficient is None:
        return long_memory(1.0, 8, rows, points, random)
    steps = random.standard_normal((rows, points))
    if coefficient == 1:
        return np.cumsum(steps, axis=1) / np.sqrt(points / 2)
    steps[:, 1:] *= np.sqrt(1 - coefficient**2)
    return np.asarray(lfilter([1.0], [1.0, -coefficient], steps, axis=1))


def rebounds(curves: Array, runs: int) -> tuple[float, float]:
    """Shares of single curves, or of groups of runs, with p < 0.05 and with 'cannot tell'.

    What ``joma.bounce`` does at its defaults, for many curves at once (a test holds them equal).
    """
    points = curves.shape[1]
    window = max(3, 2 * (points // 40) + 1)
    if runs == 1:
        chances = [one.rise for one in slow_noise(curves, window, RESAMPLES, 0)]
    else:
        levels = np.stack([smooth(curve, window) for curve in curves]).reshape(-1, runs, points)
        chances = [rise_together(group) for group in levels]
    found = [chance.probability < LEVEL for chance in chances]
    undecided = [chance.likely < LEVEL <= chance.probability for chance in chances]
    return float(np.mean(found)), float(np.mean(undecided))


def made(shape: Shape, points: int, kind: str, rows: int, seed: int) -> Array:
    """Curves (rows, points) of that trend and noise."""
    random = np.random.default_rng(seed)
    trend = shape.trend(np.arange(points) / points)
    return trend + shape.deviation * noise(COEFFICIENTS[kind], rows, points, random)


def rate(shape: Shape, points: int, kind: str, runs: int, curves: int, seed: int) -> Rate:
    """One cell: ``curves`` single curves, or as many groups of ``runs``."""
    values = made(shape, points, kind, curves * runs, seed)
    return Rate(shape.name, points, kind, runs, *rebounds(values, runs))


def rates(curves: int, runs: int, lengths: tuple[int, ...] = LENGTHS) -> Iterator[Rate]:
    """All cells, falling shapes first, then the rebound."""
    cells = [(shape, points) for shape in FALLING for points in lengths] + [(REBOUND, 100)]
    for number, (shape, points) in enumerate(cells):
        for index, kind in enumerate(COEFFICIENTS):
            yield rate(shape, points, kind, runs, curves, 1000 * number + 10 * index + runs)


def table(curves: int, runs: int) -> Iterator[str]:
    """The rows of a Markdown table: found, and 'cannot tell' in brackets, in percent."""
    yield "| trend | points | " + " | ".join(COEFFICIENTS) + " |"
    yield "|---|---" + "|---" * len(COEFFICIENTS) + "|"
    row: list[Rate] = []
    for cell in rates(curves, runs):
        row.append(cell)
        if len(row) == len(COEFFICIENTS):
            shown = (
                f"{100 * one.found:.1f} ({100 * one.undecided:.0f})"
                + ("" if one.within_limits() else " **!**")
                for one in row
            )
            yield f"| {cell.shape} | {cell.points} | " + " | ".join(shown) + " |"
            row = []


TEXT = """# How often a rebound is false

<!-- Written by `make rates`; do not edit. -->

What `joma.bounce` says of simulated curves at a level of 5 %: {curves:,} curves a cell (or as many groups of
{runs} runs), noise about a trend that only falls or stays. Each cell gives in percent how often
`rebound_probability` is below 0.05 and, in brackets, how often `cannot_tell` is true. The last line is a
rebound that is there, of five deviations of the noise. x runs from 0 to 1.
{tables}
## Where the probability of one curve does not hold

`joma.bounce` draws a curve's noise from several kinds: a random walk, autoregressions of first order, and
these over random walks. Other noise, and mixtures, about a flat trend, each of deviation 1 unless said:
percent of false rebounds of one curve, and of {runs} runs together. (1/f noise above goes down to one period
in eight curves.)

{beyond}

Where a wander two to six times as wide as the fast noise lies below it, or noise is slower than a walk, one
curve's probability is too small: its own rises look like a trend's. Runs together can tell.

## What one curve of 100 points can tell at all

The least share of false rebounds of any rule that finds 95 % of the rebounds of five deviations under
white noise, and that judges by two numbers: how far the curve rises, and the exact likelihood ratio of what
a smooth trend leaves of it under the two noises that are compared, white and white over a walk of just that
width. No rule can know more of the noise (Neyman and Pearson). Beside it, what `joma.bounce` says; percent.

{floors}
"""

BEYOND: dict[str, Callable[[int, int, np.random.Generator], Array]] = {
    "white, of Student's t with 3 degrees": lambda rows, points, random: random.standard_t(3, (rows, points)),
    "white, shrinking threefold": lambda rows, points, random: (
        random.normal(size=(rows, points)) * np.exp(-1.1 * np.arange(points) / points)
    ),
    "white, growing threefold": lambda rows, points, random: (
        random.normal(size=(rows, points)) * np.exp(1.1 * np.arange(points) / points)
    ),
    "autoregression of order 2 (.5, .3)": lambda rows, points, random: np.asarray(
        lfilter([1.0], [1.0, -0.5, -0.3], random.normal(size=(rows, points)), axis=1)
    ),
    "1/f, no slower than one period in the curve": partial(long_memory, 1.0, 1),
    "1/f^1.5": partial(long_memory, 1.5, 8),
    "a walk of a walk": lambda rows, points, random: np.cumsum(noise(1.0, rows, points, random), axis=1),
    "white + walk of end deviation .4": lambda rows, points, random: (
        random.normal(size=(rows, points)) + 0.3 * noise(1.0, rows, points, random)
    ),
    "white + walk of end deviation 1.4": lambda rows, points, random: (
        random.normal(size=(rows, points)) + noise(1.0, rows, points, random)
    ),
    "white + walk of end deviation 2.8": lambda rows, points, random: (
        random.normal(size=(rows, points)) + 2 * noise(1.0, rows, points, random)
    ),
    "white + walk of end deviation 5.7": lambda rows, points, random: (
        random.normal(size=(rows, points)) + 4 * noise(1.0, rows, points, random)
    ),
}


def beyond(curves: int) -> Iterator[str]:
    """The rows of a Markdown table: noise that one curve's null does not hold."""
    yield (
        "| noise | " + " | ".join(f"one curve, {n} points" for n in LENGTHS) + f" | {RUNS} runs, 150 points |"
    )
    yield "|---" * (len(LENGTHS) + 2) + "|"
    for name, others in BEYOND.items():
        shown = []
        for points, runs in (*((n, 1) for n in LENGTHS), (150, RUNS)):
            values = others(curves * runs, points, np.random.default_rng(points))
            shown.append(f"{100 * rebounds(values, runs)[0]:.1f}")
        yield f"| {name} | " + " | ".join(shown) + " |"


def floor(wander: float, curves: int) -> tuple[float, float]:
    """False rebounds of white noise over a walk of that end deviation (100 points): the least, and ours."""
    points, random = 100, np.random.default_rng(7)
    walk = np.minimum.outer(np.arange(points) + 1, np.arange(points) + 1) / points
    seen = null_space(_splines(points).T)

    def ratio(values: Array) -> Array:
        found = []
        for covariance in (np.eye(points) + wander**2 * walk, np.eye(points)):
            factor = np.linalg.cholesky(seen.T @ covariance @ seen)
            size = (np.linalg.solve(factor, seen.T @ values.T) ** 2).sum(axis=0)
            found.append(-np.log(np.diag(factor)).sum() - seen.shape[1] / 2 * np.log(size))
        return np.asarray(found[0] - found[1])

    def rises(values: Array) -> Array:
        levels = [smooth(one, 2 * (points // 40) + 1) for one in values]
        return np.array([one[one.argmin() :].max() - one.min() for one in levels])

    real = made(REBOUND, points, "white", curves, 77) / REBOUND.deviation
    false = random.normal(size=(curves, points)) + wander / 2**0.5 * noise(1.0, curves, points, random)
    real_rises, false_rises, real_ratios, false_ratios = rises(real), rises(false), ratio(real), ratio(false)
    needed, least = math.ceil(LEAST_FOUND["white"] * curves), 1.0
    for bound in np.quantile(real_rises, np.linspace(0, 1 - LEAST_FOUND["white"], 50)):
        ratios = np.sort(real_ratios[real_rises >= bound])
        if len(ratios) >= needed:
            least = min(least, float(np.mean((false_rises >= bound) & (false_ratios <= ratios[needed - 1]))))
    return least, rebounds(false, 1)[0]


def floors(curves: int) -> Iterator[str]:
    """The rows of a Markdown table: least possible share of false rebounds, and that of ``joma.bounce``."""
    yield "| white noise of deviation 1 over a walk of end deviation | least possible | `joma.bounce` |"
    yield "|---|---|---|"
    for wander in (1.4, 2.8, 5.7):
        least, ours = floor(wander, curves)
        yield f"| {wander} | {100 * least:.1f} | {100 * ours:.1f} |"


def printed(lines: Iterator[str]) -> str:
    """The lines, printed as they come."""
    kept = []
    for line in lines:
        print(line, flush=True)
        kept.append(line)
    return "\n".join(kept)


def main() -> None:
    """Print the tables; with a second argument, write them to that file."""
    curves = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    tables = ""
    for title, runs in (("One curve", 1), (f"{RUNS} runs together", RUNS)):
        print(f"\n{title}\n")
        tables += f"\n## {title}\n\n{printed(table(curves, runs))}\n"
    print("\nNoise beyond the null\n")
    others = printed(beyond(curves))
    print("\nWhat one curve can tell\n")
    least = printed(floors(curves))
    if len(sys.argv) > 2:
        text = TEXT.format(curves=curves, runs=RUNS, tables=tables, beyond=others, floors=least)
        Path(sys.argv[2]).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
