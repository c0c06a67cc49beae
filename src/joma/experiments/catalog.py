"""All experiments by name. Finding one imports its module alone, and nothing heavy."""

from __future__ import annotations

import importlib
import pkgutil

import joma.experiments
from joma.errors import InputError, nearest
from joma.experiments.base import Experiment


def names() -> list[str]:
    """The experiments' names, sorted: the folders of this package."""
    return sorted(module.name for module in pkgutil.iter_modules(joma.experiments.__path__) if module.ispkg)


def find(name: str) -> type[Experiment]:
    """The experiment of that name.

    Raises:
        InputError: there is none; the message names the nearest.
    """
    if name not in names():
        raise InputError(f"there is no experiment {name!r}; {nearest(name, names())} (see: joma list)")
    module = importlib.import_module(f"joma.experiments.{name}")
    (experiment,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Experiment) and value.__module__ == module.__name__
    )
    return experiment
