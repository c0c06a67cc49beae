"""One state of a training, continued in several ways (``joma.branch``)."""

from __future__ import annotations

from dataclasses import dataclass

from joma.runs.job import Job, setting

TWIN = "twin"
"""The name of the branch that goes on unchanged."""


@dataclass(frozen=True, kw_only=True)
class BranchSettings(Job):
    """The same state continued in several ways on the same batches, against its twin.

    The settings are those of ``joma.branch``, which has the model and its training step beside them.

    Tables: those of ``joma.BranchResult``.
    """

    title = "one state continued in several ways, against its twin"
    reproduces = "nothing: an instrument"
    subject = "model"

    at: int = setting(0, "steps of training before the branches part", at_least=0)
    steps: int = setting(100, "steps of each branch", at_least=1)
    seeds: int = setting(3, "trainings, each from its own seed", at_least=1)
    orders: int = setting(1, "twins that read the batches in another order, for each seed", at_least=0)
    interventions: tuple[str, ...] = setting((), "name: what the branch does, one for each branch")
