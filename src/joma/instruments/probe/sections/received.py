"""What the keys of a text receive: heavy hitters, sinks, and the change of the output without a key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pandas
import torch
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.instruments.reading.passes import Output
from joma.instruments.reading.shared import Part, Section
from joma.instruments.watch.watch import watch
from joma.measures.attention.received.hitters import even_share, heavy_hitters, hitter_overlap, hitter_share


class ReceivedSection(Section):
    """Means over the windows of a text, head by head; the removal effect where the values are seen."""

    def __init__(
        self,
        model: nn.Module,
        *,
        layers: Sequence[int | str] | None = None,
        heads: Sequence[int] | None = None,
        rows: float | None = None,
    ) -> None:
        make = partial(watch, model, layers=layers, reduce="none", rows=rows)
        self._watch = partial(make, statistics=("received_mass", "received_maximum"))
        self._watch_values = partial(make, statistics=("removal_effect",))
        self._heads = heads
        self._rows: list[dict[str, object]] = []

    @contextmanager
    def around_pass(self, part: Part) -> Iterator[None]:
        """Watch the pass."""
        self._seen, self._seen_values = self._watch(), self._watch_values()
        with self._seen, self._seen_values:
            yield

    def after_pass(self, part: Part, output: Output) -> None:
        """Add what was seen, one row a head and metric."""
        measurements = [*self._seen.measurements(), *self._seen_values.measurements_so_far()]
        for layer, record, measured in measurements:
            identity = {"layer": layer, "module": record.module, "call": record.call, "dtype": record.dtype}
            values, seen = measured.values.double().nan_to_num(0.0), measured.counts > 0
            if measured.name == "received_mass":
                found = _of_mass(values, seen)
            else:
                found = {measured.name: (values.sum((0, 2)), seen.sum((0, 2)).double())}
            for metric, (totals, counts) in found.items():
                for head, (total, count) in enumerate(zip(totals.tolist(), counts.tolist(), strict=True)):
                    self._rows.append(
                        {**identity, "head": head, "metric": metric, "sum": total, "count": count}
                    )

    def make_tables(self) -> dict[str, pandas.DataFrame]:
        """``received_attention``: ``layer, module, call, head, metric, value, unit, count, dtype``."""
        if not self._rows:
            raise InputError("there is no batch of text to run the model on; give a text with words in it.")
        table = pandas.DataFrame(self._rows)
        if self._heads is not None:
            there = int(table["head"].max())
            if not self._heads:
                raise InputError(f"heads is an empty list; name some of the heads 0 to {there}.")
            for head in self._heads:
                if not 0 <= head <= there:
                    raise InputError(f"there is no head {head}; the heads are 0 to {there}.")
            table = table[table["head"].isin(list(self._heads))]
        keys = ["layer", "module", "call", "head", "metric", "dtype"]
        sums = table.groupby(keys, sort=False, as_index=False)[["sum", "count"]].sum()
        sums = sums[sums["count"] > 0].assign(value=lambda t: t["sum"] / t["count"], unit="1")
        order = ["layer", "module", "call", "head", "metric", "value", "unit", "count", "dtype"]
        return {"received_attention": sums[order].astype({"count": int}).reset_index(drop=True)}


def _of_mass(mass: Tensor, seen: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Sums over the windows, and their number, by head: the shares that hitters and the first key have."""
    some = seen.any(-1) & (mass.sum(-1) > 0)
    whole = mass.sum(-1).clamp_min(1e-300)
    safe = torch.where(some[..., None], mass, torch.ones_like(mass))
    first = seen.int().argmax(-1, keepdim=True)
    even = torch.tensor([[even_share(max(int(n), 1)) for n in row] for row in seen.sum(-1)], dtype=mass.dtype)
    hitters = heavy_hitters(safe)
    others = hitter_overlap(hitters[:, :, None], hitters[:, None])
    number = mass.shape[1]
    found = {
        "hitter_share": hitter_share(safe, seen),
        "even_hitter_share": even.to(mass.device),
        "first_key_share": mass.gather(-1, first).squeeze(-1) / whole,
    }
    if number > 1:
        found["hitter_overlap"] = (others.sum(-1) - 1) / (number - 1)
    return {name: ((value * some).sum(0), some.sum(0).double()) for name, value in found.items()}
