"""What an experiment adds to a job: presets, and what each of them costs.

A package of this folder holds one experiment, under the experiment's own name, and is the only place
that knows it: its ``__init__`` has the settings (light), ``run``, ``figure`` and ``claims`` the rest
(see :class:`joma.runs.job.Job`).
"""

from __future__ import annotations

import dataclasses
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from joma.errors import InputError, nearest
from joma.runs.job import Job


@dataclass(frozen=True, kw_only=True)
class Experiment(Job, ABC):
    """One figure or table of a paper, or one question to it; the defaults are the preset ``quick``."""

    cost: ClassVar[Mapping[str, str]]
    """Preset -> what it takes on two cores: ``{"quick": "2 min", "paper": "3 h"}``."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    """Preset -> the settings that differ from the defaults. ``quick`` is ``{}``."""

    def command(self) -> str:
        """What a user types to run it, apart from the settings."""
        return f"joma run {self.name()}"

    @classmethod
    def from_preset(cls, preset: str = "quick", **settings: Any) -> Self:
        """The experiment with a preset's settings, some of them replaced."""
        if preset not in cls.presets:
            raise InputError(f"{cls.name()} has no preset {preset!r}; {nearest(preset, cls.presets)}")
        known = {field.name for field in dataclasses.fields(cls)}
        for unknown in sorted(set(settings) - known):
            raise InputError(f"{cls.name()} has no setting {unknown!r}; {nearest(unknown, known)}")
        return cls(**{**cls.presets[preset], **settings})
