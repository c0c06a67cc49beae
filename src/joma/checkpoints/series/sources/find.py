"""From what a user calls a series to the series."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path

from joma.checkpoints.series.names import place_of
from joma.checkpoints.series.sources.local import LocalSeries
from joma.checkpoints.series.sources.source import Series
from joma.core.errors import InputError, abbreviate, contain
from joma.core.files import is_there, user_path

_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_LONGEST_NAME = 200


def find_series(named: Sequence[str], revisions: Sequence[str] = ("all",)) -> Series:
    """A folder of checkpoints, a list of folders and files, or a model of the hub with its revisions.

    Raises:
        InputError: none of these; no step in any name.
    """
    paths = [user_path(name) for name in named]
    series: Series
    with contain(f"the series {', '.join(map(abbreviate, named[:3]))} cannot be listed"):
        if len(named) == 1 and not is_there(paths[0]):
            series = _on_hub(named[0], revisions)
        elif len(named) == 1 and paths[0].is_dir() and not _is_checkpoint(paths[0]):
            series = LocalSeries.of_folder(paths[0])
        else:
            series = LocalSeries(paths)
    if not series.members:
        reasons = "; ".join(note.text for note in series.notes[:3])
        if not reasons and paths[0].is_dir():
            held = sorted(child.name for child in paths[0].iterdir())
            reasons = f"it holds {', '.join(held[:3])}{', ...' * (len(held) > 3)}" if held else ""
        raise InputError(
            f"{', '.join(named[:3])}: no checkpoint whose name tells a step ({reasons or 'nothing there'}); "
            "give names such as step1000 or checkpoint-500."
        )
    return series


def _is_checkpoint(folder: Path) -> bool:
    """A folder with a step in its name that holds none with steps in theirs."""
    return place_of(folder.name) is not None and not any(
        place_of(child.name) for child in folder.iterdir() if child.is_dir()
    )


def _on_hub(name: str, revisions: Sequence[str]) -> Series:
    if len(name) > _LONGEST_NAME or not _HUB_NAME.fullmatch(name):
        raise InputError(
            f"{abbreviate(name)} does not exist; give a folder of checkpoints, or a model's name on the hub."
        )
    if importlib.util.find_spec("huggingface_hub") is None:
        raise InputError(f"there is no {name!r} here, and a series on the hub needs: pip install 'joma[hf]'.")
    from huggingface_hub import constants

    from joma.checkpoints.series.sources import hub

    if constants.HF_HUB_OFFLINE:
        return hub.offline_series(name)
    named = [one for one in revisions if one != "all" and ":" not in one]
    return hub.HubSeries(name, named or None)
