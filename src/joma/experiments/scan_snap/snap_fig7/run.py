"""Decoders trained on the text and on its words shuffled, and what their attention looks at."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import torch

from joma.core.errors import InputError
from joma.core.progress import Progress
from joma.data.text import TokenText
from joma.experiments.scan_snap.snap_fig7 import SnapFig7
from joma.experiments.shared.decoder_settings import run_name
from joma.experiments.shared.decoders import gather, held_out_text, read_text, train_decoder
from joma.models.decoder import Decoder
from joma.training.loop import Rows

SHUFFLED = "shuffled"


def run(settings: SnapFig7, progress: Progress) -> dict[str, pd.DataFrame]:
    """Every depth and seed, on the text and on the shuffled text."""
    text = read_text(settings)
    if settings.common >= text.vocabulary_size:
        raise InputError(
            f"snap_fig7: setting common = {settings.common} leaves none of the {text.vocabulary_size} "
            "tokens uncommon; lower it."
        )
    runs = {
        run_name(depth, seed, variant): partial(_train_one, settings, depth, seed, variant)
        for depth, seed in settings.trainings()
        for variant in ("", SHUFFLED)
    }
    rows = gather(progress.parts(runs))
    is_map = rows["metric"] == "attention"
    of_maps = ["query", "key", "query_token", "key_token"]
    return {
        "curves": rows[~is_map].drop(columns=of_maps).reset_index(drop=True),
        "maps": rows[is_map].reset_index(drop=True).astype({"query": int, "key": int, "layer": int}),
    }


def _train_one(settings: SnapFig7, depth: int, seed: int, variant: str, progress: Progress) -> pd.DataFrame:
    text = read_text(settings)
    if variant == SHUFFLED:
        text = text.shuffle(seed)
    held_out = held_out_text(settings, text)
    maps = _Maps(text, held_out.inputs, settings)

    def measure(model: Decoder, step: int) -> Rows:
        return held_out.measure(model, step) + maps.measure(model, step)

    rows = train_decoder(
        settings,
        depth,
        seed,
        progress,
        text=text,
        measure=measure,
        variant=variant,
    )
    rows = rows[rows["metric"] != "stable_rank"].reset_index(drop=True)
    return rows.assign(text=variant or "real", dtype="float32")


class _Maps:
    """What the attention of a decoder looks at in held-out windows, beyond its entropy."""

    def __init__(self, text: TokenText, windows: torch.Tensor, settings: SnapFig7) -> None:
        length = windows.shape[1]
        self.text, self.windows, self.pictured = text, windows, frozenset(settings.pictured)
        counts = np.bincount(text.training, minlength=text.vocabulary_size)
        ranked = np.argsort(-counts, kind="stable")
        self.is_common = torch.from_numpy(np.isin(windows.numpy(), ranked[: settings.common]))
        self.uniform = torch.ones(length, length).tril()
        self.uniform /= self.uniform.sum(1, keepdim=True)

    def measure(self, model: Decoder, step: int) -> Rows:
        """Rows of own-token and common-token attention per layer; of the map at a pictured step."""
        seen: dict[int, torch.Tensor] = {}
        with torch.no_grad():
            # one head: drop its axis
            model.hidden_states(self.windows, lambda layer, p: seen.__setitem__(layer, p[:, 0]))
        rows: Rows = []
        for layer, attention in sorted(seen.items()):
            common = self._on_common(attention) / self._on_common(self.uniform)
            own = float(attention.diagonal(dim1=1, dim2=2).mean())
            rows += self._row(step, "own_token", own, layer) + self._row(step, "common_tokens", common, layer)
        entropy = -torch.special.xlogy(self.uniform, self.uniform).sum(1).mean()
        rows += self._row(step, "uniform_entropy", float(entropy))
        rows += self._row(step, "uniform_own_token", float(self.uniform.diagonal().mean()))
        if step in self.pictured:
            words = [self.text.words[i] for i in self.windows[0].tolist()]
            for query in range(len(words)):
                for key in range(query + 1):
                    where = {"query": query, "key": key, "query_token": words[query], "key_token": words[key]}
                    value = float(seen[0][0, query, key])
                    rows += [row | where for row in self._row(step, "attention", value, 0)]
        return rows

    def _on_common(self, attention: torch.Tensor) -> float:
        return float((attention * self.is_common[:, None, :]).sum(-1).mean())

    def _row(self, step: int, metric: str, value: float, layer: int | None = None) -> Rows:
        unit = "nats" if metric.endswith("entropy") else ""
        return [{"step": step, "layer": layer, "head": 0, "metric": metric, "value": value, "unit": unit}]
