"""Monitored runs made of curves: the folder that a monitor would have written, judged as it judges."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from joma.instruments.monitor.alarms.judge import Judge
from joma.instruments.monitor.alarms.messages import Message
from joma.instruments.monitor.folder import Folder
from joma.instruments.monitor.measuring.rows import frame

LAYERS, HEADS, EVERY = 3, 4, 10
"""Of every made run; a look each ten steps."""


@dataclass
class Course:
    """What a made run shows: each array a value per step, or per look, layer and head."""

    loss: np.ndarray
    entropy: np.ndarray
    """Normalised, of shape (looks, layers, heads)."""
    logit: np.ndarray
    residual: np.ndarray
    """Of shape (looks, layers)."""
    update: np.ndarray = field(default_factory=lambda: np.zeros(0))
    rate: float | None = 1e-3

    @property
    def looks(self) -> int:
        """How often the run was looked at."""
        return len(self.entropy)


def healthy(looks: int = 120, seed: int = 0) -> Course:
    """A loss that falls, heads that stay as they are, noise of its own in each."""
    random = np.random.default_rng(seed)
    steps = np.arange(looks * EVERY)
    shape = (looks, LAYERS, HEADS)
    return Course(
        loss=1.5 + 3 * np.exp(-steps / (0.2 * len(steps))) + 0.05 * random.standard_normal(len(steps)),
        entropy=1 / (1 + np.exp(-1 - 0.05 * random.standard_normal(shape))),
        logit=6 * np.exp(0.05 * random.standard_normal(shape)),
        residual=2 * np.exp(0.02 * random.standard_normal((looks, LAYERS))),
        update=0.2 * np.exp(0.02 * random.standard_normal((looks, LAYERS))),
    )


def looks_of(course: Course) -> list[pd.DataFrame]:
    """The rows of each look, the losses since the one before first."""
    tables = []
    for look in range(course.looks):
        step = look * EVERY
        since = range(max(0, step - EVERY + 1), step + 1)
        rows: list[list[str | float | None]] = [
            [at, "", None, "", 0, None, "loss", float(course.loss[at]), "", 1] for at in since
        ]
        for layer in range(LAYERS):
            module = f"layers.{layer}.attention"
            for metric, values in (("normalised_entropy", course.entropy), ("largest_logit", course.logit)):
                own = values[look, layer]
                rows += [
                    [step, "", layer, module, 0, head, metric, float(value), "", 64]
                    for head, value in enumerate(own)
                ]
            block = f"layers.{layer}"
            of_blocks = (("residual_rms", course.residual), ("residual_update", course.update))
            rows += [
                [step, "", layer, block, 0, None, metric, float(values[look, layer]), "", 64]
                for metric, values in of_blocks
            ]
        tables.append(frame(rows))
    return tables


def judge(course: Course, planned: int | None = None) -> tuple[pd.DataFrame, list[Message], Judge]:
    """What a monitor would have kept of this course: its table, its messages, and its detectors."""
    own = Judge(looks=planned or max(course.looks, 2000), alpha=0.05)
    messages: list[Message] = []
    tables = looks_of(course)
    for table in tables:
        raw = table["metric"] == "loss"
        messages += own.losses(table)
        messages += own.look(table[~raw].reset_index(drop=True), course.rate)
    return pd.concat(tables, ignore_index=True), messages, own


def write(course: Course, path: Path, *, planned: int | None = None) -> Path:
    """The folder of a monitor that saw this course."""
    table, messages, own = judge(course, planned)
    folder = Folder.open(path, {"model": "Made", "statistics": [], "every": EVERY})
    folder.add(table)
    folder.tell(messages)
    folder.keep_state({"step": len(course.loss), **own.as_state()})
    folder.merge()
    folder.release()
    return path
