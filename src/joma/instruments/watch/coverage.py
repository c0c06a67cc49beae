"""Which attentions were seen, module by module, and what became of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import pandas

from joma.instruments.watch.selection import layer_number

Status = Literal["measured", "not asked for", "not measured", "no attention"]

_COLUMNS = ["module", "layer", "route", "operation", "calls", "status", "reason"]


@dataclass
class Entry:
    """What became of a module's attentions."""

    route: str
    operation: str
    status: Status
    calls: int = 0
    reason: str = ""


class Coverage:
    """The attentions of a model by module, in the order they were seen, and softmaxes that are none."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.excluded: Counter[tuple[str, str, str]] = Counter()
        """(module, operation, reason) -> how often."""

    def note(self, name: str, route: str, operation: str, status: Status, reason: str = "") -> None:
        """Another call of a module; one that was not measured counts for all."""
        entry = self.entries.setdefault(name, Entry(route, operation, status))
        entry.calls += 1
        if status == "not measured" and entry.status != status:
            entry.route, entry.operation, entry.status = route, operation, status
        if reason and not entry.reason:
            entry.reason = reason

    def exclude(self, name: str, operation: str, reason: str) -> None:
        """A softmax that is no attention."""
        self.excluded[name, operation, reason] += 1

    def take_back(self, name: str) -> None:
        """A call that counted proved to be none."""
        self.entries[name].calls -= 1
        if not self.entries[name].calls:
            del self.entries[name]

    def layer(self, name: str) -> int:
        """The layer of a module: the number in its name, or its place among those seen."""
        number = layer_number(name)
        return list(self.entries).index(name) if number is None else number

    def table(self, model: str, silent: Iterable[tuple[str, bool]]) -> pandas.DataFrame:
        """The table of ``joma.instruments.watch.watch.Watch.coverage``.

        Args:
            model: the name of what has none.
            silent: modules that look like attention and were not seen to be, and whether they were asked for.
        """
        rows: list[tuple[str, int | None, str, str, int, Status, str]] = [
            (name or model, self.layer(name), one.route, one.operation, one.calls, one.status, one.reason)
            for name, one in self.entries.items()
        ]
        unseen = "it ran, and no softmax attention was seen in it"
        rows += [
            (name, layer_number(name), "none", "", 0, "not measured" if asked else "not asked for", unseen)
            for name, asked in silent
        ]
        rows += [
            (name or model, layer_number(name), "none", operation, calls, "no attention", reason)
            for (name, operation, reason), calls in self.excluded.items()
        ]
        return pandas.DataFrame(rows, columns=_COLUMNS).astype({"layer": "Int64"})
