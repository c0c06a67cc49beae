"""joma: the laboratory for the training dynamics of transformers.

Nothing heavy is imported before it is used: a public name is imported when it is first asked for. The names
and their homes stand in ``__init__.pyi``, which type checkers read, too.
"""

from __future__ import annotations

import importlib
import sys
import warnings

if sys.version_info < (3, 11):  # noqa: UP036 (whoever sets PYTHONPATH passes pip by)
    raise ImportError(
        "joma needs Python 3.11 or newer, and this is {}.{}: make an environment with a newer Python.".format(
            *sys.version_info
        )
    )

_RENAMED = {
    "Neurons": "NeuronsResult",
    "Probe": "ProbeResult",
    "Result": "RunResult",
    "Sweep": "SweepResult",
    "Track": "TrackResult",
    "write_probe": "ProbeResult.save",
}
"""Public names of earlier versions -> what took their place."""


def _read_homes() -> dict[str, tuple[str, str]]:
    """Public name -> its module and its name there, as the stub beside this file says."""
    with open(f"{__path__[0]}/__init__.pyi", encoding="utf-8") as stub:
        words = [line.split() for line in stub if line.startswith("from ")]
    return {public: (module, name) for _, module, _, name, _, public in words}


_HOMES = _read_homes()
__all__ = sorted(name for name, (module, _) in _HOMES.items() if module != "joma")


def __getattr__(name: str) -> object:
    if name in _HOMES:
        module, own = _HOMES[name]
        try:
            if module == "joma":
                return importlib.import_module(f"joma.{name}")
            return getattr(importlib.import_module(module), own)
        except (ImportError, AttributeError) as error:
            _explain(error)
            raise
    if name in _RENAMED:
        warnings.warn(f"joma.{name} is now joma.{_RENAMED[name]}", DeprecationWarning, stacklevel=2)
        place = __getattr__(_RENAMED[name].partition(".")[0])
        method = _RENAMED[name].partition(".")[2]
        return getattr(place, method) if method else place
    raise AttributeError(f"module 'joma' has no attribute {name!r}")


def _explain(error: Exception) -> None:
    """Raise one sentence where a package is missing or too old."""
    from joma.core.errors import MissingPackageError
    from joma.core.version import find_outdated

    said = "" if isinstance(error, MissingPackageError) else find_outdated()
    if said:
        raise MissingPackageError(said) from error


def __dir__() -> list[str]:
    return sorted(_HOMES)
