"""All experiments by name. Finding one imports only its own module, and nothing heavy."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, TypedDict

from joma.core.errors import InputError, nearest
from joma.experiments.base import Experiment

if TYPE_CHECKING:
    import pandas

GROUPS = ("joma_paper", "scan_snap", "beyond")
"""The packages below ``joma.experiments`` whose folders are experiments."""


_OWNERS_NAMED = 3


class Overview(TypedDict):
    """What one sees of an experiment before running it."""

    name: str
    title: str
    reproduces: str
    cost: dict[str, str]


def names() -> list[str]:
    """The experiments' names, sorted: the folders of the groups."""
    return sorted(_modules())


def list_experiments() -> pandas.DataFrame:
    """List the experiments: one row each, with what it reproduces and what it costs.

    Returns:
        Columns ``name``, ``title``, ``reproduces`` (the figure or table of a paper), and ``cost``, preset by
        preset: processor time where it was measured (``50 s``), else an estimate for two cores.

    Examples:
        >>> joma.list_experiments().set_index("name").loc["fig4", "reproduces"]
        'JoMA Fig. 4'
    """
    import pandas

    return pandas.DataFrame(overview())


def overview() -> list[Overview]:
    """The experiments as ``joma list --json`` prints them."""
    return [
        {"name": name, "title": kind.title, "reproduces": kind.reproduces, "cost": kind.costs()}
        for name, kind in ((name, find(name)) for name in names())
    ]


def find(name: str) -> type[Experiment]:
    """The experiment of that name.

    Raises:
        InputError: there is none; the message names the nearest.
    """
    modules = _modules()
    if name not in modules:
        raise InputError(f"there is no experiment {name!r}; {nearest(name, names())} (see: joma list)")
    module = importlib.import_module(modules[name])
    (experiment,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Experiment) and value.__module__ == module.__name__
    )
    return experiment


def tell_owners(setting: str) -> str:
    """Which experiments have a setting of this name, as a clause; empty where none has."""
    owners = [name for name in names() if setting in find(name).fields()]
    if not owners:
        return ""
    more = f" and {len(owners) - _OWNERS_NAMED} more" if len(owners) > _OWNERS_NAMED else ""
    return f"it is a setting of {', '.join(owners[:_OWNERS_NAMED])}{more}"


def _modules() -> dict[str, str]:
    """Name of an experiment -> its module."""
    groups = [importlib.import_module(f"joma.experiments.{group}") for group in GROUPS]
    return {
        module.name: f"{group.__name__}.{module.name}"
        for group in groups
        for module in pkgutil.iter_modules(group.__path__)
        if module.ispkg
    }
