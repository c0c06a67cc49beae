"""All experiments by name. Finding one imports only its own module, and nothing heavy."""

from __future__ import annotations

import importlib
import pkgutil

from joma.core.errors import InputError, nearest
from joma.experiments.base import Experiment

GROUPS = ("joma_paper", "scan_snap", "beyond")
"""The packages below ``joma.experiments`` whose folders are experiments."""


def names() -> list[str]:
    """The experiments' names, sorted: the folders of the groups."""
    return sorted(_modules())


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


def _modules() -> dict[str, str]:
    """Name of an experiment -> its module."""
    groups = [importlib.import_module(f"joma.experiments.{group}") for group in GROUPS]
    return {
        module.name: f"{group.__name__}.{module.name}"
        for group in groups
        for module in pkgutil.iter_modules(group.__path__)
        if module.ispkg
    }
