"""Layouts told by sizes, and roles by their place, in families that joma has never heard of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from checkpoint_files import near, rank_of, ranks, values, write
from joma.checkpoints.families.matrices import find_matrices, sort_out
from joma.checkpoints.families.names import canonical, locate
from joma.core.errors import InputError

RANDOM = torch.Generator().manual_seed(0)
WIDTH, HIDDEN, EXPERTS = 12, 8, 2


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=RANDOM)


GATE, LOWER, UPPER = (
    randn(EXPERTS, HIDDEN, WIDTH),
    randn(EXPERTS, HIDDEN, WIDTH),
    randn(EXPERTS, WIDTH, HIDDEN),
)
BOTH = torch.cat([GATE, LOWER], 1)


@pytest.mark.parametrize("inputs_first", [False, True])
@pytest.mark.parametrize("names", [("gate_up_proj", "down_proj"), ("fc1.weight", "fc2.weight")])
@pytest.mark.parametrize("prefix", ["model.layers.0.mlp.experts", "trunk.stages.7.moe.experts"])
@pytest.mark.parametrize(
    "config", [{}, {"hidden_size": WIDTH}, {"model_type": "unheard_of", "d_model": WIDTH}]
)
def test_experts_either_way_round(
    tmp_path: Path, inputs_first: bool, names: tuple[str, str], prefix: str, config: dict[str, object]
) -> None:
    turned = [t.transpose(1, 2) if inputs_first else t for t in (BOTH, UPPER)]
    tensors = {f"{prefix}.{name}": tensor for name, tensor in zip(names, turned, strict=True)}
    table = ranks(write(tmp_path, tensors, **config), roles=["lower", "gate", "upper"])
    for expert in range(EXPERTS):
        for role, truth in (("gate", GATE), ("lower", LOWER), ("upper", UPPER)):
            assert values(table, expert=str(expert), matrix=role) == near(rank_of(truth[expert]))
    assert set(table[table["matrix"] == "gate"]["rows"]) == {HIDDEN}


@pytest.mark.parametrize(
    "names",
    [("transformer.blocks.0.ffn.experts.mlp", "w1", "v1", "w2"), ("net.cells.5.experts", "gate", "", "")],
)
def test_experts_below_each_other(tmp_path: Path, names: tuple[str, ...]) -> None:
    prefix, *leaves = names
    if leaves[0] == "gate":
        leaves = ["gate_proj.weight", "up_proj.weight", "down_proj.weight"]
    parts = (GATE, LOWER, UPPER.transpose(1, 2))
    tensors = {f"{prefix}.{leaf}": part.reshape(-1, WIDTH) for leaf, part in zip(leaves, parts, strict=True)}
    folder = write(tmp_path, tensors, d_model=WIDTH, ffn_config={"moe_num_experts": EXPERTS})
    table = ranks(folder, roles=["lower", "gate", "upper"])
    assert values(table, expert="1", matrix="gate") == near(rank_of(GATE[1]))
    assert values(table, expert="1", matrix="lower") == near(rank_of(LOWER[1]))
    assert values(table, expert="0", matrix="upper") == near(rank_of(UPPER[0]))
    with pytest.raises(InputError, match="does not say how many"):
        ranks(write(tmp_path, tensors, d_model=WIDTH))


@pytest.mark.parametrize("prefix", ["blk.0.", "trunk.cells.4.mlp."])
def test_a_lower_matrix_of_twice_the_units_is_a_gate_and_a_lower(tmp_path: Path, prefix: str) -> None:
    names = ("ffn_up.weight", "ffn_down.weight") if prefix == "blk.0." else ("fc1.weight", "fc2.weight")
    tensors = dict(zip((prefix + name for name in names), (BOTH[0], UPPER[0]), strict=True))
    table = ranks(write(tmp_path, tensors))
    assert values(table, matrix="gate") == near(rank_of(GATE[0]))
    assert values(table, matrix="lower") == near(rank_of(LOWER[0]))


def test_olmo_has_the_lower_half_first(tmp_path: Path) -> None:
    block = "model.transformer.blocks.0"
    tensors = {
        f"{block}.ff_proj.weight": torch.cat([LOWER[0], GATE[0]]),
        f"{block}.att_proj.weight": randn(3 * WIDTH, WIDTH),
        f"{block}.attn_out.weight": torch.eye(WIDTH),
    }
    table = ranks(write(tmp_path, tensors, model_type="olmo", n_heads=2, d_model=WIDTH), attention=True)
    assert values(table, matrix="lower") == near(rank_of(LOWER[0]))
    assert values(table, matrix="gate") == near(rank_of(GATE[0]))
    assert {"query", "key", "value", "output"} <= set(table["matrix"])


@pytest.mark.parametrize(
    "config", [{"model_type": "qwen3_next"}, {"model_type": "unheard_of", "attn_output_gate": True}]
)
def test_queries_without_their_gates(tmp_path: Path, config: dict[str, object]) -> None:
    queries, gates = randn(2, 8, 16), 4 * randn(2, 8, 16)
    tensors = {"model.layers.3.self_attn.q_proj.weight": torch.cat([queries, gates], 1).reshape(32, 16)}
    sizes = {"num_attention_heads": 2, "head_dim": 8, "hidden_size": 16}
    table = ranks(write(tmp_path, tensors, **config, **sizes), roles=["query"])
    assert values(table) == near(rank_of(queries.reshape(16, 16)))
    with pytest.raises(InputError, match="which are a gate is not known"):
        ranks(write(tmp_path, tensors, model_type="unheard_of", **sizes), roles=["query"])


def test_rows_of_keys_and_of_values_of_latent_attention(tmp_path: Path) -> None:
    heads, plain, rotary, value, rank = 2, 4, 2, 6, 5
    keys, vectors = randn(heads, plain, rank), randn(heads, value, rank)
    down = randn(rank + rotary, WIDTH)
    tensors = {
        "blocks.0.self_attn.kv_b_proj.weight": torch.cat([keys, vectors], 1).reshape(-1, rank),
        "blocks.0.self_attn.kv_a_proj_with_mqa.weight": down,
    }
    sizes = {"num_attention_heads": heads, "qk_nope_head_dim": plain, "v_head_dim": value}
    table = ranks(
        write(tmp_path, tensors, **sizes), roles=["key_up", "value_up", "key_value_down", "key_rotary"]
    )
    assert values(table, matrix="key_up") == near(rank_of(keys.reshape(-1, rank)))
    assert values(table, matrix="value_up") == near(rank_of(vectors.reshape(-1, rank)))
    assert values(table, matrix="key_value_down") == near(rank_of(down[:rank]))
    assert values(table, matrix="key_rotary") == near(rank_of(down[rank:]))


def test_keys_that_are_never_used(tmp_path: Path) -> None:
    tensors = {f"model.layers.{i}.self_attn.{m}_proj.weight": randn(8, 16) for i in range(6) for m in "qkv"}
    for settings in ({"num_kv_shared_layers": 4}, {"kv_source_layers": [0, 1, 0, 1, 0, 1]}):
        folder = write(tmp_path, tensors, num_hidden_layers=6, **settings)
        table = ranks(folder, roles=["query", "key"])
        assert set(table[table["matrix"] == "key"]["layer"]) == {0, 1}
        assert set(table[table["matrix"] == "query"]["layer"]) == set(range(6))
        unused = table[table["metric"] == "omitted"]
        assert unused["reason"].str.contains("never uses it").all()
        assert len(unused) == 8


@pytest.mark.parametrize(
    "other",
    [
        "self_attn.gate_proj",
        "self_attn.compressor.gate_proj",
        "self_attn.indexer.wk",
        "self_attn.indexer.q_b_proj",
        "attention.novel_thing.k_proj",
        "mlp.gate.router_mlp.fc1",
        "post_attention_layernorm.mlp.fc1",
        "feed_forward.key",
        "linear_attn.in_proj_qkv",
        "mamba.in_proj",
    ],
)
def test_roles_count_only_inside_their_right_parent(tmp_path: Path, other: str) -> None:
    tensors = {"trunk.cells.0.mlp.gate_proj.weight": GATE[0], f"trunk.cells.0.{other}.weight": randn(16, 16)}
    table = ranks(write(tmp_path, tensors), attention=True)
    assert values(table) == near(rank_of(GATE[0]))
    assert f"trunk.cells.0.{other}.weight" in set(table[table["metric"] == "omitted"]["matrix"])


def test_layers_experts_and_stacks() -> None:
    def where(name: str) -> tuple[int | None, str, str]:
        place = locate(name)
        return place.layer, place.stack, place.expert

    assert where("encoder.block.3.layer.0.LocalSelfAttention.q.weight") == (3, "encoder", "")
    assert where("encoder.block.3.layer.1.mlp.experts.expert_5.wi.weight") == (3, "encoder", "5")
    assert where("model.layers.2.mlp.experts.11.up_proj.weight") == (2, "", "11")
    assert where("model.layers.2.mlp.shared_experts.up_proj.weight") == (2, "", "shared")
    assert where("encoder.layers.1.blocks.0.mlp.fc1.weight") == (0, "encoder.layers.1", "")
    assert where("encoder.block.1.4.mlp.dense1.weight") == (4, "encoder.block.1", "")
    assert where("transformer.attentions.3.q_lin.weight") == (3, "", "")
    assert where("model.cross_layers.1.mlp.fc1.weight") == (1, "cross_layers", "")
    assert where("model.embed_tokens.weight") == (None, "", "")
    assert locate("decoder.block.0.layer.1.EncDecAttention.q.weight").cross
    assert not locate("decoder.block.0.layer.0.SelfAttention.q.weight").cross


@pytest.mark.parametrize(
    ("wrapped", "plain"),
    [
        ("module.layers.0.fc1.weight", "layers.0.fc1.weight"),
        (
            "base_model.model.model.layers.0.mlp.up_proj.base_layer.weight",
            "model.layers.0.mlp.up_proj.weight",
        ),
        ("_orig_mod.h.1.attn._orig_mod.c_proj.weight", "h.1.attn.c_proj.weight"),
        ("a._fsdp_wrapped_module.b._checkpoint_wrapped_module.fc1.weight", "a.b.fc1.weight"),
        ("lm_head.modules_to_save.default.weight", "lm_head.weight"),
    ],
)
def test_wrappers_are_dropped(wrapped: str, plain: str) -> None:
    assert canonical(wrapped) == plain
    assert canonical(plain) == plain


def test_wrapped_names_keep_role_and_stack() -> None:
    shapes = {
        "model.layers.1.attention._orig_mod.output.dense.weight": (4, 4),
        "model.layers.1.output.dense.weight": (4, 4),
        "model.layers.2.mlp._orig_mod.c_proj.weight": (4, 4),
        "_fsdp_wrapped_module.layers.3._fsdp_wrapped_module.mlp.up_proj.weight": (4, 4),
    }
    found = [(m.layer, m.role, m.stack) for m in find_matrices(shapes)]
    assert found == [(1, "output", ""), (1, "upper", ""), (2, "upper", ""), (3, "lower", "")]


@pytest.mark.parametrize(
    ("leaves", "roles"),
    [
        (("w1", "w2", "w3"), ("gate", "upper", "lower")),
        (("w1", "w2"), ("lower", "upper")),
        (("w1", "w2", "c_proj"), ("lower", "gate", "upper")),
        (("gate_proj", "up_proj", "down_proj"), ("gate", "lower", "upper")),
        (("expand", "contract"), ("lower", "upper")),
        (("linear_fc1", "linear_fc2"), ("lower", "upper")),
        (("0", "2"), ("lower", "upper")),
        (("intermediate_dense", "output_dense"), ("lower", "upper")),
        (("proj_in", "proj_out"), ("lower", "upper")),
    ],
)
def test_what_names_mean_beside_each_other(leaves: tuple[str, ...], roles: tuple[str, ...]) -> None:
    shapes = {f"net.units.0.feed_forward.{leaf}.weight": (4, 4) for leaf in leaves}
    found = {m.tensor.split(".")[-2]: m.role for m in find_matrices(shapes)}
    assert found == dict(zip(leaves, roles, strict=True))


def test_towers_have_sizes_of_their_own() -> None:
    """A vision tower's joint matrix is cut by its own heads, not by those of the language model."""
    shapes = {
        "vision_tower.blocks.0.attn.qkv.weight": (48, 16),
        "language_model.layers.0.attn.qkv.weight": (64, 32),
    }
    config = {
        "vision_config": {"hidden_size": 16, "num_heads": 2},
        "text_config": {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2},
    }
    rows = {
        (m.stack, m.role): m.piece.last - m.piece.first for m in find_matrices(shapes, config) if m.piece.last
    }
    assert rows["vision_tower", "query"] == rows["vision_tower", "key"] == 16
    assert (rows["language_model", "query"], rows["language_model", "key"]) == (32, 16)


def test_every_tensor_is_found_unknown_or_unclear_exactly_once() -> None:
    shapes = {
        "layers.0.mlp.up_proj.weight": (4, 4),
        "layers.0.mlp.odd.weight": (4, 4),
        "layers.0.mlp.experts.up_proj": (8, 4),
        "layers.0.norm.weight": (4,),
    }
    found = sort_out(shapes)
    names = [m.tensor for m in found.matrices] + list(found.unknown) + list(found.unclear)
    assert sorted(names) == sorted(name for name, shape in shapes.items() if len(shape) > 1)
