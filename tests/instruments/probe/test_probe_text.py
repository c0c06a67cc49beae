"""The sentences of a probe compare only numbers that differ as they are printed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from joma.instruments.probe import ProbeSettings
from joma.instruments.probe.text import probe_sentences, terminal_text
from joma.measures.attention.statistics import ATTENTION_ENTROPY


def _sentences(heads: list[list[float]], ranks: list[float]) -> str:
    attention = pd.DataFrame(
        [
            (layer, f"layers.{layer}.attention", head, ATTENTION_ENTROPY, v)
            for layer, row in enumerate(heads)
            for head, v in enumerate(row)
        ],
        columns=["layer", "module", "head", "metric", "value"],
    )
    means = [sum(row) / len(row) for row in heads]
    layers = pd.DataFrame({"layer": range(len(heads)), "entropy": means, "rank_lower": ranks})
    return " ".join(probe_sentences({"layers": layers, "attention": attention}))


def test_equal_numbers_are_not_compared() -> None:
    said = _sentences([[3.85, 3.850002, 3.850004, 3.8520], [3.85, 3.85, 3.85, 3.85]], [18.1, 17.9])
    assert "Attention entropy is 3.85 nats in every layer." in said
    assert "The stable rank of the lower MLP matrix is 18 in every layer." in said
    assert "stands out" not in said


@pytest.mark.parametrize("last", [4.0, 3.0])
def test_different_numbers_are_compared(last: float) -> None:
    said = _sentences(
        [[4.0, 4.001, 4.002, 1.0], [2.0, 2.001, 2.002, 2.0], [last, last, last, last]], [9, 18, 3]
    )
    assert "falls from 3.25 nats in layer 0 to 2.00 in layer 1" in said
    assert "Head 3 of layer 0 stands out: 1.00 nats" in said
    assert f"stands at {last:.2f} in the last" in said
    assert "lies between 3 (layer 2) and 18 (layer 1)" in said


def test_no_fall_below_the_first_layer_is_made_up() -> None:
    said = _sentences([[2.001] * 3, [2.0] * 3, [3.0] * 3], [9, 18, 3])
    assert "falls" not in said
    assert "2.00 nats in layer 0, and nowhere less" in said


def test_ranks_of_an_adapters_folder_are_said_to_be_its_bases(tmp_path: Path) -> None:
    ranks = pd.DataFrame(
        {"layer": [0], "matrix": "lower", "metric": "stable_rank", "value": 3.0, "error_bound": 1e-9}
    )
    settings = ProbeSettings.of(model=str(tmp_path), weights=True)
    assert "adapter" not in terminal_text(settings, {"ranks": ranks})
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_text("{}")
    said = terminal_text(settings, {"ranks": ranks}).splitlines()
    assert said[0] == "The folder holds an adapter: these are its base's weights with it applied."
