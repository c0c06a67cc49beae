"""What a job is: settings in, tables, a figure and claims out.

An experiment is a job, and so are a probe, a neuron run and a series of checkpoints. A job's settings
are light, so that listing jobs imports nothing heavy; what it does lies beside them, in the modules
``run``, ``figure`` and ``claims`` of its package, and is found when it is needed.
"""

from __future__ import annotations

import importlib
import importlib.util
import types
from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from joma.core.settings import Settings, Value, setting
from joma.core.threads import limit_threads, usable_cores

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from joma.core.claim import Claim
    from joma.core.progress import Progress

__all__ = ["Job", "setting"]


@dataclass(frozen=True, kw_only=True)
class Job(Settings, ABC):
    """Settings that can be run into a directory.

    A subclass is a frozen keyword-only dataclass whose fields are made with ``setting``. The package
    that defines it has three modules beside it:

    * ``run``: ``run(settings, progress) -> {name of a table: tidy table}`` measures;
    * ``figure``: ``draw(settings, tables) -> Figure``, from the tables alone, and ``CAPTION``, what it shows;
    * ``text``, where a terminal can show some of the tables: ``terminal_text(settings, tables) -> str``;
    * ``claims``: ``claims(settings, tables) -> [Claim, ...]``, from the tables alone, and, where there is
      more to say than the claims do, ``answer(settings, tables) -> [sentence, ...]``.

    Tables are tidy (one row per measurement; columns ``run, step, layer, head, metric, value, unit,
    error_bound, dtype`` as they apply).
    """

    title: ClassVar[str]
    """One line: what a user sees in ``joma list``."""
    reproduces: ClassVar[str]
    """The figure or table: ``JoMA Fig. 6``."""
    subject: ClassVar[Literal["papers", "model"]] = "papers"
    """What the verdicts are about: the papers' statements, or a user's own model."""
    grows: ClassVar[bool] = False
    """Whether running again looks for what has come since (parts stay, and are not computed again)."""
    free: ClassVar[frozenset[str]] = frozenset()
    """Settings that may change from one run in a directory to the next; no part depends on them."""
    threads: ClassVar[int] = 1
    """Threads that a process of the job computes with; 0: as many as there are cores. More than one pays
    for large matrices only, and where parts run in processes of their own, the cores are taken."""

    costless: ClassVar[frozenset[str]] = frozenset({"seed"})
    """Settings that change nothing of what a cell costs."""

    seed: int = setting(0, "seed of every random number", at_least=0)

    @classmethod
    def name(cls) -> str:
        """The job's name: that of its package."""
        return cls.__module__.rpartition(".")[2]

    def heading(self) -> str:
        """The run's title in a report."""
        return self.title

    @classmethod
    def needs(cls) -> list[str]:
        """The modules that a process which runs the job imports."""
        measuring = [] if cls.run is not Job.run else [f"{cls.__module__}.run"]
        return [cls.__module__, *measuring]

    def directory(self) -> str:
        """Where the run goes if nobody says."""
        return f"runs/{self.name()}"

    def cells(self) -> list[Self]:
        """The jobs that these settings stand for, as small as can be: where it trains, one training each."""
        return [self]

    def command(self, preset: Mapping[str, Value]) -> str:
        """What a user types to get the same tables; ``preset``: what the name of a preset stands for."""
        return f"joma {self.name()} {self.as_words(preset)}".rstrip()

    @classmethod
    def preset_values(cls, preset: str) -> Mapping[str, Value]:
        """The settings that the preset of this name changes; jobs have none, experiments do."""
        return {}

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Measure: name of a table -> tidy table."""
        measure: Callable[[Job, Progress], dict[str, pandas.DataFrame]] = self._module_beside("run").run
        progress.threads = self.threads
        with limit_threads(self.threads or usable_cores()):
            return measure(self, progress)

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """The figure, from the tables alone."""
        figure: Figure = self._module_beside("figure").draw(self, tables)
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """The paper's statements, judged from the tables alone."""
        judged: list[Claim] = self._module_beside("claims").claims(self, tables)
        return judged

    def answer(self, tables: Mapping[str, pandas.DataFrame]) -> list[str]:
        """One to three sentences that say what was found; empty where the claims say it all."""
        if type(self).claims is not Job.claims:
            return []  # the job brings its own claims along, with no module beside it
        say = getattr(self._module_beside("claims"), "answer", None)
        return [] if say is None else say(self, tables)

    def terminal_text(self, tables: Mapping[str, pandas.DataFrame]) -> str:
        """What a terminal shows beside claims and answer; empty where there is nothing more."""
        own = type(self).draw is not Job.draw
        if own or importlib.util.find_spec(f"{type(self).__module__}.text") is None:
            return ""
        shown: str = self._module_beside("text").terminal_text(self, tables)
        return shown

    def list_missing(self, tables: Mapping[str, pandas.DataFrame]) -> list[str]:
        """What was asked for and could not be measured, a sentence each."""
        return []

    def caption(self) -> str:
        """What the figure shows, for those who cannot see it."""
        return self.title if type(self).draw is not Job.draw else str(self._module_beside("figure").CAPTION)

    def _module_beside(self, module: str) -> types.ModuleType:
        return importlib.import_module(f"{type(self).__module__}.{module}")
