"""All cells of a sweep, and their tables as one."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.errors import UnfinishedError
from joma.core.progress import Progress
from joma.core.settings import Value
from joma.runs.parts import CELLS, RunProgress
from joma.sweeps import SweepSettings
from joma.sweeps.cells import compute_cells, tables_of
from joma.sweeps.grid import DONE


def run(settings: SweepSettings, progress: Progress) -> dict[str, pd.DataFrame]:
    """Compute what is missing, then gather.

    Raises:
        UnfinishedError: not one cell could be computed, or the disk is full.
        TypeError: the progress has no directory, which a sweep's cells need.
    """
    if not isinstance(progress, RunProgress):
        raise TypeError("a sweep needs a run directory")
    cells, varied = settings.grid_cells(), settings.varied_settings()
    folder = progress.directory / CELLS
    status = compute_cells(cells, folder, progress, settings.experiment)
    if not (status["status"] == DONE).any():
        raise UnfinishedError(
            f"not one of {len(cells)} cells could be computed; the first: {status['error'].iloc[0]}"
        )
    done = [cell for cell, state in zip(cells, status["status"], strict=True) if state == DONE]
    table = pd.concat(
        [status, pd.DataFrame([varied[cell] for cell in status["cell"]], index=status.index)], axis=1
    )
    whole = settings.whole()
    if whole is not None:
        own = settings.own("run")
        found = tables_of(done, folder, own.GATHERED)
        shared = {name: _below(parts).drop(columns="cell") for name, parts in found.items()}
        return {"cells": table, **own.tables(whole, shared)}
    found = tables_of(done, folder)
    return {"cells": table, **{name: _with_settings(_below(parts), varied) for name, parts in found.items()}}


def _below(parts: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(parts, ignore_index=True)


def _with_settings(table: pd.DataFrame, varied: Mapping[str, Mapping[str, Value]]) -> pd.DataFrame:
    """The settings that differ in front, but for those that the table has itself."""
    settings = pd.DataFrame.from_dict({cell: varied[cell] for cell in table["cell"].unique()}, orient="index")
    new = [name for name in settings.columns if name not in table.columns]
    front = settings[new].reindex(table["cell"]).reset_index(drop=True)
    return pd.concat([front, table], axis=1)
