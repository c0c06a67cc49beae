"""``joma.probe`` on a model's own inputs, in place of a text."""

from __future__ import annotations

import pytest
import torch

import joma
from joma.core.errors import InputError
from probe_models import eager_entropies, tiny_batch, tiny_model


def test_images_are_probed() -> None:
    batch = tiny_batch("vit")
    found = joma.probe(tiny_model("vit"), batches=[batch, batch])
    table = found.tables["attention"]
    entropy = table[table["metric"] == "attention_entropy"].sort_values(["layer", "head"])
    expected = eager_entropies("vit", batch)["self"].flatten()
    assert entropy["value"].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    missing = found.tables["not_measured"].set_index("section")["reason"]
    assert "holds no token ids" in missing["coherence"]
    assert found.tables["coverage"]["calls"].tolist() == [2, 2]


def test_token_ids_are_a_text() -> None:
    model, batch = tiny_model("llama"), tiny_batch("llama")
    ready = joma.probe(model, batches=[batch], sections=["attention", "coherence"])
    text = joma.probe(model, batch["input_ids"], sections=["attention", "coherence"])
    for name in ("attention", "coherence"):
        assert ready.tables[name]["value"].tolist() == text.tables[name]["value"].tolist()


def test_bad_input() -> None:
    model = tiny_model("llama")
    with pytest.raises(InputError, match="a text or batches"):
        joma.probe(model)
    with pytest.raises(InputError, match="batches is empty"):
        joma.probe(model, batches=[])
    with pytest.raises(InputError, match="takes images"):
        joma.probe(tiny_model("vit"), torch.randint(3, 60, (2, 8)), sections=["attention"])
