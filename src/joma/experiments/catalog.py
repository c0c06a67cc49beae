"""All experiments by name. Finding one imports its module alone, and nothing heavy."""

from __future__ import annotations

import importlib
import pkgutil

import joma.experiments
from joma.errors import InputError, nearest
from joma.experiments.base import Experiment

_NOT_EXPERIMENTS = {"base", "catalog"}


def names() -> list[str]:
    """The experiments' names, sorted: the modules of this package, helpers (``_...``) left out."""
    modules = (module.name for module in pkgutil.iter_modules(joma.experiments.__path__))
    return sorted(name for name in modules if name not in _NOT_EXPERIMENTS and not name.startswith("_"))


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
