"""What a job is: settings in, tables, a figure and claims out.

An experiment is a job, and so are a probe, a neuron run and a series of checkpoints. A job's settings
are light, so that listing jobs imports nothing heavy; what it does lies beside them, in the modules
``run``, ``figure`` and ``claims`` of its package, and is found when it is needed.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import operator
import types
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from joma.errors import InputError, nearest
from joma.progress import usable_cores
from joma.threads import limited

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from joma.claim import Claim
    from joma.progress import Progress

_BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "at_least": operator.ge,
    "at_most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
}


def setting(
    default: Any,
    help: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Sequence[Any] | None = None,
    repeats: bool = False,
) -> Any:
    """A field of an experiment: its default, one line of help, and the values that make sense.

    For a tuple, the bounds and choices hold for each member; it is never empty, and a value stands in
    it once, unless it ``repeats`` (one of several lists that belong together).
    """
    limits = {
        "at_least": at_least,
        "at_most": at_most,
        "above": above,
        "below": below,
        "choices": choices,
    }
    return dataclasses.field(default=default, metadata={"help": help, "limits": limits, "repeats": repeats})


@dataclass(frozen=True, kw_only=True)
class Job(ABC):
    """Settings that can be run into a directory.

    A subclass is a frozen keyword-only dataclass whose fields are made with :func:`setting`. The package
    that defines it has three modules beside it:

    * ``run``: ``run(settings, progress) -> {name of a table: tidy table}`` measures;
    * ``figure``: ``draw(settings, tables) -> Figure``, from the tables alone;
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
    threads: ClassVar[int] = 0
    """Threads that a process of the job computes with; 0: as many as there are cores. More than one pays
    for large matrices only, and where parts run in processes of their own, the cores are taken."""

    seed: int = setting(0, "seed of every random number", at_least=0)

    def __post_init__(self) -> None:
        types = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            members = value if isinstance(value, tuple) else (value,)
            for member in members:
                self._check(field, types[field.name], member)
            if not members:
                raise InputError(f"{self.name()}: setting {field.name} is empty; give at least one value.")
            if len(set(members)) < len(members) and not field.metadata.get("repeats"):
                raise InputError(
                    f"{self.name()}: setting {field.name} = {value!r} repeats a value; give each once."
                )

    def _check(self, field: dataclasses.Field[Any], kind: Any, value: Any) -> None:
        where = f"{self.name()}: setting {field.name} = {value!r}"
        wanted = [t for t in _plain_types(kind) if isinstance(t, type)]
        ok = any(_is_a(value, t) for t in wanted)
        if wanted and not ok:
            names = " or ".join(sorted({"none" if t is type(None) else t.__name__ for t in wanted}))
            raise InputError(f"{where} has the wrong type; give {names}.")
        limits = field.metadata.get("limits", {})
        if value is None:
            return
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{where} is not a finite number.")
        choices = limits.get("choices")
        if choices is not None and value not in choices:
            raise InputError(f"{where} is unknown; {nearest(str(value), map(str, choices))}")
        bounds = {key: limits[key] for key in _BOUNDS if limits.get(key) is not None}
        if not all(_BOUNDS[key](value, bound) for key, bound in bounds.items()):
            words = " and ".join(f"{key.replace('_', ' ')} {bound:g}" for key, bound in bounds.items())
            raise InputError(f"{where} is out of range; give a value {words}.")

    @classmethod
    def name(cls) -> str:
        """The job's name: that of its package."""
        return cls.__module__.rpartition(".")[2]

    def heading(self) -> str:
        """The run's title in a report."""
        return self.title

    def command(self) -> str:
        """What a user types to run it, apart from the settings."""
        return f"joma {self.name()}"

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Measure: name of a table -> tidy table."""
        measure: Callable[[Job, Progress], dict[str, pandas.DataFrame]] = self._beside("run").run
        with limited(self.threads or usable_cores()):
            return measure(self, progress)

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """The figure, from the tables alone."""
        figure: Figure = self._beside("figure").draw(self, tables)
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """The paper's statements, judged from the tables alone."""
        judged: list[Claim] = self._beside("claims").claims(self, tables)
        return judged

    def answer(self, tables: Mapping[str, pandas.DataFrame]) -> list[str]:
        """One to three sentences that say what was found; empty where the claims say it all."""
        if type(self).claims is not Job.claims:
            return []  # the job brings its own claims along, with no module beside it
        say = getattr(self._beside("claims"), "answer", None)
        return [] if say is None else say(self, tables)

    def caption(self) -> str:
        """What the figure shows, for those who cannot see it: what its ``draw`` says of itself."""
        own = type(self).draw
        draw = own if own is not Job.draw else self._beside("figure").draw
        return " ".join((draw.__doc__ or "").split())

    def _beside(self, module: str) -> types.ModuleType:
        return importlib.import_module(f"{type(self).__module__}.{module}")


def _plain_types(kind: Any) -> list[Any]:
    """``tuple[int, ...] | None`` -> [int, NoneType]; Literal -> the types of its members."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return [t for part in get_args(kind) for t in _plain_types(part)]
    if origin is tuple:
        return [t for part in get_args(kind) if part is not Ellipsis for t in _plain_types(part)]
    if origin is Literal:
        return [type(member) for member in get_args(kind)]
    return [kind]


def _is_a(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float)) if kind is float else isinstance(value, kind)
