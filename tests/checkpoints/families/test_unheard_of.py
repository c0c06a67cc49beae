"""Each rule for weights, of a family whose names occur nowhere in the sources: sizes and places decide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import joma
from checkpoint_files import near, rank_of, ranks, values, write
from joma.core.errors import InputError

FAMILY, STEM = "quillwort", "herb.rungs.3"
RANDOM = torch.Generator().manual_seed(4)
WIDTH, HIDDEN = 128, 96


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=RANDOM)


def float8(*shape: int) -> torch.Tensor:
    return randn(*shape).clamp(-3, 3).to(torch.float8_e4m3fn)


def test_its_names_are_made_up() -> None:
    for path in Path(joma.__file__).parent.rglob("*.py"):
        text = path.read_text("utf-8").lower()
        assert not re.search(rf"{FAMILY}|\bherbs?\b|\brungs?\b", text), path


def test_blocks_of_the_stated_size_the_last_cut_off(tmp_path: Path) -> None:
    weight, scale = float8(200, 64), torch.tensor([[1.0], [10.0], [0.1], [3.0]])
    tensors = {f"{STEM}.mlp.up_proj.weight": weight, f"{STEM}.mlp.up_proj.weight_scale_inv": scale}
    stated = {"weight_block_size": [64, 64]}
    table = ranks(write(tmp_path, tensors, model_type=FAMILY, quantization_config=stated))
    assert values(table) == near(rank_of(weight.float() * scale.repeat_interleave(64, 0)[:200]))
    assert set(table["layer"]) == {3}


@pytest.mark.parametrize("inputs_first", [False, True])
def test_scaled_experts_in_one_tensor(tmp_path: Path, inputs_first: bool) -> None:
    weight, scale = float8(2, 2 * HIDDEN, WIDTH), torch.rand(2, 3, 2, generator=RANDOM) + 0.5
    whole = weight.float() * scale.repeat_interleave(64, 1).repeat_interleave(64, 2)
    name = f"{STEM}.mlp.experts.gate_up_proj"
    stored = [t.transpose(1, 2).contiguous() if inputs_first else t for t in (weight, scale)]
    sizes = {"hidden_size": WIDTH, "moe_intermediate_size": HIDDEN}
    stated = {"quantization_config": {"weight_block_size": [64, 64]}, "model_type": FAMILY}
    tensors = dict(zip((name, f"{name}_scale_inv"), stored, strict=True))
    table = ranks(write(tmp_path, tensors, **sizes, **stated), roles=["gate", "lower"])
    for expert in (0, 1):
        assert values(table, expert=str(expert), matrix="gate") == near(rank_of(whole[expert, :HIDDEN]))
        assert values(table, expert=str(expert), matrix="lower") == near(rank_of(whole[expert, HIDDEN:]))


def test_integers_with_the_scales_of_their_rows(tmp_path: Path) -> None:
    whole = torch.randint(-127, 128, (24, 16), generator=RANDOM, dtype=torch.int8)
    rows = torch.rand(24, generator=RANDOM) + 0.5
    tensors = {f"{STEM}.mlp.up_proj.weight": whole, f"{STEM}.mlp.up_proj.SCB": rows}
    table = ranks(write(tmp_path, tensors, model_type=FAMILY))
    assert values(table) == near(rank_of(whole.float() * rows[:, None]))


def test_a_type_without_its_scale_is_named(tmp_path: Path) -> None:
    tensors = {f"{STEM}.mlp.up_proj.weight": torch.ones(8, 4, dtype=torch.int8)}
    with pytest.raises(InputError, match="no scale stands beside it"):
        ranks(write(tmp_path, tensors, model_type=FAMILY))


def test_queries_keys_and_values_in_one_matrix(tmp_path: Path) -> None:
    query, key, value = randn(16, 16), randn(8, 16), randn(8, 16)
    tensors = {f"{STEM}.self_attn.qkv_proj.weight": torch.cat([query, key, value])}
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 16}
    table = ranks(write(tmp_path, tensors, model_type=FAMILY, **sizes), roles=["query", "key", "value"])
    for role, truth in (("query", query), ("key", key), ("value", value)):
        assert values(table, matrix=role) == near(rank_of(truth))


def test_latent_attention_and_keys_that_are_never_used(tmp_path: Path) -> None:
    heads, plain, value, rank = 2, 4, 6, 5
    keys, vectors = randn(heads, plain, rank), randn(heads, value, rank)
    tensors = {f"{STEM}.self_attn.kv_b_proj.weight": torch.cat([keys, vectors], 1).reshape(-1, rank)}
    sizes = {"num_attention_heads": heads, "qk_nope_head_dim": plain, "v_head_dim": value}
    table = ranks(write(tmp_path, tensors, model_type=FAMILY, **sizes), roles=["key_up", "value_up"])
    assert values(table, matrix="key_up") == near(rank_of(keys.reshape(-1, rank)))
    assert values(table, matrix="value_up") == near(rank_of(vectors.reshape(-1, rank)))
    shared = {f"herb.rungs.{i}.self_attn.{m}_proj.weight": randn(8, 16) for i in range(4) for m in "qk"}
    folder = write(tmp_path, shared, model_type=FAMILY, num_hidden_layers=4, num_kv_shared_layers=2)
    table = ranks(folder, roles=["key"])
    assert set(table[table["matrix"] == "key"]["layer"]) >= {0, 1}
    unused = table[table["metric"] == "omitted"]
    assert len(unused) == 2
    assert unused["reason"].str.contains("never uses it").all()


@pytest.mark.parametrize("leaf", ["self_attn.out_gate.gate_proj", "self_attn.sieve.wk", "mlp.sieve.up_proj"])
def test_parts_that_are_neither_attention_nor_mlp(tmp_path: Path, leaf: str) -> None:
    tensors = {f"{STEM}.mlp.up_proj.weight": randn(HIDDEN, WIDTH), f"{STEM}.{leaf}.weight": randn(40, WIDTH)}
    table = ranks(write(tmp_path, tensors, model_type=FAMILY), roles=["gate", "lower", "key"])
    measured = table[table["metric"] != "omitted"]
    assert set(measured["matrix"]) == {"lower"}
    (named,) = table[table["metric"] == "omitted"]["matrix"]
    assert leaf in named


class Quillwort(nn.Module):
    """It hears, and reads no tokens."""

    main_input_name = "whistles"

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, whistles: torch.Tensor) -> torch.Tensor:
        return self.mix(whistles, whistles, whistles)[0]


def test_a_model_that_reads_no_tokens_says_what_it_takes() -> None:
    with pytest.raises(InputError, match="takes whistles, not the tokens of a text"):
        joma.probe(Quillwort(), torch.arange(20).numpy(), length=10, sections=["attention"])
    ready = [{"whistles": torch.randn(2, 5, 4)}]
    found = joma.probe(Quillwort(), batches=ready, sections=["attention"])
    assert len(found.tables["attention"]) > 0
