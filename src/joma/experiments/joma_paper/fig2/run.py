"""Training on both data sets, and how well each prediction foretells the logits."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from joma.core.arguments import Array
from joma.core.progress import Progress
from joma.experiments.joma_paper.fig2 import DATA, Fig2
from joma.experiments.shared.classes_training import Classes, ClassesTraining, train_classes
from joma.experiments.shared.tables import by_table


def run(settings: Fig2, progress: Progress) -> dict[str, pd.DataFrame]:
    """Train both data sets; a part each."""
    return by_table(
        (
            progress.part(f"{data}-classes", partial(_measure, settings, data))
            for data in progress.track(DATA, "fig2")
        ),
        counted=("step", "class", "token"),
    )


def _measure(settings: Fig2, data: Classes) -> pd.DataFrame:
    course = train_classes(
        data,
        seeds=[1000 * settings.seed + run for run in range(settings.runs)],
        steps=settings.steps,
        rate=settings.rate,
        temperature=settings.temperature,
        nodes=settings.classes,
        distinct=settings.distinct,
        common=settings.common,
    )
    metrics = _metrics(course, settings.temperature, settings.seed)
    drawn = np.unique(
        np.append(np.arange(0, len(course.steps), settings.record_every), len(course.steps) - 1)
    )
    tables = []
    for name, values in metrics.items():
        for run in range(settings.runs):
            curve = {"step": course.steps[drawn].astype(int), "value": values[drawn, run]}
            tables.append(pd.DataFrame({"table": "curves", "run": run, "metric": name, **curve}))
            # The first steps have no logits worth a correlation yet: the least value counts from 1.
            ends = {
                "final": values[-1, run],
                "least": values[1:, run].min(),
                "most": values[1:, run].max(),
            }
            for statistic, value in ends.items():
                row = {"run": run, "metric": name, "statistic": statistic, "value": value}
                tables.append(pd.DataFrame({"table": "summary", **row}, index=[0]))
    x = course.frequencies[0]
    label, token = np.indices(x.shape)
    cells = {"class": label.ravel(), "token": token.ravel(), "value": x.ravel()}
    tables.append(pd.DataFrame({"table": "frequencies", "run": 0, "metric": "frequency", **cells}))
    return pd.concat(tables, ignore_index=True).assign(data=data, unit="1")


def _metrics(course: ClassesTraining, temperature: float, seed: int) -> dict[str, Array]:
    """Correlations and relative errors, each (S, R)."""
    z, squares = course.logits, course.squares
    norms = squares.sum(axis=-1, keepdims=True)
    first = squares / (2 * temperature)
    second = -norms * course.frequencies.mean(axis=-2) / (2 * temperature)
    predicted = first + second
    predicted = predicted - predicted[0] + z[0]
    # Eq. 17 step by step: bbar at the step, times the change of |v|^2.
    moved = np.cumsum(course.mean_scores[:-1] * np.diff(norms, axis=0), axis=0) / (2 * temperature)
    moving = z[0] + first - first[0]
    moving[1:] -= moved
    integral = z[0] + first - first[0] - course.correction / temperature
    exact = integral - course.squared_steps / (2 * temperature)
    shuffled = np.random.default_rng([seed, 2]).permuted(predicted[-1], axis=-1)

    def correlation(a: Array) -> Array:
        a, b = a - a.mean(axis=-1, keepdims=True), z - z.mean(axis=-1, keepdims=True)
        size = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
        return np.asarray((a * b).sum(axis=-1) / size)

    def error(a: Array) -> Array:
        return np.asarray(np.linalg.norm(z - a, axis=-1) / np.linalg.norm(z, axis=-1))

    return {
        "correlation": correlation(predicted),
        "correlation_1": correlation(first),
        "correlation_2": correlation(second),
        "correlation_shuffled": correlation(np.broadcast_to(shuffled, z.shape)),
        "error": error(predicted),
        "error_moving": error(moving),
        "error_still": error(np.broadcast_to(z[0], z.shape)),
        "error_integral": error(integral),
        "error_exact": error(exact),
        "mean_score_shift": np.abs(course.mean_scores - course.mean_scores[0]).sum(axis=-1),
    }
