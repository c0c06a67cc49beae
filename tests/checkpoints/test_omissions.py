"""What is named as left out of a checkpoint, and what no one asks a rank of."""

from __future__ import annotations

import math

import pytest

from joma.checkpoints.families.matrices import sort_out
from joma.checkpoints.omissions import find_unmeasured

WIDTH, CONTEXT = 16, 256
GPT2 = {"attn.c_attn": (WIDTH, 3 * WIDTH), "attn.c_proj": (WIDTH, WIDTH), "mlp.c_fc": (WIDTH, 4 * WIDTH)}
GPT2 |= {"mlp.c_proj": (4 * WIDTH, WIDTH)}


def named(beside: dict[str, tuple[int, ...]], layers: int = 2) -> set[str]:
    """What is named of a model of two layers with these tensors in each, or at its top (``^name``)."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        shapes |= {f"transformer.h.{layer}.{name}.weight": shape for name, shape in GPT2.items()}
        shapes |= {f"transformer.h.{layer}.{name}": s for name, s in beside.items() if name[0] != "^"}
    shapes |= {name[1:]: shape for name, shape in beside.items() if name[0] == "^"}
    found = sort_out(shapes)
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    return find_unmeasured(found.unknown, sizes, found.places, found.matrices)


BESIDE = ("bias", "mask", "causal_mask", "tril", "alibi", "rotary_emb.inv_freq", "rotary_emb.cos_cached")
BESIDE += ("rel_pos_bias", "relative_attention_bias.weight")
AT_THE_TOP = ("mask", "freqs_cis", "pos_emb", "transformer.wpe.weight", "position_embeddings.weight")


@pytest.mark.parametrize("name", [*(f"attn.{name}" for name in BESIDE), *(f"^{name}" for name in AT_THE_TOP)])
def test_masks_biases_and_positions_are_not_left_out(name: str) -> None:
    assert named({name: (CONTEXT, CONTEXT)}) == set()


@pytest.mark.parametrize("name", ["attn.oracle.weight", "attn.linear_pos.weight", "^maskrcnn.weight", "^odd"])
def test_a_matrix_of_no_known_role_is(name: str) -> None:
    found = named({name: (CONTEXT, CONTEXT)})
    assert len(found) == (1 if name[0] == "^" else 2)
    assert all(one.endswith(name.lstrip("^")) for one in found)
