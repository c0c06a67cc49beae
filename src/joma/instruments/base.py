"""What the jobs on real models have in common: a user's model, which reads a text."""

from __future__ import annotations

import re
from abc import ABC
from dataclasses import dataclass
from typing import ClassVar, Literal

from joma.core.errors import InputError
from joma.instruments.reading.settings import ReadingSettings
from joma.runs.job import Job

_READING = ReadingSettings()


@dataclass(frozen=True, kw_only=True)
class Instrument(Job, ABC):
    """A job that measures a user's model."""

    subject: ClassVar[Literal["papers", "model"]] = "model"
    threads: ClassVar[int] = 0
    reading: ReadingSettings = _READING

    def directory(self) -> str:
        """Where the run goes if nobody says."""
        return (
            f"{super().directory()}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', self.reading.model[-100:]).strip('-.')}"
        )

    def main_table(self) -> str:
        """The table that ``--csv`` prints."""
        return "layers"

    def check_complete(self) -> None:
        """Raises InputError where no model or no text is named."""
        if not self.reading.model:
            raise InputError(f"{self.name()}: name a model first: {ReadingSettings.fields()['model'].help}.")
        if not self.reading.reads:
            raise InputError(
                f"{self.name()}: say what it reads: --text {ReadingSettings.fields()['text'].help}; or "
                f"--string."
            )
