"""Go back to the last checkpoint from before an alarm began."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from joma.checkpoints.checkpoint import open_checkpoint
from joma.checkpoints.series.names import is_no_member, place_of
from joma.core.errors import InputError
from joma.core.files import user_path

Restore = Callable[[int], object] | str | Path
"""A function of the last quiet step, or a folder of checkpoints whose names tell their steps."""


def check_restore(restore: Any, *, wanted: bool) -> None:
    """Raises InputError where an act needs checkpoints and there are none to be had."""
    if wanted and restore is None:
        raise InputError(
            "on_alarm = 'restore' in Monitor has no checkpoints; give restore=, a function of the last quiet "
            "step or a folder of checkpoints."
        )
    if isinstance(restore, str | Path) and user_path(restore).exists() and not user_path(restore).is_dir():
        raise InputError(f"restore = {str(restore)!r} in Monitor is no folder; give one of checkpoints.")
    if restore is not None and not callable(restore) and not isinstance(restore, str | Path):
        raise InputError(
            f"restore = {restore!r} in Monitor; give a function of the last quiet step, or a folder."
        )


def go_back(restore: Restore, quiet: int, model: nn.Module, optimizer: Optimizer | None) -> str:
    """Restore the weights of the last quiet step; what was done, in words.

    Raises:
        InputError: no checkpoint is that old, or it is another model's.
    """
    if callable(restore):
        restore(quiet)
        return f"restore({quiet}) was called"
    folder = user_path(restore)
    found = [
        (place.step, path)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if not is_no_member(path.name)
        and (place := place_of(path.name)) is not None
        and place.unit == "step"
        and place.step <= quiet
    ]
    if not found:
        raise InputError(
            f"{folder} holds no checkpoint of step {quiet} or before, whose name tells its step."
        )
    _, path = max(found, key=lambda entry: entry[0])
    load_weights(path, model)
    moments = ""
    if optimizer is not None:
        optimizer.state.clear()
        moments = "; the optimizer's moments begin anew"
    return f"the weights of {path.name} were put back{moments} (quiet until step {quiet})"


def load_weights(path: Path, model: nn.Module) -> None:
    """Copy a checkpoint's tensors into a model's own, all of them or none.

    Raises:
        InputError: a weight is missing there, or has another shape.
    """
    checkpoint = open_checkpoint(path)
    stored = checkpoint.entries
    targets = {name.replace("_orig_mod.", ""): weight for name, weight in model.named_parameters()}
    missing = sorted(set(targets) - set(stored))
    if missing:
        raise InputError(
            f"{path} has no weight {missing[0]!r} of this {type(model).__name__}; it is another model's."
        )
    values = {name: checkpoint.read(name) for name in targets}
    for name, weight in targets.items():
        if values[name].shape != weight.shape:
            raise InputError(
                f"{name} in {path} has shape {tuple(values[name].shape)}, and {tuple(weight.shape)} in this "
                f"{type(model).__name__}; it is another model's."
            )
    with torch.no_grad():
        for name, weight in targets.items():
            weight.copy_(values[name])
