from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from joma.data.text import TokenText
from joma.models.decoder import Decoder
from joma.training.evaluation import HeldOutText


def test_measures_against_a_direct_computation() -> None:
    torch.manual_seed(0)
    tokens = np.random.default_rng(0).integers(0, 13, size=4100)
    text = TokenText("made", tokens, tokens, tuple(map(str, range(13))))
    model = Decoder(13, layers=2, width=8, hidden=6, heads=2, longest=10).double().eval()
    held_out = HeldOutText(text, length=10)
    rows = held_out.measure(model, 5)

    attentions: dict[int, torch.Tensor] = {}
    model.hidden_states(held_out.inputs, attentions.__setitem__)
    expected_loss = F.cross_entropy(model(held_out.inputs).flatten(0, 1), held_out.targets.flatten())
    values = {(row["metric"], row["layer"], row["head"]): row["value"] for row in rows}
    for layer, attention in attentions.items():
        for head in range(2):
            p = attention[:, head].detach().numpy()
            entropy = -np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0), axis=-1).mean()
            assert values["attention_entropy", layer, head] == pytest.approx(entropy, rel=1e-12)
        weight = model.layers[layer].lower.weight.detach().numpy()  # type: ignore[union-attr, operator]
        rank = np.sum(weight**2) / np.linalg.norm(weight, 2) ** 2
        assert values["stable_rank", layer, None] == pytest.approx(rank, rel=1e-12)
    assert values["validation_loss", None, None] == pytest.approx(float(expected_loss.detach()), rel=1e-12)
    assert {row["step"] for row in rows} == {5}
    assert "validation_loss" not in {row["metric"] for row in held_out.measure(model, 5, with_loss=False)}
