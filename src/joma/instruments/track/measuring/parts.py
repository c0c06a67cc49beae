"""Finished parts of a series: kept by the run's directory, and found again without reading them anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import pandas as pd

from joma.checkpoints.series.audit.content import MemberContent
from joma.core.progress import Progress
from joma.instruments.track.measuring.placing import Piece


@dataclass(frozen=True)
class KeptCheckpoint:
    """A checkpoint that was measured, from the files that it then had."""

    content: str
    values: Piece
    details: dict[str, Piece]


@dataclass
class Parts:
    """Tables by name, each computed once."""

    progress: Progress
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    contents: dict[str, MemberContent] = field(default_factory=dict)
    """What an audit read of the members, for when the series has grown."""
    checkpoints: dict[tuple[str, str], KeptCheckpoint] = field(default_factory=dict)
    """Series and name -> what was measured: a checkpoint may be gone when the series is looked at again."""

    def part(self, name: str, compute: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """The table of this name."""
        if name not in self.tables:
            self.tables[name] = self.progress.part(name, compute)
        return self.tables[name]

    def several(
        self, names: Mapping[str, str], compute: Callable[[], dict[str, pd.DataFrame]]
    ) -> dict[str, pd.DataFrame]:
        """The tables of one computation: what it calls them -> what their parts are called."""
        computed: dict[str, pd.DataFrame] = {}

        def one(table: str) -> pd.DataFrame:
            if not computed:
                computed.update(compute())
            return computed[table]

        return {table: self.part(part, partial(one, table)) for table, part in names.items()}
