"""Which matrix a weight is, from its name within the right part: the names of all families, once."""

from __future__ import annotations

import re
from collections.abc import Iterable

from joma.checkpoints.families.names import Place
from joma.checkpoints.families.records import ANY, Family

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
    "key_rotary",
    "key_up",
    "value_up",
    "key_value_up",
    "key_value",
    "query_key_value",
)
"""Of self attention and (with the prefix ``cross_``) cross attention. Latent attention has queries, and keys
and values, in two factors (``down``, then ``up``), and ``key_rotary``, the keys that carry positions;
``key_value_up``, ``key_value`` and ``query_key_value`` are what could not be split."""

_JOINT = ("fused", "fused_key_value")

_ATTENTION_NAMES: tuple[tuple[str, str], ...] = (
    (
        r"query_key_value|c_attn|qkv_proj|[Ww]qkv|in_proj_weight|in_projection|attn_qkv|qkv|to_qkv|c_qkv"
        r"|att_proj|qkv_linear|linear_qkv",
        "fused",
    ),
    (r"kv|kv_proj|to_kv|key_value|c_kv|kv_lin|linear_kv", "fused_key_value"),
    (r"q_a_proj|wq_a|attn_q_a", "query_down"),
    (r"q_b_proj|wq_b|attn_q_b", "query_up"),
    (r"kv_a_proj_with_mqa|kv_a_proj|wkv_a|attn_kv_a_mqa", "key_value_down"),
    (r"kv_b_proj|wkv_b|attn_kv_b", "key_value_up"),
    (r"attn_k_b|k_b_proj", "key_up"),
    (r"attn_v_b|v_b_proj", "value_up"),
)
_LETTERS = (("q", "query", "query"), ("k", "key", "key"), ("v", "value", "value"))
_ONE_OF_THREE = tuple(
    (
        rf"{k}(_proj|_lin|_linear|_attn)?|{word}(_proj|_layer|_linear)?|[Ww]_?{k}|attn_{k}|to_({k}|{word})"
        rf"|linear_{k}|project_{k}|lin_{k}|c_{k}|proj_{k}",
        role,
    )
    for k, word, role in _LETTERS
)
_OUTPUT = (
    r"o_proj|out_proj|out_lin|o|[Ww]_?o|c_proj|dense|proj|projection|output\.dense|linear_out|out_projection|to_out"
    r"|to_out\.0|attn_output|attn_out|attention_out|output_proj|out|projection_layer|c_o|linear_o|linear_proj|proj_o|o_linear"
    r"|final",
    "output",
)
_MLP_NAMES: tuple[tuple[str, str], ...] = (
    (
        r"gate_up_proj|Wi|input_linear|w12|w13|gate_up|up_gate_proj|weights_in|ff_proj|ffn_gate_up_exps",
        "gate_and_lower",
    ),
    (r"gate_proj|w1|wi_0|ffn_gate(_exps|_shexp)?|linear_gate", "gate"),
    (
        r"fc1|fc_1|fc_in|c_fc|dense_h_to_4h|lin1|linear1|linear_1|linear_fc1|dense1|wi|wi_1|w3|v1|up_proj|lower"
        r"|(intermediate|intermediate_query)\.dense|intermediate_dense|ffn|ffn\.0|ffn_up(_exps|_shexp)?|wf\.0"
        r"|proj_in|w_in|W_in|linear_in|w_1|dense_in|expand|in_linear|layer_1|layer1|linear_up|fc0",
        "lower",
    ),
    (
        r"down_proj|fc2|fc_2|fc_out|dense_4h_to_h|lin2|linear2|linear_2|linear_fc2|dense2|wo|w2|upper"
        r"|ffn_down(_exps|_shexp)?|(output|output_query)\.dense|output_dense|ffn_output|ffn\.2|c_proj|Wo"
        r"|proj_out|w_out|W_out|linear_out|w_2|dense_out|contract|reduce|shrink|output_linear|out_linear|layer_2|layer2"
        r"|linear_down|weights_out|ff_out",
        "upper",
    ),
)
# Too short to mean this anywhere but within an MLP, or to mean attention's output right in a block.
_WITHIN_MLP = (
    (r"0|0\.proj|up|inner|in_proj|intermediate|ffw_layer_1", "lower"),
    (r"2|3|down|outer|out_proj|output|ffw_layer_2", "upper"),
)
_BLOCK_OUTPUT = (r"o_proj|out_lin|out_projection|attn_output|attn_out", "output")
_OUTSIDE = (
    (
        r"wte|embed_tokens|word_embeddings|tok_embeddings|token_embedding|token_embeddings|embed_in|tokens_embed|shared"
        r"|token_embd|embedding|embeddings|w",
        "embedding",
    ),
    (r"lm_head|embed_out|output|output_layer|ff_out", "unembedding"),
)


def _compile(table: Iterable[tuple[str, str]]) -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(rf"(?:{pattern})\Z"), role) for pattern, role in table]


_COUNTED = re.compile(r"^\d+\.")  # the number of a layer of nn.Sequential that holds the matrix
_TABLES = {
    "attention": _compile((("in_proj", "fused"), *_ATTENTION_NAMES, *_ONE_OF_THREE, _OUTPUT)),
    "mlp": _compile((*_MLP_NAMES, *_WITHIN_MLP)),
    "block": _compile((*_ATTENTION_NAMES, *_ONE_OF_THREE, _BLOCK_OUTPUT, *_MLP_NAMES)),
    "outside": _compile(_OUTSIDE),
}


def role_at(place: Place, family: Family = ANY) -> str | None:
    """The role that a place tells (``gate_and_lower``, ``fused`` where a tensor holds several), or None."""
    if place.part == "other":
        return None
    own = next(
        (role for pattern, role in family.roles if re.fullmatch(pattern, f"{place.part}.{place.leaf}")), None
    )
    leaves = (place.leaf, _COUNTED.sub("", place.leaf))
    told = (role for leaf in leaves for pattern, role in _TABLES[place.part] if pattern.match(leaf))
    role = own or next(told, None)
    if place.part == "outside":
        head = place.holder.rpartition(".")[2]
        if place.leaf == "decoder" and head in ("predictions", "lm_head"):
            return "unembedding"
        if place.leaf in ("output", "ff_out", "w") and head not in ("", "transformer", "model"):
            return None
        return role
    return f"cross_{role}" if role in (*ATTENTION_ROLES, *_JOINT) and place.cross else role


# What names mean only beside each other, within one part: all of the first are there, none of the second.
_TOGETHER: tuple[tuple[set[str], set[str], dict[str, str]], ...] = (
    ({"w1", "w2", "c_proj"}, set(), {"w1": "lower", "w2": "gate"}),  # the first Qwen
    ({"w1", "w2"}, {"w3", "v1", "c_proj"}, {"w1": "lower"}),
    ({"fc_1", "fc_2", "proj"}, set(), {"fc_1": "gate", "fc_2": "lower", "proj": "upper"}),  # LitGPT
    ({"receptance"}, set(), {"key": "", "value": "", "output": ""}),  # RWKV asks no queries
)


def role_beside(leaf: str, siblings: set[str]) -> str | None:
    """What a name means beside its siblings, where that is another thing than alone; nothing: no role."""
    return next(
        (
            meaning[leaf]
            for there, absent, meaning in _TOGETHER
            if leaf in meaning and there <= siblings and not absent & siblings
        ),
        None,
    )
