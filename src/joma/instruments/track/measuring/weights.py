"""The weights of one checkpoint of a series, and how they differ from others'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from joma.checkpoints.checkpoint import Checkpoint
from joma.checkpoints.effective import weights_in
from joma.checkpoints.families.sizes import Config
from joma.checkpoints.formats.shard import Rooms, TensorEntry
from joma.checkpoints.omissions import OMITTED
from joma.checkpoints.omissions import Row as RankRow
from joma.checkpoints.ranks import rank_rows
from joma.checkpoints.series.alike import ROLES, matrices_by_key
from joma.checkpoints.series.sources.source import Wanted
from joma.core.progress import Progress
from joma.instruments.track.measuring.changes import changes
from joma.instruments.track.measuring.rows import Row, table_of


def wanted_tensors(layers: Sequence[int] | None) -> Wanted:
    """Which tensors the weights alone need, with the scales, masks and factors that they are made of."""

    def choose(entries: Mapping[str, TensorEntry], config: Config) -> set[str]:
        weights = weights_in(entries, config)
        return {
            part
            for matrix in matrices_by_key(weights, config, ROLES, layers).values()
            for part in weights[matrix.tensor].parts
        }

    return choose


def weights_table(
    checkpoint: Checkpoint, layers: Sequence[int] | None, rooms: Rooms | None = None
) -> pd.DataFrame:
    """Stable rank and spectral norm of every matrix, as ``joma.probe_weights`` finds them.

    What it leaves out stands in rows of metric ``omitted``.
    """
    rows = rank_rows(checkpoint, ROLES, layers=layers, progress=Progress(quiet=True), rooms=rooms)
    return table_of([_row(row) for row in rows])


def _row(row: RankRow) -> Row:
    left = row["metric"] == OMITTED or bool(row["reason"])
    return Row(
        row["layer"],
        row["stack"],
        row["expert"],
        None,
        row["matrix"],
        row["metric"],
        "",
        row["value"],
        row["unit"],
        row["error_bound"],
        row["dtype"],
        row["tensor"] if left else "",
        row["reason"],
    )


def changes_table(
    checkpoint: Checkpoint,
    earlier: Sequence[tuple[str, Checkpoint]],
    layers: Sequence[int] | None,
    rooms: Rooms | None = None,
    heads: int | None = None,
) -> pd.DataFrame:
    """What ``joma.instruments.track.measuring.changes.changes`` finds."""
    return table_of(changes(checkpoint, earlier, ROLES, layers, rooms, heads))
