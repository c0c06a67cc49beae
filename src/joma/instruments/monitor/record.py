"""What a monitor has measured so far, in its folder or in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
from torch import Tensor

from joma.core.errors import InputError
from joma.instruments.monitor.alarms.messages import Message
from joma.instruments.monitor.folder import Folder
from joma.instruments.monitor.guard import Guard
from joma.instruments.monitor.measuring.rows import COLUMNS, frame, on_host, set_types


class Record:
    """The rows of a run; numbers of single steps stay on their device until the next look.

    Args:
        guard: what goes wrong with the folder is said, and the rows are kept for the next try.
    """

    def __init__(self, guard: Guard) -> None:
        self.folder: Folder | None = None
        self.tables: list[pd.DataFrame] = []
        """Where there is no folder."""
        self._guard = guard
        self._raw: list[tuple[int, str, Tensor | float]] = []

    def note(self, step: int, metric: str, value: Tensor | float) -> None:
        """One number of one step; a later one of the same step replaces it.

        Raises:
            InputError: it is not one number.
        """
        if isinstance(value, Tensor):
            if value.numel() != 1 or value.is_complex():
                raise InputError(
                    f"a tensor of shape {tuple(value.shape)} and {value.dtype} is not one number."
                )
            # A copy: what a loop adds up in place, or a Trainer scales, is not what this step had.
            self._raw.append((step, metric, value.detach().clone()))
        else:
            self._raw.append((step, metric, float(value)))

    def drain(self) -> pd.DataFrame:
        """The numbers of single steps since the last look, in one transfer."""
        raw, self._raw = self._raw, []
        numbers = iter(on_host([value for _, _, value in raw if isinstance(value, Tensor)]))
        known = [next(numbers) if isinstance(value, Tensor) else value for _, _, value in raw]
        return frame(
            [
                [step, "", None, "", 0, None, metric, value, "", 1]
                for (step, metric, _), value in zip(raw, known, strict=True)
            ]
        )

    def keep(self, table: pd.DataFrame) -> pd.DataFrame:
        """Take rows in; they are returned with the right types."""
        table = set_types(table)
        if self.folder is None:
            self.tables.append(table)
        elif len(table):
            self._guard.attempt("the folder", partial(self.folder.add, table))
        return table

    def table(self) -> pd.DataFrame:
        """Everything measured so far.

        Raises:
            RunDirectoryError: a damaged file of the folder.
        """
        if self.folder is not None:
            return self.folder.table()
        if not self.tables:
            return pd.DataFrame(columns=list(COLUMNS))
        # A number of a step that came later replaces the one before.
        return pd.concat(self.tables, ignore_index=True).drop_duplicates(list(COLUMNS[:7]), keep="last")

    def cut(self, step: int) -> None:
        """Forget this step and all after it: a run that went back takes them anew."""
        self._raw = [entry for entry in self._raw if entry[0] < step]
        self._filter(lambda rows: rows["step"] < step)

    def forget(self, metric: str, after: int) -> None:
        """Forget a number of the steps after this one: it was not what it was taken for."""
        self._raw = [entry for entry in self._raw if entry[1] != metric or entry[0] <= after]
        self._filter(lambda rows: (rows["metric"] != metric) | (rows["step"] <= after))

    def keep_state(self, step: int, of_judge: Callable[[], dict[str, Any]]) -> None:
        """Write what a run that goes on must remember: the last step, and the judge's state."""
        if self.folder is not None:
            self._guard.attempt("the folder", partial(self.folder.keep_state, {"step": step, **of_judge()}))

    def tell(self, messages: list[Message]) -> None:
        """Write the messages of the run, all of them."""
        if self.folder is not None:
            self._guard.attempt("the folder", partial(self.folder.tell, messages))

    def merge(self) -> None:
        """Make one file of the folder's parts."""
        if self.folder is not None:
            self._guard.attempt("the folder", self.folder.merge)

    def release(self) -> None:
        """Let another monitor have the folder."""
        if self.folder is not None:
            self.folder.release()

    def _filter(self, which: Callable[[pd.DataFrame], pd.Series[bool]]) -> None:
        self.tables = [rows[which(rows)] for rows in self.tables]
        if self.folder is not None:
            self._guard.attempt("the folder", partial(self.folder.filter, which))
