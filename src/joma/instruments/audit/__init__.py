"""Is each member of a series of checkpoints what its name says? (``joma track SERIES --audit``)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from joma.core.settings import Value
from joma.runs.job import Job, setting


@dataclass(frozen=True, kw_only=True)
class AuditSettings(Job):
    """The members of a series that are not what their names say, each with the tensors concerned.

    Tables: ``faults``, one row per faulty member and fault: ``member, step, fault`` (one of
    ``joma.checkpoints.series.audit.faults.FAULTS``)``, tensors`` (a list of names)``, matches`` (the member
    that those tensors match, or None); ``reasons``, the same as sentences; ``notes``, what was noticed and is
    no fault; ``members``, what was looked at.
    """

    title = "the members of a series that are not what their names say"
    reproduces = "nothing: an instrument"
    subject = "model"
    threads = 0

    series: tuple[str, ...] = setting((), "folder, folders and files, or a model's name", positional=True)
    revisions: tuple[str, ...] = setting(
        ("all",), "all, names (step1000,step2000), every:10 or log:20 (closer at first)"
    )

    def heading(self) -> str:
        """Which series."""
        named = self.series[0] if self.series else ""
        return f"{Path(named).name or named}: are its members what their names say?"

    def command(self, preset: Mapping[str, Value]) -> str:
        """The words that print the same faults."""
        return f"joma track {self.as_words(preset)} --audit"
