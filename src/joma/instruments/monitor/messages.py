"""What a monitor says: alarms about changes, messages about states, and what to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

Kind = Literal["alarm", "state", "spike", "not valid"]

LOW_ENTROPY = 0.1
"""Share of log n below which a head is said to look at one key."""
LARGE_LOGIT = 100.0
DEAD = 1e-6
"""Share of its input that a layer adds to the residual stream, below which it is said to be dead."""
_ADVICE = {
    "attention_entropy": "normalise queries and keys (qk-norm), or lower the rate of W_Q and W_K",
    "largest_logit": "normalise queries and keys (qk-norm), or clip W_Q and W_K until logits are below 100",
    "residual_rms": "lower the rate of the MLP and the output projections, or norm the residual stream",
    "residual_update": "look at its gradients: a gate that is shut, a scale of 0, or units that never fire",
    "loss": "go back to a checkpoint before this step, and lower the learning rate",
}


@dataclass(frozen=True)
class Message:
    """One thing worth telling.

    An ``alarm`` is a change against the run's own past; a ``state`` is a level, whatever came before; a
    ``spike`` is a loss that rose and came back; ``not valid`` withdraws the alarm's probability.
    """

    step: int
    kind: Kind
    where: str
    """``layer 3, head 1``, or ``loss``."""
    metric: str
    what: str
    since: int
    """Step at which it began, as far as the looks can tell."""
    sure: str
    """How sure: a probability of a false alarm, or that a level needs none."""

    def advice(self) -> str:
        """One line on what to do."""
        return _ADVICE.get(self.metric, "")

    def sentence(self) -> str:
        """The whole message."""
        advice = f" To do: {self.advice()}." if self.advice() else ""
        return f"step {self.step}: {self.where}: {self.what}, since step {self.since} ({self.sure}).{advice}"

    def as_dict(self) -> dict[str, str | int]:
        """The fields, ready for JSON."""
        return dataclasses.asdict(self)


def states(table: pd.DataFrame, since: dict[str, int]) -> list[Message]:
    """Levels that one look shows: heads that look at one key, logits beyond 100, values that are no numbers,
    layers that add nothing.

    Args:
        table: one step of a monitor's table.
        since: where each state that still lasts began; changed in place, so that each is told once.

    Returns:
        The states that begin at this step.
    """
    if table.empty:
        return []
    step = int(table["step"].iloc[0])
    found: dict[str, tuple[Entry, str, str]] = {}
    lasting: set[str] = set()
    entries = list(seen_in(table))
    for row in entries:
        value, key = row.value, f"{row.module} {row.call} {row.head}"
        # A state has ended when its value is twice as far from it, not when it crosses the level by a little.
        if row.metric == "normalised_entropy" and value < 2 * LOW_ENTROPY:
            lasting.add(f"{key} entropy")
        if row.metric == "largest_logit" and value > LARGE_LOGIT / 2:
            lasting.add(f"{key} logit")
        if row.metric == "residual_update" and value < 2 * DEAD:
            lasting.add(f"{key} update")
        if row.metric == "normalised_entropy" and value < LOW_ENTROPY:
            what = f"attention is on one key (entropy {value:.3f} of log n)"
            found[f"{key} entropy"] = (row, "attention_entropy", what)
        elif row.metric == "largest_logit" and value > LARGE_LOGIT:
            found[f"{key} logit"] = (row, "largest_logit", f"its largest logit is {value:.0f}")
        elif row.metric == "residual_rms" and not np.isfinite(value):
            found[f"{key} residual"] = (row, "residual_rms", "the residual stream is not finite")
        elif row.metric == "residual_update" and value < DEAD:
            what = f"the layer is dead: it adds {value:.1g} of what it reads to the residual stream"
            found[f"{key} update"] = (row, "residual_update", what)
    for key in [key for key in since if key not in found and key not in lasting]:
        del since[key]
    told = []
    for key, (row, metric, what) in found.items():
        if key not in since:
            since[key] = step
            where = place(row, entries)
            told.append(Message(step, "state", where, metric, what, step, "a level, not a change"))
    return told


class Entry(NamedTuple):
    """One row of a monitor's table."""

    metric: str
    module: str
    call: int
    layer: int | None
    head: int | None
    value: float


def seen_in(table: pd.DataFrame) -> Iterator[Entry]:
    """The rows of a table, column by column: on a small model that is most of what a look costs."""
    columns = (table[name].astype(object) for name in ("metric", "module", "call", "layer", "head", "value"))
    for metric, module, call, layer, head, value in zip(*columns, strict=True):
        yield Entry(metric, module, int(call), whole(layer), whole(head), float(value))


def place(row: Entry, entries: Sequence[Entry]) -> str:
    """``layer 3, head 1``; its module's name alone where it has neither, and beside it where the layer has
    several attentions, or several calls of one, among the entries."""
    words = [] if row.layer is None else [f"layer {row.layer}"]
    words += [] if row.head is None else [f"head {row.head}"]
    others = {(one.module, one.call) for one in entries if one.layer == row.layer and one.head is not None}
    if row.head is not None and len(others) > 1:
        words.append(f"{row.module}" + (f", call {row.call}" if row.call else ""))
    return ", ".join(words) or row.module


def whole(value: Any) -> int | None:
    """A table's integer, or None for what is missing in it."""
    return None if pd.isna(value) else int(value)
