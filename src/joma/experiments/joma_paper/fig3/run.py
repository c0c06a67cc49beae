"""Training with attention trained and frozen, beside what Theorem 2 foretells."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from joma.core.arguments import Array
from joma.core.progress import Progress
from joma.data.frequencies import drive
from joma.experiments.joma_paper.fig3 import ATTENTION, Fig3
from joma.experiments.shared.classes_training import train_classes
from joma.experiments.shared.tables import by_table
from joma.theory.winner_take_all import WinnerTakeAll


def run(settings: Fig3, progress: Progress) -> dict[str, pd.DataFrame]:
    """Train with attention trained and frozen; a part each."""
    return by_table(
        (
            progress.part(f"attention-{attention}", partial(_measure, settings, attention))
            for attention in progress.track(ATTENTION, "fig3")
        ),
        counted=("step", "class", "token"),
    )


def _measure(settings: Fig3, attention: str) -> pd.DataFrame:
    course = train_classes(
        settings.data,
        seeds=[1000 * settings.seed + run for run in range(settings.runs)],
        steps=settings.steps,
        rate=settings.rate,
        attention_rate=settings.rate if attention == "trained" else 0.0,
        temperature=settings.temperature,
        nodes=settings.classes,
        distinct=settings.distinct,
        common=settings.common,
    )
    quarter = 3 * settings.steps // 4
    drawn = np.unique(np.append(np.arange(0, settings.steps, settings.record_every), settings.steps))
    tokens = np.arange(course.node.shape[-1])
    tables = []
    for run in range(settings.runs):
        node = course.node[:, run]
        step, token = np.meshgrid(course.steps[drawn], tokens, indexing="ij")
        curve = {"step": step.ravel(), "token": token.ravel(), "value": node[drawn].ravel()}
        labels = {"run": run, "attention": attention, "metric": "weight"}
        tables.append(pd.DataFrame({"table": "components", **labels, **curve}))
        norm = np.sqrt(course.squares[:, run])
        measured = {
            "weight": node[-1],
            "weight_growth": np.abs(node[-1] - node[quarter]) / np.abs(node[-1]),
            "norm": norm[-1],
            "norm_growth": np.abs(norm[-1] - norm[quarter]) / norm[-1],
            **_theorem2(settings, course.frequencies[run]),
        }
        for metric, values in measured.items():
            row = {"run": run, "attention": attention, "metric": metric, "token": tokens, "value": values}
            tables.append(pd.DataFrame({"table": "final", **row}))
    return pd.concat(tables, ignore_index=True).assign(layer=0, unit="1")


def _theorem2(settings: Fig3, frequencies: Array) -> dict[str, Array]:
    """Drive and losers' limits (infinite for the winner) from the gradients at the start."""
    delta = drive(frequencies, np.eye(settings.classes) - 1 / settings.classes)
    theorem = WinnerTakeAll(
        drive=delta, attention_rate=settings.rate, weight_rate=settings.rate, temperature=settings.temperature
    )
    limits = theorem.limits()
    return {
        "drive": np.linalg.norm(delta, axis=0),
        "weight_limit": limits[0],
        "norm_limit": np.linalg.norm(limits, axis=0),
    }
