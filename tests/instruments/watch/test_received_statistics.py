"""joma.watch's statistics of keys, beside the measure on the same queries, keys and values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import joma
from joma.core.errors import InputError
from joma.models.decoder import Decoder


class Plain(nn.Module):
    """One attention on what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.attention(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def test_keys_statistics_are_those_of_the_measure() -> None:
    torch.manual_seed(0)
    model, x = Plain(), torch.randn(2, 7, 8)
    names = ("entropy", "received_mass", "received_maximum", "removal_effect")
    with joma.watch(model, statistics=names, reduce="position") as seen:
        model(x)
    query, key, value = model.attention(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    found = joma.received_attention(query, key, value, causal=True)
    table = seen.table()
    for name in names[1:]:
        mine = table[table["metric"] == name].pivot(index="head", columns="position", values="value")
        truth = found[name.removeprefix("received_")].double().mean(0)
        torch.testing.assert_close(
            torch.tensor(mine.to_numpy().tolist(), dtype=torch.float64), truth, rtol=1e-6, atol=0
        )
    assert (table["metric"] == "attention_entropy").sum() == 14


def test_scores_alone_have_masses_but_no_values() -> None:
    model = Decoder(20, layers=1, width=16, hidden=16, heads=2).eval()
    tokens = torch.randint(0, 20, (2, 9))
    with joma.watch(model, statistics="received_mass") as seen:
        model(tokens)
    table = seen.table()
    assert table["value"].tolist() == pytest.approx([1.0, 1.0])  # nine queries on nine keys
    with joma.watch(model, statistics="removal_effect") as seen:
        model(tokens)
    with pytest.raises(InputError, match="needs the values"):
        seen.table()
