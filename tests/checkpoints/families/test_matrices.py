"""Which weights are what, against the models that transformers builds and runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from joma.checkpoints.families.matrices import MLP_ROLES, Matrix, find_matrices, role_of

transformers = pytest.importorskip("transformers")

WIDTH, HIDDEN, HEADS, PAIRS = 16, 24, 4, 2
COMMON = {
    "num_hidden_layers": 2,
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": PAIRS,
    "vocab_size": 32,
    "pad_token_id": 0,
}
BOTH = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_model": WIDTH,
    "encoder_ffn_dim": HIDDEN,
    "decoder_ffn_dim": HIDDEN,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
}
T5 = {
    "num_layers": 2,
    "num_decoder_layers": 2,
    "d_model": WIDTH,
    "d_kv": 4,
    "d_ff": HIDDEN,
    "num_heads": HEADS,
}
GPT2 = {"n_layer": 2, "n_embd": WIDTH, "n_head": HEADS, "n_inner": HIDDEN}
# Model -> its settings, the shapes of its lower MLP matrices per layer, and how many layers.
PLAIN, GATED = [(HIDDEN, WIDTH)], [(HIDDEN, WIDTH)] * 2
FOURFOLD = [(4 * WIDTH, WIDTH)]
FAMILIES: dict[str, tuple[dict[str, Any], list[tuple[int, int]], int]] = {
    "albert": (COMMON | {"embedding_size": 8}, PLAIN, 1),
    "bart": (BOTH, PLAIN, 4),
    "bert": (COMMON, PLAIN, 2),
    "biogpt": (COMMON, PLAIN, 2),
    "bloom": ({"n_layer": 2, "hidden_size": WIDTH, "n_head": HEADS}, FOURFOLD, 2),
    "codegen": (GPT2 | {"rotary_dim": 2}, PLAIN, 2),
    "cohere": (COMMON, GATED, 2),
    "deberta-v2": (COMMON, PLAIN, 2),
    "deepseek_v3": (
        COMMON
        | {"first_k_dense_replace": 2, "q_lora_rank": 4, "kv_lora_rank": 4, "qk_rope_head_dim": 2}
        | {"v_head_dim": 4, "qk_nope_head_dim": 2, "n_routed_experts": 8},
        GATED,
        2,
    ),
    "dinov2": (COMMON, FOURFOLD, 2),
    "distilbert": ({"n_layers": 2, "dim": WIDTH, "hidden_dim": HIDDEN, "n_heads": HEADS}, PLAIN, 2),
    "electra": (COMMON | {"embedding_size": 8}, PLAIN, 2),
    "falcon": (COMMON, FOURFOLD, 2),
    "gemma2": (COMMON | {"head_dim": 4}, GATED, 2),
    "gemma3_text": (COMMON | {"head_dim": 4}, GATED, 2),
    "glm": (COMMON | {"head_dim": 4}, GATED, 2),
    "gpt2": (GPT2, PLAIN, 2),
    "gpt_bigcode": (GPT2, PLAIN, 2),
    "gpt_neo": (
        {"num_layers": 2, "hidden_size": WIDTH, "num_heads": HEADS, "intermediate_size": HIDDEN}
        | {"attention_types": [[["global"], 2]]},
        PLAIN,
        2,
    ),
    "gpt_neox": (COMMON, PLAIN, 2),
    "gpt_oss": (COMMON | {"num_local_experts": 3, "head_dim": 4}, GATED * 3, 2),
    "gptj": (GPT2 | {"rotary_dim": 2}, PLAIN, 2),
    "granite": (COMMON, GATED, 2),
    "lfm2": (
        COMMON | {"layer_types": ["full_attention"] * 2, "block_auto_adjust_ff_dim": False},
        GATED,
        2,
    ),
    "llama": (COMMON, GATED, 2),
    "mistral": (COMMON, GATED, 2),
    "mixtral": (COMMON | {"num_local_experts": 3}, GATED * 3, 2),
    "modernbert": (
        COMMON | {"bos_token_id": 0, "eos_token_id": 0, "cls_token_id": 0, "sep_token_id": 0},
        GATED,
        2,
    ),
    "mpt": ({"n_layers": 2, "d_model": WIDTH, "n_heads": HEADS}, FOURFOLD, 2),
    "mt5": (T5, GATED, 4),
    "nemotron": (COMMON, PLAIN, 2),
    "olmo2": (COMMON, GATED, 2),
    "opt": (
        {"num_hidden_layers": 2, "hidden_size": WIDTH, "num_attention_heads": HEADS, "ffn_dim": HIDDEN},
        PLAIN,
        2,
    ),
    "persimmon": (COMMON, PLAIN, 2),
    "phi": (COMMON, PLAIN, 2),
    "phi3": (COMMON, GATED, 2),
    "qwen2": (COMMON, GATED, 2),
    "qwen2_moe": (
        COMMON
        | {"num_experts": 3, "moe_intermediate_size": HIDDEN, "shared_expert_intermediate_size": HIDDEN}
        | {"num_experts_per_tok": 1},
        GATED * 4,
        2,
    ),
    "qwen3": (COMMON | {"head_dim": 4}, GATED, 2),
    "roberta": (COMMON, PLAIN, 2),
    "stablelm": (COMMON, GATED, 2),
    "starcoder2": (COMMON, PLAIN, 2),
    "swin": ({"depths": [1, 1], "num_heads": [2, 2], "embed_dim": 8}, [], 0),
    "t5": (T5, PLAIN, 4),
    "vit": (COMMON, PLAIN, 2),
    "whisper": (BOTH | {"vocab_size": 60000}, PLAIN, 4),
    "xglm": ({"num_layers": 2, "d_model": WIDTH, "attention_heads": HEADS, "ffn_dim": HIDDEN}, PLAIN, 2),
}


def build(model_type: str, device: str = "meta", **more: Any) -> Any:
    config = transformers.AutoConfig.for_model(model_type, **{**FAMILIES[model_type][0], **more})
    with torch.device(device):
        return transformers.AutoModel.from_config(config)


def matrices_of(model: Any) -> tuple[dict[str, torch.Tensor], list[Matrix]]:
    tensors = dict(model.named_parameters())
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return tensors, find_matrices(shapes, model.config.to_dict())


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_lower_mlp_is_found_and_oriented(model_type: str) -> None:
    tensors, found = matrices_of(build(model_type))
    _, expected, layers = FAMILIES[model_type]
    by_layer: dict[tuple[str, int | None], list[tuple[int, ...]]] = {}
    for matrix in found:
        if matrix.role in MLP_ROLES:
            shape = tuple(matrix.take(tensors[matrix.tensor]).shape)
            by_layer.setdefault((matrix.stack, matrix.layer), []).append(shape)
    swin = [[(32, 8)], [(64, 16)]]  # its layers widen
    expected_layers = swin if model_type == "swin" else [expected] * layers
    assert list(by_layer.values()) == expected_layers
    gates = [m for m in found if m.role == "gate"]
    lowers = [m for m in found if m.role == "lower"]
    assert len(gates) in (0, len(lowers))
    for query in (m for m in found if m.role == "query"):
        assert query.take(tensors[query.tensor]).shape[1] in (WIDTH, 8, 16)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_no_matrix_of_a_layer_is_overlooked(model_type: str) -> None:
    tensors, found = matrices_of(build(model_type))
    known = {matrix.tensor for matrix in found}
    aside = (
        "relative",
        "norm",
        "router",
        "mlp.gate.weight",
        "shared_expert_gate",
        "conv",
        "bias",
        "downsample",
    )
    for name, tensor in tensors.items():
        inside = any(f".{number}." in name for number in range(2))
        if inside and tensor.ndim >= 2 and not any(word in name for word in aside):
            assert name in known, name
    assert any(m.role == "embedding" for m in found) or model_type in ("vit", "dinov2", "swin")


class SeeAttention(TorchFunctionMode):
    """Keeps the queries, keys and values of every scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[torch.Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            named = kwargs or {}
            self.calls.append([*args[:3], *(named[k] for k in ("query", "key", "value") if k in named)])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("model_type", "more"),
    [
        ("gpt2", {}),
        ("gpt_neox", {}),
        ("phi3", {}),
        ("persimmon", {}),
        ("gpt_bigcode", {"multi_query": True}),
        ("gpt_bigcode", {"multi_query": False}),
        ("falcon", {"multi_query": True}),
        ("falcon", {"multi_query": False}),
        ("falcon", {"new_decoder_architecture": True, "num_kv_heads": PAIRS}),
    ],
)
def test_fused_queries_keys_and_values_are_those_of_the_forward_pass(
    model_type: str, more: dict[str, Any]
) -> None:
    """At the first position, where rotary embeddings turn nothing, they are W x + b of the model's own."""
    torch.manual_seed(0)
    model = build(model_type, "cpu", attn_implementation="sdpa", **more).eval()
    tensors, found = matrices_of(model)
    parts = {m.role: m for m in found if m.layer == 0 and m.role in ("query", "key", "value")}
    assert len({m.tensor for m in parts.values()}) == 1
    fused = model.get_submodule(parts["query"].tensor.removesuffix(".weight"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
        for name, module in model.named_modules():
            if name.endswith(("q_layernorm", "k_layernorm")):  # Persimmon's, after the split
                module.forward = lambda x: x
        if fused.bias is not None:
            fused.bias.zero_()
    inputs: list[torch.Tensor] = []
    fused.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0]))
    with SeeAttention() as seen, torch.no_grad():
        model(torch.tensor([[3, 1, 4, 1, 5]]))
    first = inputs[0][0, 0]
    for role, state in zip(("query", "key", "value"), seen.calls[0], strict=True):
        ours = parts[role].take(tensors[parts[role].tensor]) @ first
        theirs = state[0, :, 0].detach().flatten()
        if theirs.numel() > ours.numel():  # repeated for each query head
            theirs = state[0, :, 0].unflatten(0, (ours.numel() // state.shape[-1], -1))[:, 0].flatten()
        torch.testing.assert_close(ours.detach(), theirs, atol=1e-5, rtol=1e-4)


def test_gate_comes_first_in_fused_gates() -> None:
    """With the gate's half zero and the other at random, the MLP is silent."""
    model = build("phi3", "cpu")
    tensors, found = matrices_of(model)
    gate = next(m for m in found if m.role == "gate")
    with torch.no_grad():
        gate.take(tensors[gate.tensor]).zero_()
        assert float(model.layers[0].mlp(torch.randn(1, 3, WIDTH)).abs().max()) == 0.0


def test_interleaved_gates_of_gpt_oss() -> None:
    tensors, found = matrices_of(build("gpt_oss", "cpu"))
    parts = {(m.role, m.expert): m for m in found if m.layer == 1}
    fused = tensors["layers.1.mlp.experts.gate_up_proj"].detach()
    for role, offset in (("gate", 0), ("lower", 1)):
        taken = parts[role, "2"].take(fused)
        assert torch.equal(taken, fused[2, :, offset::2].T)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("model.layers.3.block_sparse_moe.experts.7.w1.weight", "gate"),
        ("model.layers.3.block_sparse_moe.experts.7.w3.weight", "lower"),
        ("model.layers.3.block_sparse_moe.gate.weight", None),
        ("blk.4.ffn_up.weight", "lower"),
        ("blk.4.ffn_gate_exps.weight", "gate"),
        ("blk.4.attn_output.weight", "output"),
        ("blk.4.attn_norm.weight", None),
        ("token_embd.weight", "embedding"),
        ("output.weight", "unembedding"),
        ("model.layers.0.mlp.experts.gate_up_proj_blocks", None),
        ("module.layers.0.linear1.weight", "lower"),
        ("layers.1.in_projection.weight", "fused"),
        ("decoder.layers.1.encoder_attn.q_proj.weight", "cross_query"),
        ("lm_head.weight", "unembedding"),
        ("model.layers.0.self_attn.q_proj.bias", None),
    ],
)
def test_names_of_files(name: str, role: str | None) -> None:
    assert role_of(name) == role


def test_without_config_what_cannot_be_known_stays_whole() -> None:
    shapes = {
        "h.0.attn.c_attn.weight": (8, 24),
        "h.0.mlp.c_fc.weight": (8, 32),
        "h.0.mlp.c_proj.weight": (32, 8),
        "layers.0.attention.query_key_value.weight": (24, 8),
        "layers.0.attn.qkv_proj.weight": (24, 8),
    }
    found = find_matrices(shapes)
    roles = {m.tensor: [] for m in found}
    for matrix in found:
        roles[matrix.tensor].append(matrix.role)
    assert roles["layers.0.attention.query_key_value.weight"] == ["query_key_value"]
    assert roles["layers.0.attn.qkv_proj.weight"] == ["query", "key", "value"]
    lower = next(m for m in found if m.role == "lower")
    assert lower.take(torch.empty(8, 32)).shape == (32, 8), "GPT-2's, told by its shape"
