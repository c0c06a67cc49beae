"""Where calls are computed: one interface, ``joma.core.progress.Executor``, for every place."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable

from joma.core.errors import InputError, abbreviate
from joma.core.progress import Executor

PROCESSES = "processes"
_CLUSTERS = {"dask": "joma.runs.executors.on_dask", "ray": "joma.runs.executors.on_ray"}


def executor_of(name: str) -> Executor:
    """The executor that a user names: ``processes``, ``dask://HOST:PORT`` or ``ray://HOST:PORT``.

    Raises:
        InputError: it is none of these, or its package is not installed.
    """
    if name == PROCESSES:
        module = importlib.import_module("joma.runs.executors.processes")
        local: Executor = module.local_processes
        return local
    kind, separator, place = name.partition("://")
    if kind not in _CLUSTERS or not separator or not place.rpartition(":")[2].isdigit():
        raise InputError(
            f"executor {abbreviate(name)} is none of {PROCESSES}, dask://HOST:PORT and ray://HOST:PORT; give "
            f"one."
        )
    if importlib.util.find_spec("distributed" if kind == "dask" else kind) is None:
        raise InputError(f"executor {abbreviate(name)} needs: pip install 'joma[{kind}]'.")
    connect: Callable[[str], Executor] = importlib.import_module(_CLUSTERS[kind]).connect
    return connect(place)
