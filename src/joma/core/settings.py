"""Settings: frozen dataclasses whose fields know their meaning, their bounds, and how people write them.

A command line, a YAML file and a run directory all read and write the same fields, so that no default and
no line of help is said twice. Settings may hold others (what a model reads, say); to a user they are flat.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import math
import operator
import shlex
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from joma.core.errors import InputError, abbreviate, nearest
from joma.core.files import Json

Scalar = int | float | str | bool | None
Value = Scalar | tuple[Scalar, ...]
T = TypeVar("T")

_BOUNDS: dict[str, Callable[[float, float], bool]] = {
    "at_least": operator.ge,
    "at_most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
}
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_LARGEST = 2**63 - 1


def setting(
    default: T,
    help: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Sequence[Scalar] | None = None,
    repeats: bool = False,
    positional: bool = False,
    short: str = "",
) -> T:
    """A field of settings: its default, one line of help, and the values that make sense.

    For a tuple, the bounds and choices hold for each member; it is never empty unless that is its default,
    and a value stands in it once, unless it ``repeats`` (one of several lists that belong together). On the
    command line it is ``--name``, or ``short``, or has no name at all (``positional``).
    """
    bounds = {"at_least": at_least, "at_most": at_most, "above": above, "below": below}
    limits = {name: bound for name, bound in bounds.items() if bound is not None}
    field: T = dataclasses.field(
        default=default,
        metadata={
            "help": help,
            "limits": limits,
            "choices": choices,
            "repeats": repeats,
            "positional": positional,
            "short": short,
        },
    )
    return field


@dataclass(frozen=True)
class Field:
    """One setting as a user sees it, whichever of the nested dataclasses holds it."""

    name: str
    kinds: tuple[type, ...]
    """The types that a value, or a member of a tuple, may have."""
    several: bool
    """A tuple."""
    default: Value
    help: str
    limits: Mapping[str, float]
    choices: Sequence[Scalar] | None
    repeats: bool
    positional: bool
    short: str
    owner: str
    """The field of the outer dataclass that holds it; empty where there is none between."""

    @property
    def optional(self) -> bool:
        """May it be none?"""
        return type(None) in self.kinds

    def from_text(self, text: str) -> Value:
        """The value that someone wrote: ``3``, ``none``, ``1,2``, ``true``.

        Raises:
            ValueError: it has another type.
        """
        plain = text.strip()
        if self.optional and plain.lower() in ("none", "null"):
            return None
        if not self.several:
            return self._scalar(plain if self.kinds[0] is not str else text)
        if plain[:1] + plain[-1:] in ("[]", "()"):
            plain = plain[1:-1]
        # A word that holds a comma stands in quotes, of either kind.
        quote = "'" if "'" in plain and '"' not in plain else '"'
        try:
            words = next(csv.reader([plain], skipinitialspace=True, quotechar=quote), [])
        except csv.Error as error:
            raise ValueError(text) from error
        return tuple(self._scalar(word.strip()) for word in words if word.strip())

    def _scalar(self, word: str) -> Scalar:
        if bool in self.kinds:
            if word.lower() not in _TRUTH:
                raise ValueError(word)
            return _TRUTH[word.lower()]
        for kind in (int, float):
            if kind in self.kinds:
                return kind(word)
        return word

    def from_file(self, value: Json) -> Value:
        """The value that a YAML file holds: lists become tuples, text of another type is read.

        Raises:
            ValueError: a list in a list, a mapping, or text of another type.
        """
        if isinstance(value, str) and str not in self.kinds:
            return self.from_text(value)
        if isinstance(value, list | tuple):
            given = tuple(one for one in value if isinstance(one, Scalar))
            if len(given) == len(value):
                return given
        if value is not None and not isinstance(value, int | float | str):
            raise ValueError(value)
        return value

    def type_name(self) -> str:
        """``int``, ``float or none``, ``list of int``."""
        names = " or ".join(sorted("none" if kind is type(None) else kind.__name__ for kind in self.kinds))
        return f"list of {names}" if self.several else names

    def check(self, where: str, value: Value) -> None:
        """Raises InputError for a value of the wrong type or out of bounds; ``where`` names the settings."""
        if isinstance(value, tuple) != self.several and not (value is None and self.optional):
            raise InputError(
                f"{where}: setting {self.name} = {abbreviate(value)} has the wrong type; give "
                f"{self.type_name()}."
            )
        members = value if isinstance(value, tuple) else (value,)
        for member in members:
            self._check_member(f"{where}: setting {self.name} = {abbreviate(member)}", member)
        if not members and self.default != ():
            raise InputError(f"{where}: setting {self.name} is empty; give at least one value.")
        if len(set(members)) < len(members) and not self.repeats:
            raise InputError(
                f"{where}: setting {self.name} = {abbreviate(value)} repeats a value; give each once."
            )

    def _check_member(self, where: str, value: Scalar) -> None:
        if not any(_is_a(value, kind) for kind in self.kinds):
            raise InputError(f"{where} has the wrong type; give {self.type_name()}.")
        if self.choices is not None and value not in self.choices and value is not None:
            raise InputError(f"{where} is unknown; {nearest(str(value), map(str, self.choices))}")
        if isinstance(value, str) and "\0" in value:
            raise InputError(f"{where} holds a null character; leave it out.")
        if value is None or isinstance(value, str | bool):
            return
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise InputError(f"{where} is out of range; give a number of at most 63 bits.")
        if not math.isfinite(value):
            raise InputError(f"{where} is not a finite number.")
        if not all(_BOUNDS[key](value, bound) for key, bound in self.limits.items()):
            words = " and ".join(f"{key.replace('_', ' ')} {bound:g}" for key, bound in self.limits.items())
            raise InputError(f"{where} is out of range; give a value {words}.")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of all settings: a frozen keyword-only dataclass whose fields are made with ``setting``.

    A field may hold further settings; its default says with which values. The names of all fields
    together are distinct.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.name in self.fields() and not self.fields()[field.name].owner:
                self.fields()[field.name].check(self.name(), getattr(self, field.name))

    @classmethod
    def name(cls) -> str:
        """What errors call these settings."""
        return cls.__name__.lower()

    @classmethod
    @functools.cache
    def fields(cls) -> Mapping[str, Field]:
        """All settings by name, those of nested dataclasses in the place of the field that holds them."""
        hints = get_type_hints(cls)
        found: dict[str, Field] = {}
        for field in dataclasses.fields(cls):
            default: Value | Settings = getattr(cls, field.name)
            if isinstance(default, Settings):
                given = default.flat()
                found |= {
                    name: dataclasses.replace(one, owner=field.name, default=given[name])
                    for name, one in default.fields().items()
                }
            else:
                kinds, several = _kinds(hints[field.name])
                found[field.name] = Field(
                    name=field.name, kinds=kinds, several=several, default=default, owner="", **field.metadata
                )
        return found

    @classmethod
    def of(cls, **values: Value) -> Self:
        """Settings from flat values; what is not given has its default.

        Raises:
            InputError: an unknown name, or a value that makes no sense.
        """
        fields = cls.fields()
        own: dict[str, Value | Settings] = {}
        nested: dict[str, dict[str, Value]] = {}
        for name, value in values.items():
            if name not in fields:
                raise InputError(f"{cls.name()} has no setting {abbreviate(name)}; {nearest(name, fields)}")
            if fields[name].owner:
                nested.setdefault(fields[name].owner, {})[name] = value
            else:
                own[name] = value
        for field in dataclasses.fields(cls):
            if field.name in nested and isinstance(field.default, Settings):
                own[field.name] = type(field.default).of(**{**field.default.flat(), **nested[field.name]})
        return cls(**own)

    def flat(self) -> dict[str, Value]:
        """All settings by name."""
        return {
            name: getattr(getattr(self, field.owner) if field.owner else self, name)
            for name, field in self.fields().items()
        }

    def as_words(self, beside: Mapping[str, Value]) -> str:
        """The command-line words for what differs from the defaults, and from these values ``beside``."""
        plain, named = [], []
        for name, value in self.flat().items():
            field = self.fields()[name]
            if value == beside.get(name, field.default):
                continue
            if field.positional:
                plain += list(map(as_text, value)) if isinstance(value, tuple) else [as_text(value)]
            elif as_text(value).startswith("-"):  # else it would be read as an option
                named.append(f"--{name.replace('_', '-')}={as_text(value)}")
            else:
                named += [f"--{name.replace('_', '-')}", as_text(value)]
        return shlex.join([*plain, *named])


def as_text(value: Value) -> str:
    """A value as one types it: ``none``, ``true``, ``1,2``."""
    if value is None:
        return "none"
    if isinstance(value, tuple):
        words = io.StringIO()
        csv.writer(words, lineterminator="").writerow(map(as_text, value))
        return words.getvalue()
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kinds(hint: type | types.UnionType) -> tuple[tuple[type, ...], bool]:
    """``tuple[int, ...] | None`` -> (int, NoneType), and whether a tuple; Literal -> its members' types."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        parts = [_kinds(part) for part in get_args(hint)]
        return tuple(kind for kinds, _ in parts for kind in kinds), any(several for _, several in parts)
    if origin is tuple:
        inner = [kind for part in get_args(hint) if part is not Ellipsis for kind in _kinds(part)[0]]
        return tuple(dict.fromkeys(inner)), True
    if origin is Literal:
        return tuple({type(member): None for member in get_args(hint)}), False
    if not isinstance(hint, type):
        raise TypeError(f"a setting cannot be of the type {hint}")
    return (hint,), False


def _is_a(value: Scalar, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)
