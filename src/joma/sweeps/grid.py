"""Grids as people write them, ``learning_rate=1e-5,1e-4 seed=1..3``, and the cells that they stand for."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence

from joma.core.errors import InputError, abbreviate, nearest
from joma.core.settings import Field, Value, as_text
from joma.runs.job import Job

MOST_CELLS = 100_000
DONE, FAILED = "done", "failed"
"""What a table of cells says of each."""
_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})")
Axes = Mapping[str, Sequence[Value]]


def axes_of(words: Sequence[str], job: type[Job]) -> dict[str, Sequence[Value]]:
    """Setting -> its values, from words of the form ``name=1,2`` or ``name=1..3``.

    Raises:
        InputError: no such form, no such setting, no value, one twice, or one of another type.
    """
    axes: dict[str, Sequence[Value]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise InputError(f"sweep: --grid {abbreviate(word)} is not of the form name=1,2 or name=1..3.")
        if name not in job.fields():
            raise InputError(
                f"sweep: {job.name()} has no setting {abbreviate(name)}; {nearest(name, job.fields())} (see: "
                f"joma sweep {job.name()} --help)"
            )
        if name in axes:
            raise InputError(f"sweep: --grid names {name} twice; give all its values at once.")
        axes[name] = _values(job, job.fields()[name], text)
    return axes


def _values(job: type[Job], field: Field, text: str) -> Sequence[Value]:
    found: Sequence[Value]
    span = _RANGE.fullmatch(text.strip())
    if span and int in field.kinds:
        first, last = int(span[1]), int(span[2])
        numbers = range(first, last + 1)
        if len(numbers) > MOST_CELLS:
            raise InputError(
                f"sweep: --grid {field.name}={text} are {len(numbers):,} values, more than {MOST_CELLS:,}."
            )
        found = [(number,) if field.several else number for number in numbers]
    else:
        words = Field.from_text(_AS_LIST, text)
        assert isinstance(words, tuple)
        try:
            found = [field.from_text(str(word)) for word in words]
        except (ValueError, OverflowError):
            raise InputError(
                f"sweep: --grid {field.name}={abbreviate(text)[1:-1]} holds what is no {field.type_name()}."
            ) from None
    if not found:
        raise InputError(f"sweep: --grid {field.name}={text} holds no value; give some, or leave it out.")
    if len(set(found)) < len(found):
        raise InputError(
            f"sweep: --grid {field.name}={abbreviate(text)[1:-1]} holds a value twice; give each once."
        )
    for value in found:
        field.check(job.name(), value)
    return found


_AS_LIST = Field(
    name="",
    kinds=(str,),
    several=True,
    default=(),
    help="",
    limits={},
    choices=None,
    repeats=True,
    positional=False,
    short="",
    owner="",
)


def as_words(grid: Mapping[str, Sequence[Value]]) -> tuple[str, ...]:
    """The words for a grid that Python holds: ``{"seed": range(1, 4)}`` -> ``seed=1,2,3``."""
    found = []
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise InputError(
                f"sweep: grid[{name!r}] = {abbreviate(values)} is not a list of values; give one."
            )
        if len(values) > MOST_CELLS:
            raise InputError(f"sweep: grid[{name!r}] has {len(values):,} values, more than {MOST_CELLS:,}.")
        found.append(f"{name}={as_text(tuple(map(as_text, values)))}")
    return tuple(found)


def cells_of(base: Job, axes: Axes) -> list[Job]:
    """The cells of a grid about these settings: each combination, divided into what is one training.

    A grid over ``seed`` is one of single seeds, however many the settings have.

    Raises:
        InputError: more than ``MOST_CELLS``, or a combination that makes no sense.
    """
    divided = type(base).cells is not Job.cells and "seed" not in axes
    seeds = base.flat().get("seeds", 1) if divided else 1
    least = math.prod(map(len, axes.values())) * (seeds if isinstance(seeds, int) else 1)
    if least > MOST_CELLS:
        raise InputError(f"sweep: the grid has {least:,} cells or more, above {MOST_CELLS:,}; divide it.")
    alone: dict[str, Value] = {"seeds": 1} if "seed" in axes and "seeds" in base.fields() else {}
    cells: dict[str, Job] = {}
    for values in itertools.product(*axes.values()):
        combined = type(base).of(**{**base.flat(), **alone, **dict(zip(axes, values, strict=True))})
        for cell in combined.cells():
            cells.setdefault(key(cell), cell)
    if len(cells) > MOST_CELLS:
        raise InputError(f"sweep: the grid has {len(cells):,} cells, more than {MOST_CELLS:,}; divide it.")
    return list(cells.values())


def key(cell: Job) -> str:
    """The name of a cell's directory: a hash of what it is, its free settings left out."""
    settings = {name: value for name, value in cell.flat().items() if name not in cell.free}
    content = json.dumps([cell.name(), settings], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def whole_of(cells: Sequence[Job]) -> Job | None:
    """The settings whose own cells these are, or None where there are none such."""
    first = cells[0]
    values = first.flat()
    for name, field in first.fields().items():
        seen = list(dict.fromkeys(cell.flat()[name] for cell in cells))
        if len(seen) == 1:
            continue
        if field.several:
            members = {member for one in seen if isinstance(one, tuple) for member in one}
            values[name] = tuple(sorted(members, key=lambda member: (str(type(member)), member)))
        elif name == "seed" and "seeds" in values:
            seeds = [seed for seed in seen if isinstance(seed, int)]
            values |= {"seed": min(seeds), "seeds": max(seeds) - min(seeds) + 1}
        else:
            return None
    whole = type(first).of(**values)
    return whole if {key(cell) for cell in whole.cells()} == {key(cell) for cell in cells} else None
