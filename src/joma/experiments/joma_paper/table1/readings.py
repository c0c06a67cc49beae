"""Every reading of Table 1's normalised correlation (NCorr), measured on one network.

The paper's sentence leaves open which sequences count, whether padding does, whether a correlation of -1
is one, and what a latent that no class uses scores. All combinations are cheap beside a training step.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from joma.data.hierarchy import Hierarchy
from joma.measures.alignment import latent_neuron_alignment
from joma.models.hierarchy import HierarchyNetwork
from joma.training.distinct import draw_counts, fold_padding
from joma.training.loop import Rows

OPTIONS: dict[str, tuple[Any, ...]] = {
    "samples": ("classes", "batch", "test set"),
    "padding": ("counted", "left out"),
    "centred": (True, False),
    "sign": ("largest", "absolute"),
    "matching": ("best", "one_to_one"),
    "unused": ("drop", "zero"),
}
"""What is left open, the paper's own words (or the plainest reading) first.

``samples``: each class once; a training batch, drawn with repetition; a test set, drawn likewise.
``padding``: whether the maximum over positions includes the padding in front. The others are arguments of
``joma.measures.alignment.latent_neuron_alignment``.
"""
PLAIN = {name: values[0] for name, values in OPTIONS.items()}
COLUMNS = ["level", *OPTIONS]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What is measured on a network at one step; call it with the network and the step."""

    drawn: Hierarchy
    tokens: Tensor
    batch: int
    """Sequences in the reading ``batch``."""
    test: int
    """Sequences in the reading ``test set``."""
    permutations: int

    def __call__(self, network: HierarchyNetwork, step: int) -> Rows:
        """Loss (nats), accuracy, NCorr of layer s with level s and its shuffled null; and every reading.

        The rows of the readings are those with a ``level``: NCorr of the latents of each level with the
        neurons of each layer.
        """
        device = next(network.parameters()).device
        folded = fold_padding(self.tokens, self.drawn.padding)
        seen: dict[int, Tensor] = {}
        with torch.no_grad():
            logits = network(
                folded.tokens.to(device), folded.key_bias.to(device), observe=seen.__setitem__
            ).cpu()
        targets = torch.arange(len(self.tokens))
        loss = torch.nn.functional.cross_entropy(logits, targets).item()
        accuracy = (logits.argmax(1) == targets).float().mean().item()
        rows: Rows = [
            {"step": step, "layer": None, "metric": "loss", "value": loss, "unit": "nats"},
            {"step": step, "layer": None, "metric": "accuracy", "value": accuracy, "unit": "share"},
        ]
        hidden = {layer: values.cpu() for layer, values in seen.items()}
        for level, latents in enumerate(self.drawn.latents()):
            shuffled = latent_neuron_alignment(
                latents,
                hidden[level].numpy(),
                permutations=self.permutations,
                random=np.random.default_rng(0),
            )
            values = {
                "NCorr": shuffled.mean,
                "shuffled": float(shuffled.null.mean()),
                "shuffled, 95 %": float(np.quantile(shuffled.null, 0.95)),
            }
            common = {"step": step, "unit": "correlation"}
            rows += [common | {"layer": level, "metric": k, "value": v} for k, v in values.items()]
            is_padding = folded.tokens == self.drawn.padding
            rows += [
                common | {"layer": layer, "level": level, "metric": "NCorr", "value": value} | reading
                for layer, activations in hidden.items()
                for reading, value in self.readings(latents, activations, is_padding, step)
            ]
        return rows

    def readings(
        self, latents: np.ndarray, activations: Tensor, is_padding: Tensor, step: int
    ) -> Iterator[tuple[dict[str, Any], float]]:
        """Every reading of one level's latents (C, N_s) by one layer's (C, positions, neurons)."""
        generator = torch.Generator().manual_seed(step)
        counts = {
            "classes": np.ones(len(latents)),
            "batch": draw_counts(len(latents), self.batch, generator).numpy(),
            "test set": draw_counts(len(latents), self.test, generator).numpy(),
        }
        largest = {
            "counted": activations.amax(1).numpy(),
            "left out": activations.masked_fill(is_padding[:, :, None], -torch.inf).amax(1).numpy(),
        }
        for values in product(*OPTIONS.values()):
            reading = dict(zip(OPTIONS, values, strict=True))
            arguments = {name: reading[name] for name in ("centred", "sign", "matching", "unused")}
            found = latent_neuron_alignment(
                latents, largest[reading["padding"]], weights=counts[reading["samples"]], **arguments
            )
            yield reading, found.mean


def summary(along: pd.DataFrame, cell: list[str], steps: int, paper: pd.DataFrame) -> pd.DataFrame:
    """One row per cell, level, layer and reading: means over seeds untrained, at the peak, at the end.

    ``peak`` is the largest mean over seeds at any step measured; ``paper`` the paper's number of that level.
    """
    keys = [*cell, "level", "layer", *OPTIONS]
    means = along.groupby([*keys, "step"])["value"].mean().unstack("step")
    last = along[along["step"] == steps].groupby(keys)["value"]
    table = means[[0]].set_axis(["untrained"], axis=1)
    table = table.assign(
        peak=means.max(axis=1),
        peak_step=means.idxmax(axis=1),
        trained=means[steps],
        deviation=last.std(),
        seeds=last.count(),
    ).reset_index()
    theirs = paper.rename(columns={"layer": "level", "value": "paper", "deviation": "paper_deviation"})
    return table.merge(theirs, on=[*cell, "level"], how="left")


def plain(table: pd.DataFrame, **other: Any) -> pd.Series:
    """Which rows are the paper's own reading (layer s for level s), with some options replaced."""
    wanted: Mapping[str, Any] = PLAIN | other
    chosen = [table[name] == value for name, value in wanted.items()]
    return functools.reduce(lambda a, b: a & b, chosen, table["layer"] == table["level"])
