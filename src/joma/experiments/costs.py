"""What commands cost, as measured by ``python docs/costs.py``; light, for help and lists.

``costs.json`` holds processor seconds of whole commands, start included, and how fast the machine was: those
of a loop of 20 million additions in plain Python.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

TOKENS = 1024
"""Tokens that the instruments read, of a model of SmolLM2-135M's size."""


def measured_seconds(experiment: str) -> float | None:
    """Processor seconds of an experiment's preset ``quick``; None where it was not measured."""
    return all_measured("experiments").get(experiment)


@cache
def all_measured(kind: str) -> dict[str, float]:
    """Name -> processor seconds of ``experiments`` or ``instruments``; of the ``machine`` its ``loop``."""
    content = resources.files("joma.experiments").joinpath("costs.json").read_text("utf-8")
    found: dict[str, float] = json.loads(content).get(kind, {})
    return found


def in_words(seconds: float) -> str:
    """``8 s``, ``50 s``, ``2 min``, ``1.5 h``: as exact as another machine allows."""
    if seconds < 10:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 90:
        return f"{5 * round(seconds / 5)} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
