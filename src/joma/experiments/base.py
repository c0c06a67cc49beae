"""What every experiment is: settings, a run, a figure, claims.

A module of this package holds one experiment, under the experiment's own name, and is the only place
that knows it. So that ``joma list`` stays quick, such a module imports nothing heavy at its top:
NumPy, pandas, torch, matplotlib and the rest of joma's numerics are imported inside the methods.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args, get_origin, get_type_hints

from joma.errors import InputError, nearest

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
class Experiment(ABC):
    """One figure or table of a paper, or one question to it.

    Subclasses are frozen keyword-only dataclasses whose fields are made with :func:`setting`; the
    defaults are the preset ``quick``. Tables are tidy (one row per measurement; columns ``run, step,
    layer, head, metric, value, unit, error_bound, dtype`` as they apply).
    """

    title: ClassVar[str]
    """One line: what a user sees in ``joma list``."""
    reproduces: ClassVar[str]
    """The figure or table: ``JoMA Fig. 6``."""
    cost: ClassVar[Mapping[str, str]]
    """Preset -> what it takes on two cores: ``{"quick": "2 min", "paper": "3 h"}``."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    """Preset -> the settings that differ from the defaults. ``quick`` is ``{}``."""

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
        """The experiment's name: that of its module."""
        return cls.__module__.rpartition(".")[2]

    def heading(self) -> str:
        """The run's title in a report."""
        return self.title

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

    @abstractmethod
    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Measure: name of a table -> tidy table."""

    @abstractmethod
    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """The figure, from the tables alone."""

    @abstractmethod
    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """The paper's statements, judged from the tables alone."""


def _plain_types(kind: Any) -> list[Any]:
    """``tuple[int, ...] | None`` -> [int, NoneType]; Literal -> the types of its members."""
    import types
    from typing import Literal, Union

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
