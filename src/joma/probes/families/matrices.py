"""Which tensor of a checkpoint is which matrix: lower MLP, gate, queries, keys, values, output, embedding.

By the tensors' names, for the families of language and vision models in use, as their files name them
and as ``state_dict`` does, and as llama.cpp does in GGUF. Fused tensors are taken apart, experts one by
one, and every matrix is given as (outputs, inputs), whichever way it is stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

MLP_ROLES = ("lower", "gate")
"""From the residual stream to the hidden units: the W of JoMA Eq. 1; a gated MLP has two of them."""
ATTENTION_ROLES = (
    "query",
    "key",
    "value",
    "output",
    "query_down",
    "query_up",
    "key_value_down",
    "key_value_up",
    "query_key_value",
)
"""Of self attention and (with the prefix ``cross_``) cross attention. Latent attention has queries, and
keys and values, in two factors (``down``, then ``up``); ``query_key_value`` is what could not be split."""

# Of the name's end, without ".weight"; the first that matches. None: known, and none of these.
_PATTERNS: tuple[tuple[str, str | None], ...] = (
    (r"(shared_expert_gate|mlp\.gate|router(\.\w+)?|feed_forward\.gate|block_sparse_moe\.gate)", None),
    (r"(pooler|bottleneck|contact_head)\..*", None),
    (r"h\.\d+\.mlp\.w1", "lower"),  # the first Qwen
    (r"h\.\d+\.mlp\.w2", "gate"),
    (r"(gate_up_proj|mlp\.Wi)", "gate_and_lower"),
    (r"(gate_proj|w1|wi_0|ffn_gate(_exps|_shexp)?)", "gate"),
    (
        r"(fc1|fc_in|c_fc|dense_h_to_4h|lin1|linear1|wi|wi_1|w3|up_proj|lower|intermediate\.dense|ffn"
        r"|ffn\.0|ffn_up(_exps|_shexp)?|wf\.0)",
        "lower",
    ),
    (
        r"(down_proj|fc2|fc_out|dense_4h_to_h|lin2|linear2|DenseReluDense\.wo|w2|ffn_down(_exps|_shexp)?"
        r"|upper|ffn_output|ffn\.2|mlp\.c_proj|mlp\.Wo)",
        "upper",
    ),
    (r"(query_key_value|c_attn|qkv_proj|Wqkv|wqkv|in_proj_weight|in_projection|attn_qkv|qkv)", "fused"),
    (r"q_a_proj|attn_q_a", "query_down"),
    (r"q_b_proj|attn_q_b", "query_up"),
    (r"kv_a_proj_with_mqa|attn_kv_a_mqa", "key_value_down"),
    (r"kv_b_proj|attn_kv_b", "key_value_up"),
    (r"(q_proj|query|query_proj|q_lin|q|Wq|wq|attn_q|to_q)", "query"),
    (r"(k_proj|key|key_proj|k_lin|k|Wk|wk|attn_k|to_k)", "key"),
    (r"(v_proj|value|value_proj|v_lin|v|Wv|wv|attn_v|to_v)", "value"),
    (
        r"(o_proj|out_lin|o|attn_output|out_projection"
        r"|\w*(attn|attention)\.(out_proj|c_proj|Wo|wo|dense|output\.dense|proj))",
        "output",
    ),
    (r"output\.dense", "upper"),
)
_OUTSIDE_LAYERS: tuple[tuple[str, str], ...] = (
    (
        r"(wte|embed_tokens|word_embeddings|tok_embeddings|token_embedding|embed_in|tokens_embed|shared"
        r"|token_embd|embedding|(^|transformer\.)w)",
        "embedding",
    ),
    (r"(lm_head|embed_out|predictions\.decoder|^output)", "unembedding"),
)
_COMPILED = [(re.compile(rf"(?:^|.*\.)(?:{p})$"), role) for p, role in _PATTERNS]
_COMPILED_OUTSIDE = [(re.compile(rf"(?:^|.*\.)(?:{p})$"), role) for p, role in _OUTSIDE_LAYERS]
_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?|blk|albert_layers)\.(\d+)(?=\.)")
_T5_PART = re.compile(r"layer\.\d+\.(?=SelfAttention|EncDecAttention|DenseReluDense)")
_EXPERT = re.compile(r"(?:^|\.)experts?\.(\d+)\.")
_CROSS = re.compile(
    r"(encoder_attn|EncDecAttention|crossattention|cross_attn|cross_attention|multihead_attn)\b"
)
_IDLE_PREFIXES = {"model", "transformer", "module", "_orig_mod", "gpt_neox", "base_model"}

_CONV1D_MODELS = {"gpt2", "openai-gpt", "imagegpt", "decision_transformer"}
_PER_HEAD = {"query_key_value"}
_CODEGEN_SHARDS = 4


@dataclass(frozen=True)
class Matrix:
    """One weight matrix and where in a checkpoint it stands."""

    tensor: str
    """Name of the tensor that holds it, perhaps among others."""
    role: str
    """One of :data:`MLP_ROLES`, ``upper``, :data:`ATTENTION_ROLES`, ``embedding``, ``unembedding``."""
    layer: int | None
    stack: str
    """What tells apart layers of one number: ``encoder``, ``decoder``, ``vision_model.encoder``, ..."""
    expert: str
    """Number of the expert, ``shared``, or nothing."""
    index: int | None = None
    transposed: bool = False
    groups: int = 1
    first: int = 0
    last: int | None = None

    def take(self, tensor: Tensor) -> Tensor:
        """The matrix, (outputs, inputs), out of its tensor as read."""
        matrix = tensor if self.index is None else tensor[self.index]
        if self.transposed:
            matrix = matrix.T
        if self.groups == 1 and self.last is None:
            return matrix
        inputs = matrix.shape[1]
        rows = matrix.reshape(self.groups, -1, inputs)[:, self.first : self.last]
        return rows.reshape(-1, inputs)


def find_matrices(
    shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any] | None = None
) -> list[Matrix]:
    """The matrices of a checkpoint that are known by name, layer by layer.

    Args:
        shapes: name and shape of every tensor.
        config: the model's ``config.json``. It tells how fused queries, keys and values are laid out;
            without it, those of head-wise layout (GPT-NeoX, BLOOM, Falcon) stay whole, as
            ``query_key_value``.
    """
    config = _language_part(config or {})
    conv1d = _stores_inputs_first(shapes, config)
    found = [
        part
        for name, shape in shapes.items()
        for matrix in _identify(name, shape)
        for part in _parts(matrix, shape, config, conv1d)
    ]
    return sorted(
        found,
        key=lambda m: (
            m.stack,
            -1 if m.layer is None else m.layer,
            _rank(m.role),
            _number(m.expert),
            m.tensor,
        ),
    )


def _rank(role: str) -> tuple[bool, int]:
    plain = role.removeprefix("cross_")
    order = ("embedding", *ATTENTION_ROLES, *reversed(MLP_ROLES), "upper", "unembedding")
    return plain != role, order.index(plain)


def _number(expert: str) -> int:
    return int(expert) if expert.isdigit() else -1


def role_of(name: str) -> str | None:
    """The role that a tensor's name tells (``gate_and_lower``, ``fused`` where it holds several), or None."""
    bare = name.removesuffix(".weight")
    if bare.endswith(("bias", "_blocks", "_scales", "scale_inv", "_scale")):
        return None
    if not _LAYER.search(name):
        return next((role for pattern, role in _COMPILED_OUTSIDE if pattern.match(bare)), None)
    role = next((role for pattern, role in _COMPILED if pattern.match(bare)), None)
    return f"cross_{role}" if role in (*ATTENTION_ROLES, "fused") and _CROSS.search(name) else role


def _identify(name: str, shape: tuple[int, ...]) -> list[Matrix]:
    role = role_of(name)
    if role is None or len(shape) not in (2, 3):
        return []
    plain = _T5_PART.sub("", name)
    layers = list(_LAYER.finditer(plain))
    prefix = plain[: layers[-1].start()] if layers else ""
    stack = ".".join(part for part in prefix.split(".") if part not in _IDLE_PREFIXES and part)
    expert = _EXPERT.search(name)
    which = expert.group(1) if expert else "shared" if re.search(r"shared_expert|_shexp", name) else ""
    matrix = Matrix(name, role, int(layers[-1].group(1)) if layers else None, stack, which)
    if len(shape) == 2:
        return [matrix]
    if "exp" not in name:  # a convolution, not experts in one tensor
        return []
    return [replace(matrix, index=number, expert=str(number)) for number in range(shape[0])]


def _parts(matrix: Matrix, shape: tuple[int, ...], config: Mapping[str, Any], conv1d: bool) -> list[Matrix]:
    model = str(config.get("model_type", ""))
    last_name = matrix.tensor.removesuffix(".weight").rpartition(".")[2]
    inputs_first = conv1d and last_name in ("c_attn", "c_fc", "c_proj")
    interleaved = matrix.index is not None and model == "gpt_oss"
    if inputs_first or interleaved:
        matrix = replace(matrix, transposed=True)
    outputs = shape[-1] if matrix.transposed else shape[-2]
    inputs = shape[-2] if matrix.transposed else shape[-1]
    gated = matrix.role == "gate_and_lower" or (matrix.role == "lower" and model == "chatglm")
    if gated and outputs % 2 == 0:
        if interleaved:
            half = replace(matrix, groups=outputs // 2)
            return [replace(half, role="gate", last=1), replace(half, role="lower", first=1, last=2)]
        middle = outputs // 2
        return [
            replace(matrix, role="gate", last=middle),
            replace(matrix, role="lower", first=middle, last=outputs),
        ]
    if matrix.role not in ("fused", "cross_fused"):
        return [matrix]
    prefix = "cross_" if matrix.role.startswith("cross_") else ""
    layout = _fused_layout(last_name, outputs, inputs, config)
    if layout is None:
        return [replace(matrix, role=f"{prefix}query_key_value")]
    groups, sizes = layout
    parts, first = [], 0
    for role, size in sizes:
        parts.append(replace(matrix, role=f"{prefix}{role}", groups=groups, first=first, last=first + size))
        first += size
    return parts


def _fused_layout(
    name: str, outputs: int, inputs: int, config: Mapping[str, Any]
) -> tuple[int, list[tuple[str, int]]] | None:
    """Groups of rows, and in each how many are whose; None where that is not known."""
    model = str(config.get("model_type", ""))
    heads = _first(config, "num_attention_heads", "n_head", "n_heads", "num_heads")
    attention = config.get("attn_config")
    nested = attention if isinstance(attention, Mapping) else {}
    pairs = (
        _first(config, "num_key_value_heads", "num_kv_heads", "multi_query_group_num")
        or _first(nested, "kv_n_heads")
        or heads
    )
    if model == "codegen" and outputs % (3 * _CODEGEN_SHARDS) == 0:
        size = outputs // (3 * _CODEGEN_SHARDS)
        return _CODEGEN_SHARDS, [("query", size), ("value", size), ("key", size)]
    head_wise = name == "query_key_value" and model not in ("chatglm", "glm")
    grouped = name == "wqkv"
    if model == "falcon":
        new = bool(config.get("new_decoder_architecture"))
        head_wise, grouped = not new and not config.get("multi_query", True), new
        pairs = pairs if new else (heads if head_wise else 1)
    if model == "gpt_bigcode":
        head_wise, pairs = not config.get("multi_query", True), 1
    if heads is None or pairs is None:
        thirds = outputs == 3 * inputs and not head_wise and not grouped
        return (1, [(role, inputs) for role in ("query", "key", "value")]) if thirds else None
    if head_wise:
        pairs = heads
    size, remainder = divmod(outputs, heads + 2 * pairs)
    if remainder or heads % pairs:
        return None
    if head_wise or grouped:
        return pairs, [("query", size * heads // pairs), ("key", size), ("value", size)]
    return 1, [("query", size * heads), ("key", size * pairs), ("value", size * pairs)]


def _first(config: Mapping[str, Any], *keys: str) -> int | None:
    return next((config[key] for key in keys if isinstance(config.get(key), int)), None)


def _language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of the language model in a model of several kinds of input."""
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and _first(inner, "num_attention_heads", "n_head", "num_heads"):
        return inner
    return config


def _stores_inputs_first(shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]) -> bool:
    """Whether c_attn, c_fc and c_proj are Conv1D modules (GPT-2), which store (inputs, outputs)."""
    if "model_type" in config:
        return str(config["model_type"]) in _CONV1D_MODELS
    lower = [shape for name, shape in shapes.items() if re.search(r"\.c_fc(\.weight)?$", name)]
    return bool(lower) and all(len(shape) == 2 and shape[0] < shape[1] for shape in lower)
