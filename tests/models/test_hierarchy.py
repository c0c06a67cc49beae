from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.models.hierarchy import HierarchyNetwork


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_the_last_position_alone_and_torchs_own_layers(causal: bool, heads: int) -> None:
    torch.manual_seed(0)
    network = HierarchyNetwork(7, 5, layers=2, width=8, heads=heads, causal=causal).double()
    tokens = torch.randint(0, 8, (4, 6))
    x = network.embedding(tokens)
    mask = torch.full((6, 6), float("-inf"), dtype=torch.float64).triu(1) if causal else None
    for block in network.blocks:
        reference = nn.TransformerEncoderLayer(8, heads, 28, 0.0, batch_first=True).double()
        names = {
            "self_attn.in_proj_": "in_projection.",
            "self_attn.out_proj.": "out_projection.",
            "linear1.": "lower.",
            "linear2.": "upper.",
            "norm1.": "attention_norm.",
            "norm2.": "mlp_norm.",
        }
        state = block.state_dict()
        reference.load_state_dict(
            {theirs + p: state[ours + p] for theirs, ours in names.items() for p in ("weight", "bias")}
        )
        x = reference(x, src_mask=mask)
    expected = network.output(x[:, -1])
    torch.testing.assert_close(network(tokens), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(network(tokens, shortened=False), expected, rtol=1e-12, atol=1e-12)


def test_observation_sees_every_layers_relu_and_changes_nothing() -> None:
    torch.manual_seed(0)
    network = HierarchyNetwork(7, 5, layers=3, width=8)
    tokens = torch.randint(0, 8, (4, 6))
    seen: dict[int, Tensor] = {}
    logits = network(tokens, observe=seen.__setitem__)
    assert {layer: tuple(a.shape) for layer, a in seen.items()} == dict.fromkeys(range(3), (4, 6, 28))
    assert all((a >= 0).all() and (a > 0).any() for a in seen.values())
    torch.testing.assert_close(logits, network(tokens))
    x = network.embedding(tokens)
    first = network.blocks[0]
    attended = first.attention_norm(x + first.out_projection(_attend(first, x)))
    torch.testing.assert_close(seen[0], torch.relu(first.lower(attended)))


def _attend(block: nn.Module, x: Tensor) -> Tensor:
    query, key, value = block.in_projection(x).chunk(3, dim=-1)
    return nn.functional.scaled_dot_product_attention(query, key, value)


def test_bad_sizes() -> None:
    with pytest.raises(InputError, match="not a multiple of heads"):
        HierarchyNetwork(7, 5, width=9, heads=2)
    with pytest.raises(InputError, match="at least 1"):
        HierarchyNetwork(7, 0)
