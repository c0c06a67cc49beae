"""What is read off the weights between looks: ln sigma_1 of W_Q^T W_K of each head, without waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from joma.core.printing import one_line_of
from joma.instruments.monitor.measuring.blocks import Block
from joma.instruments.monitor.measuring.products import AttentionPlace, QueryKey, find_products
from joma.instruments.monitor.measuring.rows import COLUMNS, LOG_NORM, frame
from joma.instruments.monitor.measuring.weights import why_sharded
from joma.measures.ranks.head_products import first_vectors, follow_norms

READ_EVERY = 5
"""Steps between two readings."""


@dataclass
class _Reading:
    """The values of one step on their way to the host."""

    step: int
    values: Tensor
    arrival: torch.cuda.Event | None = None

    def is_here(self) -> bool:
        return self.arrival is None or bool(self.arrival.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        if self.arrival is not None:
            self.arrival.synchronize()


@dataclass
class Gauge:
    """Follows sigma_1 of each head of the attentions that a look saw.

    A reading is two products of a vector with W_Q^T W_K and its transpose; nothing is attached to the model,
    and the host waits for no device: values are copied when they are ready, and taken when they have come.
    """

    model: nn.Module
    blocks: Sequence[Block]
    products: list[QueryKey] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    """Of attentions that are not followed, by module."""
    searched: bool = False
    _vectors: list[Tensor] = field(default_factory=list)
    _flying: list[_Reading] = field(default_factory=list)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_flying": []}

    def search(self, attended: Sequence[AttentionPlace]) -> str:
        """Find the queries and keys of these attentions; what to say of those that have none."""
        if self.searched or not attended:
            return ""
        self.searched = True
        if reason := why_sharded(self.model):
            return f"{reason}; sigma_1 of queries and keys is not followed between looks"
        self.products, self.reasons = find_products(self.model, attended, self.blocks)
        if not self.reasons:
            return ""
        module, reason = next(iter(self.reasons.items()))
        first = f"{len(self.reasons)} of {len(attended)} attentions"
        return one_line_of(
            f"sigma_1 of W_Q^T W_K is not followed for {first}, first {module or 'the model itself'} "
            f"({reason}); entropy, logits, the residual stream and the loss are judged as before."
        )

    @property
    def places(self) -> list[tuple[str, int, str, int]]:
        """Stack, layer, module and head of each value."""
        return [
            (one.place.stack, one.place.layer, one.place.module, head)
            for one in self.products
            for head in range(one.place.heads)
        ]

    def read(self, step: int) -> None:
        """One reading of all heads, on its way to the host when this returns."""
        if not self.products:
            return
        norms = []
        first = not self._vectors
        for number, one in enumerate(self.products):
            query, key = one.weights()
            if first:
                self._vectors.append(first_vectors(query, key))
            elif self._vectors[number].device != key.device:  # the model was moved
                self._vectors[number] = self._vectors[number].to(key.device)
            found, self._vectors[number] = follow_norms(query, key, self._vectors[number])
            norms.append(found)
        home = norms[0].device
        values = torch.cat([norm.to(home, torch.float32) for norm in norms]).log()
        if not values.is_cuda:
            self._flying.append(_Reading(step, values.cpu()))
            return
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        host.copy_(values, non_blocking=True)
        arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrival.record()
        self._flying.append(_Reading(step, host, arrival))

    def take(self, *, wait: bool = False) -> list[tuple[int, NDArray[np.float64]]]:
        """The readings that have come, in order: step, and ln sigma_1 of each head; -inf counts as NaN."""
        taken = []
        while self._flying and (wait or self._flying[0].is_here()):
            reading = self._flying.pop(0)
            reading.wait()
            values = reading.values.double().numpy()
            taken.append((reading.step, np.where(np.isfinite(values), values, np.nan)))
        return taken

    def forget(self, step: int) -> None:
        """Readings of this step and later ones: a run that went back takes them anew."""
        self._flying = [one for one in self._flying if one.step < step]

    def rows(self, readings: Sequence[tuple[int, NDArray[np.float64]]]) -> pd.DataFrame:
        """Readings as rows of the monitor's table."""
        places = self.places
        if not readings or not places:
            return frame([])
        stacks, layers, modules, heads = zip(*places, strict=True)
        number = len(readings)
        columns = {
            "step": np.repeat([step for step, _ in readings], len(places)),
            "stack": np.tile(np.array(stacks, dtype=object), number),
            "layer": pd.array(list(layers) * number, dtype="Int64"),
            "module": np.tile(np.array(modules, dtype=object), number),
            "call": 0,
            "head": pd.array(list(heads) * number, dtype="Int64"),
            "metric": LOG_NORM,
            "value": np.concatenate([values for _, values in readings]),
            "unit": "",
            "count": 1,
        }
        return pd.DataFrame(columns)[list(COLUMNS)]
