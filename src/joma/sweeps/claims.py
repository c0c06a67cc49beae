"""What a sweep found: the claims of its experiment, where the grid is its own, and how much was run."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim
from joma.sweeps import SweepSettings
from joma.sweeps.grid import DONE


def claims(settings: SweepSettings, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """The experiment's, from the cells that are done; none of another grid."""
    whole = settings.whole()
    return [] if whole is None else whole.claims(tables)


def answer(settings: SweepSettings, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """How many cells are done, and what the experiment says of them."""
    status = tables["cells"]["status"]
    done = int((status == DONE).sum())
    failed = (
        f"; {len(status) - done} failed, and the same command tries them again" if done < len(status) else ""
    )
    said = f"{done} of {len(status)} cells of {settings.experiment} are done{failed}."
    whole = settings.whole()
    if whole is None:
        return [f"{said} The grid is not one that {settings.experiment} judges; the tables have all cells."]
    own = whole.answer(tables)
    return [said, *own[:2]] if done < len(status) else own
