"""What a neuron run found, as a terminal shows it."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.instruments.neurons import NeuronsSettings

_NEURONS, _CONTEXTS = 3, 3


def terminal_text(settings: NeuronsSettings, tables: Mapping[str, pd.DataFrame]) -> str:
    """The layers, and a few neurons' patterns with attended tokens between asterisks."""
    layers = tables["layers"].rename(
        columns={
            "superposition": "score",
            "superposition_of_shuffled": "of_shuffled",
            "share_p_below_5_percent": "p<=5%",
            "share_q_below_5_percent": "q<=5%",
            "share_similar_p_below_5_percent": "similar_p<=5%",
        }
    )
    if not layers["stack"].astype(bool).any():
        layers = layers.drop(columns="stack")
    lines = [layers.to_string(index=False, float_format=lambda value: f"{value:.3f}")]
    keys = ["layer", "stack", "neuron"]
    values = tables["neurons"].pivot(index=keys, columns="metric", values="value")
    shown = list(tables["contexts"].groupby(keys, sort=False))[:_NEURONS]
    for key, part in shown:
        row = values.loc[key]
        place = " ".join(f"{word} {value}" for word, value in zip(keys, key, strict=True) if value != "")
        lines.append(f"\n{place}: score {row['superposition']:.2f}, p {row['p_value']:.2g}")
        for pattern, of_pattern in part[part["pattern"] >= 0].groupby("pattern"):
            for text in of_pattern["text"].head(_CONTEXTS):
                lines.append(f"  {chr(ord('A') + int(pattern) % 26)} {' '.join(str(text).split())}")
    if "not_measured" in tables:
        for missing in tables["not_measured"].itertuples():
            lines.append(f"\nnot measured: {missing.block}: {missing.reason}")
    return "\n".join(lines)
