"""The section ``received_attention`` of a probe, beside the measure on the decoder's own queries and keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import joma
from joma.core.errors import InputError
from joma.experiments.shared.decoder_attention import layer_attentions
from joma.measures.attention.received.hitters import even_share, hitter_share
from joma.models.decoder import Decoder


def test_hitters_of_a_decoder_are_those_of_its_masses() -> None:
    torch.manual_seed(0)
    model = Decoder(30, layers=2, width=16, hidden=16, heads=2).eval()
    text = np.random.default_rng(0).integers(0, 30, 60)
    found = joma.probe(model, text, length=20, sections=["received_attention"], null="none")
    table = found.tables["received_attention"].set_index(["layer", "head", "metric"])["value"]
    layers = layer_attentions(model, torch.from_numpy(text).view(3, 20))
    for number, layer in enumerate(layers):
        mass = layer.receive().mass
        for head in range(2):
            shares = hitter_share(mass[:, head])
            assert table[number, head, "hitter_share"] == pytest.approx(float(shares.mean()))
            first = (mass[:, head, 0] / mass[:, head].sum(-1)).mean()
            assert table[number, head, "first_key_share"] == pytest.approx(float(first), rel=1e-5)
            assert table[number, head, "even_hitter_share"] == pytest.approx(even_share(20))
    # A decoder of joma's shows its scores alone: no values, no removal effect.
    assert "removal_effect" not in set(found.tables["received_attention"]["metric"])


class Sigmoid(nn.Module):
    """Its queries weigh keys by sigmoids, which are no probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.query, self.key = nn.Embedding(30, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        seen: Tensor = torch.sigmoid(self.query(x) @ self.key(x).mT).tril() @ x
        return seen


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": Sigmoid()}, "no attention was seen in Sigmoid"),
        ({"layers": [9]}, "chose none of the attentions"),
        ({"heads": [5]}, "no head 5; the heads are 0 to 1"),
        ({"heads": []}, "empty list"),
        ({"text": [3]}, "no two tokens"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_sentence(given: dict[str, object], said: str) -> None:
    model = Decoder(30, layers=1, width=16, hidden=16, heads=2).eval()
    usual = {"model": model, "text": np.arange(60) % 30, "length": 20, "null": "none"}
    with pytest.raises(InputError, match=said) as refused:
        joma.probe(sections=["received_attention"], **usual | given)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
