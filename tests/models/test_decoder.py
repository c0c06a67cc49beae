from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from joma.core.errors import InputError
from joma.models.decoder import Decoder, DecoderLayer, rotate, sinusoidal_positions


def as_torch_layer(layer: DecoderLayer, width: int, hidden: int, heads: int) -> nn.TransformerEncoderLayer:
    """torch's own layer with the same weights: the independent truth."""
    theirs = nn.TransformerEncoderLayer(
        width, heads, hidden, dropout=0.0, batch_first=True, norm_first=layer.pre_norm
    )
    theirs.self_attn.in_proj_weight.data = layer.in_projection.weight.data
    theirs.self_attn.in_proj_bias.data = layer.in_projection.bias.data
    theirs.self_attn.out_proj = layer.out_projection
    theirs.linear1, theirs.linear2 = layer.lower, layer.upper
    theirs.norm1, theirs.norm2 = layer.attention_norm, layer.mlp_norm
    return theirs


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("heads", [1, 4])
def test_layer_is_torchs_encoder_layer(heads: int, pre_norm: bool) -> None:
    torch.manual_seed(0)
    layer = DecoderLayer(16, heads, 24, dropout=0.0, pre_norm=pre_norm).double().eval()
    theirs = as_torch_layer(layer, 16, 24, heads).double().train()
    x = torch.randn(3, 7, 16, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    torch.testing.assert_close(layer(x, mask), theirs(x, src_mask=mask), rtol=1e-12, atol=1e-12)


def test_rotary_positions_are_turns_of_complex_numbers() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(2, 3, 7, 8, dtype=torch.float64)
    turned = rotate(vectors)
    for place in range(7):
        for pair in range(4):
            own = torch.complex(vectors[..., place, pair], vectors[..., place, pair + 4])
            own = own * complex(math.cos(place / 10**pair), math.sin(place / 10**pair))
            torch.testing.assert_close(turned[..., place, pair], own.real, rtol=0, atol=1e-6)
            torch.testing.assert_close(turned[..., place, pair + 4], own.imag, rtol=0, atol=1e-6)


def test_rotary_attention_knows_distances_and_no_places() -> None:
    torch.manual_seed(0)
    model = Decoder(11, layers=1, width=8, hidden=8, heads=2, pre_norm=True, rotary=True).eval()
    seen: dict[int, torch.Tensor] = {}
    tokens = torch.tensor([[3, 5, 3, 5, 3, 5]])
    with torch.no_grad():
        model.hidden_states(tokens, seen.__setitem__)
    logarithms = seen[0].log()
    later = logarithms[..., 5, 2:6] - logarithms[..., 5, 5:6]
    torch.testing.assert_close(later, logarithms[..., 3, 0:4] - logarithms[..., 3, 3:4], rtol=0, atol=1e-5)
    assert float(later.abs().max()) > 0
    assert float((later[..., 0] - later[..., 2]).abs().max()) > 0  # one token at two distances
    with pytest.raises(InputError, match="a head of width 3 must be even"):
        Decoder(11, layers=1, width=6, hidden=8, heads=2, rotary=True)


def test_attention_is_causal_and_observed_without_changing_the_output() -> None:
    torch.manual_seed(0)
    model = Decoder(11, layers=2, width=8, hidden=8, heads=2).eval()
    tokens = torch.randint(0, 11, (2, 6))
    seen: dict[int, torch.Tensor] = {}
    watched = model.hidden_states(tokens, seen.__setitem__)
    assert torch.equal(watched, model.hidden_states(tokens))
    assert sorted(seen) == [0, 1]
    for attention in seen.values():
        assert attention.shape == (2, 2, 6, 6)
        assert attention.triu(1).abs().max() == 0
        torch.testing.assert_close(attention.sum(-1), torch.ones(2, 2, 6))
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 11
    assert torch.equal(model(tokens)[:, :4], model(changed)[:, :4])


def test_initialisation_is_the_authors() -> None:
    torch.manual_seed(0)
    model = Decoder(50, layers=1, width=20, hidden=20)
    for weight in (model.embedding.weight, model.output.weight):
        assert 0.09 < float(weight.detach().abs().max()) <= 0.1
    assert float(model.output.bias.detach().abs().max()) == 0
    assert [weight.shape for weight in model.lower_mlp_weights()] == [(20, 20)]


def test_positions() -> None:
    table = sinusoidal_positions(5, 6)
    assert float(table[3, 0]) == pytest.approx(math.sin(3))
    assert float(table[3, 3]) == pytest.approx(math.cos(3 / 10000 ** (2 / 6)))


def test_bad_shapes() -> None:
    with pytest.raises(InputError, match="width = 10 is not a multiple of heads = 4"):
        Decoder(5, layers=1, width=10, heads=4)
    with pytest.raises(InputError, match="width = 5 must be even"):
        Decoder(5, layers=1, width=5)
    with pytest.raises(InputError, match="9 tokens is longer than the model's 8 positions"):
        Decoder(5, layers=1, width=4, longest=8)(torch.zeros(1, 9, dtype=torch.long))
