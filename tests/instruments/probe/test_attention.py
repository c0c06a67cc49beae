from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from joma.core.errors import InputError
from joma.instruments.probe.sections.attention import attention_statistics, position_bins
from joma.instruments.reading.passes import logits_of, run_batch
from joma.instruments.reading.texts import TokenBatch, windows

pytest.importorskip("transformers")
from probe_models import tiny_model

SIZE = 40


def texts(*lengths: int) -> list[list[int]]:
    random = np.random.default_rng(0)
    return [random.integers(3, SIZE, length).tolist() for length in lengths]


def dense(model: Any, batches: Any, layer: int) -> torch.Tensor:
    """Entropies (heads, tokens) of every token that is no padding, from the attention matrices."""
    found = []
    for tokens, mask in batches:
        out = model(tokens, attention_mask=mask.long(), output_attentions=True).attentions[layer].double()
        entropy = torch.special.entr(out).sum(-1)
        found += [entropy[i][:, kept] for i, kept in enumerate(mask)]
    return torch.cat(found, 1)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_means_over_batches_are_those_of_the_matrices(family: str) -> None:
    model = tiny_model(family).eval()
    found = windows(texts(12, 9, 12, 5, 3), batch_tokens=24)
    per_head, by_position, coverage = attention_statistics(model, found, statistics=["entropy"])
    eager = tiny_model(family, "eager").eval()
    with torch.no_grad():
        wanted = dense(eager, found, 1)
    rows = per_head[per_head["layer"] == 1]
    assert rows["head"].tolist() == list(range(wanted.shape[0]))
    np.testing.assert_allclose(rows["value"], wanted.mean(1), atol=2e-5)
    assert (rows["count"] == found.tokens).all()
    assert rows["standard_error"].notna().all()
    assert (coverage["status"] == "measured").all()
    assert (coverage["calls"] == len(found)).all()
    # Positions are bins of the same rows.
    part = by_position[(by_position["layer"] == 1) & (by_position["head"] == 0)]
    assert part["count"].sum() == found.tokens
    np.testing.assert_allclose(np.average(part["value"], weights=part["count"]), rows["value"].iloc[0])


def test_an_encoder_decoder_reads_the_text_in_both_parts() -> None:
    model = tiny_model("t5").eval()
    per_head, _, _ = attention_statistics(model, windows(texts(8, 6)), statistics=["entropy"])
    assert per_head["module"].nunique() == 6  # two of the encoder, two of the decoder, two across
    assert per_head["value"].notna().all()


def test_layers_and_heads_can_be_chosen() -> None:
    model = tiny_model("llama").eval()
    per_head, by_position, _ = attention_statistics(
        model, windows(texts(8)), statistics=["entropy", "first_key_mass"], layers=[1], heads=[2, 0]
    )
    assert per_head["layer"].unique().tolist() == [1]
    assert per_head[per_head["metric"] == "attention_entropy"]["head"].tolist() == [0, 2]
    assert per_head["standard_error"].isna().all()  # one batch tells nothing of the spread
    assert set(by_position["metric"]) == {"attention_entropy", "first_key_mass"}
    with pytest.raises(InputError, match="no head 9"):
        attention_statistics(model, windows(texts(8)), heads=[9])
    with pytest.raises(InputError, match="chose none"):
        attention_statistics(model, windows(texts(8)), layers=[7])
    with pytest.raises(InputError, match="no batch"):
        attention_statistics(model, [])


def test_position_bins_cover_all_positions_once() -> None:
    for length in [*range(1, 700), 4096, 131_072]:
        edges = position_bins(length)
        assert edges[0] == 0
        assert edges[-1] == length
        assert (np.diff(edges) > 0).all()
        assert len(edges) < 160


def test_a_model_without_a_mask_takes_whole_windows_only() -> None:
    model = nn.Sequential(nn.Embedding(SIZE, 4), nn.Linear(4, SIZE))
    whole, padded = torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.bool)
    assert logits_of(run_batch(model, TokenBatch(whole, padded))).shape == (2, 5, SIZE)
    padded[1, 4] = False
    with pytest.raises(InputError, match="takes no attention_mask"):
        run_batch(model, TokenBatch(whole, padded))
    with pytest.raises(InputError, match="without logits"):
        logits_of(object())
