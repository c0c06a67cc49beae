"""What a monitor says: alarms about changes, messages about states, and what to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

Kind = Literal["alarm", "state", "spike", "not valid", "not judged", "act", "change"]

LOW_ENTROPY = 0.1
"""Share of log n below which a head is said to look at one key."""
LARGE_LOGIT = 100.0
_NAMED = 4
"""Places that a message names one by one."""
DEAD = 1e-6
"""Share of its input that a layer adds to the residual stream, below which it is said to be dead."""
_ADVICE = {
    "attention_entropy": "normalise queries and keys (qk-norm), or lower the rate of W_Q and W_K",
    "log_spectral_norm": "lower the rate of W_Q and W_K, normalise queries and keys (qk-norm), or clip them "
    "(on_alarm='qk_clip')",
    "largest_logit": "normalise queries and keys (qk-norm), or clip W_Q and W_K until logits are below 100",
    "residual_rms": "lower the rate of the MLP and the output projections, or norm the residual stream",
    "residual_update": "look at its gradients: a gate that is shut, a scale of 0, or units that never fire",
    "loss": "go back to a checkpoint before this step, and lower the learning rate",
}
_WORST = ("residual_rms", "attention_entropy", "largest_logit", "residual_update")
"""What states are about, the worst first."""


@dataclass(frozen=True)
class Message:
    """One thing worth telling.

    An ``alarm`` is a change against the run's own past; a ``state`` is a level, whatever came before; a
    ``spike`` is a loss that rose and came back; ``not valid`` and ``not judged`` are changes for which no
    probability is claimed: the run does not meet the bound's assumptions, or has not shown yet whether
    it does. An ``act`` is what the monitor did to the model or its optimizer, a ``change`` what someone else
    changed: a learning rate, a weight decay, the batch.
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
    to_do: str = ""
    """What to do, where that is not what the metric alone says."""

    def advice(self) -> str:
        """One line on what to do."""
        return self.to_do or _ADVICE.get(self.metric, "")

    def sentence(self) -> str:
        """The whole message."""
        if self.kind in ("act", "change"):
            return f"step {self.step}: {self.where}: {self.what}."
        advice = f" To do: {self.advice()}." if self.advice() else ""
        return f"step {self.step}: {self.where}: {self.what}, since step {self.since} ({self.sure}).{advice}"

    def as_dict(self) -> dict[str, str | int]:
        """The fields, ready for JSON."""
        return dataclasses.asdict(self)


def states(
    table: pd.DataFrame, since: dict[str, int], *, first: bool = False, rate: float | None = None
) -> list[Message]:
    """Levels that one look shows: heads that look at one key, logits beyond 100 of either sign, values that
    are not numbers, layers that add nothing.

    Args:
        table: one step of a monitor's table.
        since: where each state that still lasts began; changed in place, so that each is told once.
        first: whether it is the run's first look.
        rate: the learning rate, where it is known.

    Returns:
        The states that begin at this step, the worst first: one message for all places of a kind.
    """
    if table.empty:
        return []
    step = int(table["step"].iloc[0])
    found: dict[str, tuple[Entry, str]] = {}
    lasting: set[str] = set()
    entries = list(seen_in(table))
    for row in entries:
        value, key = row.value, f"{row.module} {row.call} {row.head}"
        # A state has ended when its value is twice as far from it, not when it crosses the level by a little.
        if row.metric == "normalised_entropy" and value < 2 * LOW_ENTROPY:
            lasting.add(f"{key} entropy")
        if row.metric == "largest_logit" and abs(value) > LARGE_LOGIT / 2:
            lasting.add(f"{key} logit")
        if row.metric == "residual_update" and value < 2 * DEAD:
            lasting.add(f"{key} update")
        if row.metric == "normalised_entropy" and value < LOW_ENTROPY:
            found[f"{key} entropy"] = row, "attention_entropy"
        elif row.metric == "largest_logit" and abs(value) > LARGE_LOGIT:
            found[f"{key} logit"] = row, "largest_logit"
        elif row.metric == "residual_rms" and not np.isfinite(value):
            found[f"{key} residual"] = row, "residual_rms"
        elif row.metric == "residual_update" and value < DEAD:
            found[f"{key} update"] = row, "residual_update"
    for key in [key for key in since if key not in found and key not in lasting]:
        del since[key]
    began: dict[str, list[Entry]] = {}
    for key, (row, metric) in found.items():
        if key not in since:
            since[key] = step
            began.setdefault(metric, []).append(row)
    sure = f"a level, not a change{'; so at the first look already' if first else ''}"
    return [
        Message(
            step,
            "state",
            _places(own := began[metric], entries),
            metric,
            _state(metric, own),
            step,
            sure,
            _cause(metric, own, entries, rate),
        )
        for metric in _WORST
        if metric in began
    ]


def _state(metric: str, rows: Sequence[Entry]) -> str:
    """What these rows have in common, with the worst of their values."""
    if metric == "residual_rms":
        return "the residual stream is not finite"
    if metric == "attention_entropy":
        most = "at most " if len(rows) > 1 else ""
        return f"attention is on one key (entropy {most}{max(row.value for row in rows):.3f} of log n)"
    if metric == "largest_logit":
        farthest = max((row.value for row in rows), key=abs)
        return f"the largest logit is {farthest:.0f}{' (the farthest from 0)' if len(rows) > 1 else ''}"
    if len(rows) == 1:
        return f"the layer is dead: it adds {rows[0].value:.1g} of what it reads to the residual stream"
    largest = max(row.value for row in rows)
    return f"the layers are dead: they add at most {largest:.1g} of what they read to the residual stream"


def _cause(metric: str, rows: Sequence[Entry], entries: Sequence[Entry], rate: float | None) -> str:
    """Where most heads are so at once, it is the run and not a head: the rate, most likely."""
    if len(rows) < 2 or 2 * len(rows) < len(_alike(rows[0], entries)) or metric == "residual_update":
        return ""
    return f"lower the learning rate{'' if rate is None else f', {rate:g}'}, which is the likely cause"


def _alike(row: Entry, entries: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.metric == row.metric]


def _places(rows: Sequence[Entry], entries: Sequence[Entry]) -> str:
    """``all 12 heads``, ``3 of 12 heads (layer 0, head 1; ...)``; the place of a single one."""
    if len(rows) == 1:
        return place(rows[0], entries)
    every = len(_alike(rows[0], entries))
    what = "layers" if rows[0].head is None else "heads"
    if len(rows) == every:
        return f"all {every} {what}"
    named = "; ".join(place(row, entries) for row in rows[:_NAMED])
    more = f"; and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return f"{len(rows)} of {every} {what} ({named}{more})"


class Entry(NamedTuple):
    """One row of a monitor's table."""

    metric: str
    module: str
    call: int
    layer: int | None
    head: int | None
    value: float
    stack: str = ""


def seen_in(table: pd.DataFrame) -> Iterator[Entry]:
    """The rows of a table, column by column: on a small model that is most of what a look costs."""
    names = ("metric", "module", "call", "layer", "head", "value", *(["stack"] if "stack" in table else []))
    columns = (table[name].astype(object) for name in names)
    for metric, module, call, layer, head, value, *stack in zip(*columns, strict=True):
        yield Entry(metric, module, int(call), whole(layer), whole(head), float(value), *stack)


def place(row: Entry, entries: Sequence[Entry]) -> str:
    """``layer 3, head 1`` (of which stack, where there are several); its module's name alone where it
    has neither, and beside it where the layer has
    several attentions, or several calls of one, among the entries."""
    words = [] if row.layer is None else [f"{row.stack} layer {row.layer}".lstrip()]
    words += [] if row.head is None else [f"head {row.head}"]
    same = [one for one in entries if (one.stack, one.layer) == (row.stack, row.layer)]
    others = {(one.module, one.call) for one in same if one.head is not None}
    if row.head is not None and len(others) > 1:
        words.append(f"{row.module}" + (f", call {row.call}" if row.call else ""))
    return ", ".join(words) or row.module


def whole(value: Any) -> int | None:
    """A table's integer, or None for what is missing in it."""
    return None if pd.isna(value) else int(value)
