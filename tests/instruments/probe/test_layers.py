"""The table of layers of a model with stacks, and the sentences about it."""

from __future__ import annotations

import pandas as pd

from joma.instruments.probe.summary import layer_summary, stack_of
from joma.instruments.probe.text import probe_sentences
from joma.measures.attention.statistics import ATTENTION_ENTROPY

T5 = {
    "encoder.block.{}.layer.0.SelfAttention": 2.0,
    "decoder.block.{}.layer.0.SelfAttention": 1.0,
    "decoder.block.{}.layer.1.EncDecAttention": 3.0,
}


def attention(modules: dict[str, float], layers: int = 2) -> pd.DataFrame:
    """An entropy a head, one tenth apart, that grows by one half a layer."""
    rows = [
        {"layer": layer, "module": name.format(layer), "call": 0, "head": head, "metric": ATTENTION_ENTROPY}
        | {"value": base + layer / 2 + head / 10}
        for name, base in modules.items()
        for layer in range(layers)
        for head in range(2)
    ]
    return pd.DataFrame(rows)


def test_stacks_of_one_number_are_told_apart() -> None:
    ranks = pd.DataFrame({"metric": "stable_rank", "layer": [0, 1] * 2, "matrix": "lower"})
    ranks["stack"] = ["encoder", "encoder", "decoder", "decoder"]
    ranks["value"] = [4.0, 5.0, 6.0, 7.0]
    layers = layer_summary({"attention": attention(T5), "ranks": ranks}).set_index(["stack", "layer"])
    assert layers["entropy"].round(9).to_dict() == {
        ("encoder", 0): 2.05, ("encoder", 1): 2.55, ("decoder", 0): 1.05, ("decoder", 1): 1.55,
        ("decoder cross", 0): 3.05, ("decoder cross", 1): 3.55,
    }  # fmt: skip
    assert layers.loc[("decoder", 1), "rank_lower"] == 7
    assert pd.isna(layers.loc[("decoder cross", 1), "rank_lower"])
    tables = {"attention": attention(T5), "layers": layers.reset_index()}
    first, second = probe_sentences(tables)
    assert "in decoder layer 0" in first
    assert "in decoder cross layer 1" in first
    assert "between 4 (encoder layer 0) and 7 (decoder layer 1)" in second


def test_a_single_stack_has_no_column() -> None:
    layers = layer_summary({"attention": attention({"model.layers.{}.self_attn": 1.0})})
    assert list(layers) == ["layer", "entropy", "lowest", "highest"]
    assert stack_of("model.layers.3.self_attn") == ""
    assert stack_of("bert.encoder.layer.0.attention.self") in ("encoder", "bert.encoder")
