"""``joma sweep``: an experiment's cells, each a run of its own, computed here or on a cluster; light."""

from __future__ import annotations

import functools
import importlib
import shlex
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from joma.core.errors import InputError, abbreviate
from joma.core.settings import Value, as_text
from joma.experiments import catalog
from joma.experiments.base import Experiment
from joma.runs.job import Job, setting
from joma.sweeps.grid import DONE, axes_of, cells_of, key, whole_of

if TYPE_CHECKING:
    import pandas

MANY = 1000
"""Cells above which one is asked whether one means it."""


@dataclass(frozen=True, kw_only=True)
class SweepSettings(Job):
    """An experiment at all settings of a grid: one run directory per cell, and their tables as one.

    Tables: ``cells``, one row per cell, with the settings that differ, ``status`` and ``error``; then those
    of the experiment. Where the cells are just what one run of the experiment would train, they are its
    tables, its figure and its claims; of any other grid they are the cells' tables one below the other,
    each with the settings that differ.
    """

    title = "an experiment at all settings of a grid"
    reproduces = "a grid of runs"
    grows: ClassVar[bool] = True
    free: ClassVar[frozenset[str]] = frozenset({"grid", "seed"})

    experiment: str = setting("", "experiment whose cells are run", positional=True)
    preset: str = setting("quick", "starting point")
    settings: tuple[str, ...] = setting((), "further settings of all cells, as name=value")
    grid: tuple[str, ...] = setting(
        (), "name=1,2 or name=1..3, one or several (default: the preset's own grid)"
    )

    @classmethod
    def name(cls) -> str:
        """``sweep``."""
        return "sweep"

    def heading(self) -> str:
        """Which experiment, over what."""
        over = ", ".join(self.grid) or f"the grid of the preset {self.preset}"
        return f"{self.experiment} over {over}"

    def directory(self) -> str:
        """Where the sweep goes if nobody says."""
        return f"runs/sweep-{self.experiment}"

    def command(self, preset: Mapping[str, Value]) -> str:
        """What a user types to get the same."""
        base, whole = self.kind().from_preset(self.preset), self.base()
        words = whole.as_words(base.flat())
        named = "" if self.preset == "quick" else f" --preset {self.preset}"
        grid = f" --grid {shlex.join(self.grid)}" if self.grid else ""
        return f"joma sweep {self.experiment}{named} {words}".rstrip() + grid

    def kind(self) -> type[Experiment]:
        """The experiment's settings.

        Raises:
            InputError: there is no such experiment.
        """
        if not self.experiment:
            raise InputError("sweep: name the experiment first, then its settings (see: joma list).")
        return catalog.find(self.experiment)

    def base(self) -> Experiment:
        """The settings that all cells share, where the grid says nothing else.

        Raises:
            InputError: no such preset or setting, or a value that makes no sense.
        """
        kind = self.kind()
        given: dict[str, Value] = {}
        for word in self.settings:
            name, _, text = word.partition("=")
            if name not in kind.fields():
                raise InputError(f"sweep: {kind.name()} has no setting {abbreviate(name)}.")
            try:
                given[name] = kind.fields()[name].from_text(text)
            except (ValueError, OverflowError):
                raise InputError(
                    f"sweep: setting {word} is not of the type {kind.fields()[name].type_name()}."
                ) from None
        return kind.from_preset(self.preset, **given)

    def grid_cells(self) -> list[Job]:
        """One job per cell.

        Raises:
            InputError: a grid that makes no sense, or has too many cells.
        """
        return _cells(self)

    def varied_settings(self) -> dict[str, dict[str, Value]]:
        """Cell -> the settings in which the cells differ, a list of one as its member."""
        cells = self.grid_cells()
        flat = [cell.flat() for cell in cells]
        names = [name for name in flat[0] if len({one[name] for one in flat}) > 1]
        return {
            key(cell): {name: _member(values[name]) for name in names}
            for cell, values in zip(cells, flat, strict=True)
        }

    def whole(self) -> Job | None:
        """The experiment's settings whose own run has just these cells, if it can gather them; else None."""
        return _whole(self) if hasattr(self.own("run"), "tables") else None

    def caption(self) -> str:
        """What the figure shows: the experiment's own words, where the grid is its own."""
        whole = self.whole()
        return super().caption() if whole is None else whole.caption()

    def list_missing(self, tables: Mapping[str, pandas.DataFrame]) -> list[str]:
        """The cells that failed, each with its settings and its error."""
        cells, varied = tables["cells"], self.varied_settings()
        failed = cells[cells["status"] != DONE]
        return [
            f"{', '.join(f'{n} = {as_text(v)}' for n, v in varied[row.cell].items())}: {row.error}"
            for row in failed.itertuples()
        ]

    def own(self, module: str) -> types.ModuleType:
        """The experiment's module of that name."""
        return importlib.import_module(f"{self.kind().__module__}.{module}")


@functools.lru_cache(maxsize=4)
def _cells(settings: SweepSettings) -> list[Job]:
    axes, base = axes_of(settings.grid, settings.kind()), settings.base()
    given = {word.partition("=")[0] for word in settings.settings}
    for name in sorted(given & ({*axes} | ({"seeds"} if "seed" in axes else set()))):
        raise InputError(
            f"sweep: --grid names its own values for {name}; leave --{name.replace('_', '-')} out."
        )
    if base.flat().get("recorded"):
        raise InputError(
            f"sweep: recorded curves are judged, not trained: joma run {base.name()} --recorded does that."
        )
    return cells_of(base, axes)


@functools.lru_cache(maxsize=4)
def _whole(settings: SweepSettings) -> Job | None:
    return whole_of(_cells(settings))


def _member(value: Value) -> Value:
    return (
        value[0]
        if isinstance(value, tuple) and len(value) == 1
        else as_text(value)
        if isinstance(value, tuple)
        else value
    )
