"""What an experiment adds to a job: presets, and what each of them costs.

A package of this folder holds one experiment, under the experiment's own name, and is the only place
that knows it: its ``__init__`` has the settings (light), ``run``, ``figure`` and ``claims`` the rest
(see ``joma.runs.job.Job``).
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from joma.core.errors import InputError, abbreviate, nearest
from joma.core.settings import Value
from joma.experiments.costs import in_words, measured_seconds
from joma.runs.job import Job


@dataclass(frozen=True, kw_only=True)
class Experiment(Job, ABC):
    """One figure or table of a paper, or one question to it; the defaults are the preset ``quick``."""

    cost: ClassVar[Mapping[str, str]] = {}
    """Preset -> what it takes on two cores, estimated, where it was not measured: ``{"paper": "3 h"}``."""
    presets: ClassVar[Mapping[str, Mapping[str, Value]]]
    """Preset -> the settings that differ from the defaults. ``quick`` is ``{}``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.flat()
        every, steps = given.get("record_every"), given.get("steps")
        if isinstance(every, int) and isinstance(steps, int) and every > steps:
            raise InputError(
                f"{self.name()}: record_every = {every} is above the number of steps, {steps}, which "
                "leaves no curve; record more often or train longer."
            )

    def command(self, preset: Mapping[str, Value]) -> str:
        """What a user types to get the same tables; ``preset``: what the name of a preset stands for."""
        words = self.as_words(preset)
        named = next((name for name, values in self.presets.items() if values and values == preset), "")
        return f"joma run {self.name()}{f' --preset {named}' if named else ''} {words}".rstrip()

    @classmethod
    def preset_values(cls, preset: str) -> Mapping[str, Value]:
        """The settings that a preset changes; none for no preset.

        Raises:
            InputError: there is no such preset; the message names the nearest.
        """
        if preset and preset not in cls.presets:
            raise InputError(
                f"{cls.name()} has no preset {abbreviate(preset)}; {nearest(preset, cls.presets)}"
            )
        return cls.presets[preset] if preset else {}

    @classmethod
    def costs(cls) -> dict[str, str]:
        """Preset -> processor time as measured, ``50 s``, or as estimated for two cores, ``about 3 h``."""
        found = measured_seconds(cls.name())
        quick = None if found is None else in_words(found)
        estimated = {name: f"about {time}" if time[0].isdigit() else time for name, time in cls.cost.items()}
        return {
            preset: quick if quick and not values else estimated[preset]
            for preset, values in cls.presets.items()
        }

    @classmethod
    def from_preset(cls, preset: str = "quick", **settings: Value) -> Self:
        """The experiment with a preset's settings, some of them replaced."""
        return cls.of(**{**cls.preset_values(preset), **settings})
