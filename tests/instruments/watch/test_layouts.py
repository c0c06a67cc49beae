"""How scores and masks are laid out, and what is read out of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.instruments.watch.call import split_mask
from joma.instruments.watch.capture.observer import kind_of
from joma.instruments.watch.selection import layer_number
from joma.instruments.watch.watch import watch


@pytest.mark.parametrize("hidden", [-torch.inf, torch.finfo(torch.float32).min, -1e9, -1e4])
def test_additive_masks_that_only_hide_become_bool(hidden: float) -> None:
    mask = torch.zeros(1, 1, 3, 3).masked_fill(torch.ones(3, 3).triu(1) > 0, hidden)
    keep, bias = split_mask(mask)
    assert bias is None
    assert keep is not None
    assert torch.equal(keep[0, 0], torch.ones(3, 3, dtype=torch.bool).tril())


def test_a_bias_beside_hidden_keys_stays_a_bias() -> None:
    mask = torch.tensor([[0.5, -torch.inf], [-20_000.0, 0.25]])
    keep, bias = split_mask(mask)
    assert keep is not None
    assert bias is not None
    assert keep.tolist() == [[True, False], [True, True]]
    assert bias.tolist() == [[0.5, 0.0], [-20_000.0, 0.25]]
    assert split_mask(torch.zeros(2, 2)) == (None, None)
    with pytest.raises(InputError, match="int64"):
        split_mask(torch.zeros(2, 2, dtype=torch.int64))


class Flattened(nn.Module):
    """Scores in a layout of its own, as older models have them."""

    num_heads = 3

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout = layout

    def forward(self, scores: Tensor, value: Tensor) -> Tensor:
        if self.layout == "batch * heads":
            return torch.bmm(scores.flatten(0, 1).softmax(-1), value.flatten(0, 1))
        return torch.einsum("bihj,bhjd->bihd", scores.transpose(1, 2).softmax(-1), value)


@pytest.mark.parametrize("layout", ["batch * heads", "heads third"])
def test_heads_are_found_in_other_layouts(layout: str) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(2, 3, 5, 7, generator=generator)
    value = torch.randn(2, 3, 7, 4, generator=generator)
    model = Flattened(layout)
    with watch(model) as seen:
        model(scores, value)
    expected = torch.special.entr(scores.double().softmax(-1)).sum(-1).mean((0, 2))
    assert seen.table()["value"].to_numpy() == pytest.approx(expected.numpy(), abs=1e-6)
    with watch(model, statistics=["self_mass"]) as seen:
        model(scores, value)
    own = torch.diagonal(scores.double().softmax(-1), 2, dim1=2, dim2=3)
    assert seen.table()["value"].to_numpy() == pytest.approx(own.mean((0, 2)).numpy(), abs=1e-6)


def test_kinds_of_operations() -> None:
    aten = torch.ops.aten
    kinds: dict[Any, str] = {
        aten._scaled_dot_product_flash_attention_for_cpu.default: "kernel",
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default: "plain",
        aten._flash_attention_forward.default: "opaque",
        aten._efficient_attention_forward.default: "opaque",
        aten._softmax.default: "softmax",
        aten._softmax_backward_data.default: "plain",
        aten.bmm.default: "product",
        aten.relu.default: "plain",
    }
    assert {operation: kind_of(operation) for operation in kinds} == kinds


def test_layer_numbers() -> None:
    names = ["model.layers.7.self_attn", "encoder.block.3.layer.0.SelfAttention", "h.11", "attention"]
    assert [layer_number(name) for name in names] == [7, 3, 11, None]
