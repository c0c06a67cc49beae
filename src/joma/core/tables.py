"""Tables: those that a user holds together, and the rows of one by the values of its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from joma.core.errors import InputError, nearest

if TYPE_CHECKING:
    import pandas

_ROWS = 40
"""Most rows of a table in a notebook; the middle of a longer one is left out."""


class Tables:
    """The face of what is made of tables by name; a subclass has them as ``tables``."""

    tables: Mapping[str, pandas.DataFrame]

    def table(self, name: str = "") -> pandas.DataFrame:
        """Return one of the tables: the one that is named, or the one that one looks at first.

        Raises:
            InputError: no table has this name; the message names the nearest.
        """
        if name and name not in self.tables:
            raise InputError(f"there is no table {name!r}; {nearest(name, self.tables)}")
        return self.tables[name or self.first_table()]

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Hand the first table to whatever reads Arrow streams: ``polars.DataFrame(found)``, duckdb, pyarrow.

        The other tables are pandas data frames, which are read the same way.
        """
        return self.table().__arrow_c_stream__(requested_schema)

    def first_table(self) -> str:
        """Return the name of the table that one looks at first: ``layers``, or the first of all."""
        return "layers" if "layers" in self.tables else next(iter(self.tables), "")

    def answer(self) -> Sequence[str]:
        """State in one to three sentences what was measured; empty where the tables say it all."""
        return []

    def __repr__(self) -> str:
        named = ", ".join(f"{name} ({len(table)} rows)" for name, table in self.tables.items())
        return f"<{type(self).__name__}: {named or 'no tables'}>"

    def _repr_html_(self) -> str:
        """For notebooks: the answer, the table that one looks at first, and the names of all."""
        parts = [f"<p>{escape(' '.join(self.answer()))}</p>", f"<p>{escape(repr(self))}</p>"]
        first = self.first_table()
        if first:
            parts.append(frame_html(self.tables[first], first))
        return "\n".join(parts)


def rows(table: pandas.DataFrame, /, **columns: object) -> pandas.DataFrame:
    """The rows in which every named column has the given value: ``rows(curves, metric="kappa", layer=0)``.

    A list or tuple stands for any of its values.
    """
    for name, value in columns.items():
        column = table[name]
        table = table[column.isin(value) if isinstance(value, list | tuple) else column == value]
    return table


def frame_html(table: pandas.DataFrame, name: str) -> str:
    """A table as HTML, escaped, four digits a number, under its name."""
    shown = table.to_html(
        max_rows=_ROWS, index=False, float_format="{:.4g}".format, na_rep="", border=0, show_dimensions=True
    )
    return f"<p><b>{escape(name)}</b></p>\n{shown}"
