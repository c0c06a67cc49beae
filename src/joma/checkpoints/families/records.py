"""What is peculiar to a family of models: one record each. Adding a family is adding a record and its test.

Everything that holds for most families (which names mean which matrix, that queries, keys and values lie in
blocks, that the gate comes before the lower half) is said once, in ``joma.checkpoints.families.roles`` and
``joma.checkpoints.families.layout``; sizes come from a model's own configuration. A record says what neither
tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family of models, or several that agree in everything said here."""

    names: tuple[str, ...] = ()
    """Their ``model_type``."""
    roles: tuple[tuple[str, str], ...] = ()
    """Patterns of a weight's name within its part (``attention.c_attn``), before those of all families."""
    conv1d: bool = False
    """Whether ``c_attn``, ``c_fc`` and ``c_proj`` store (inputs, outputs)."""
    joint: Literal["blocks", "heads", "groups", "codegen", "falcon", "bigcode", ""] = ""
    """How queries, keys and values lie in one tensor: all queries, then all keys, then all values; head by
    head; key head by key head with the queries that read it; nothing: as the tensor's name usually means."""
    lower_first: bool = False
    """Whether the lower half comes before the gate where both are one tensor."""
    interleaved: bool = False
    """Whether rows of gate and lower alternate in tensors of several experts."""
    experts: Literal["outputs first", "inputs first", ""] = ""
    """How experts in one tensor are stored, for configurations that tell no sizes."""
    gated_queries: bool = False
    """Whether each head's queries are followed by as many rows of an output gate."""
    norms: Literal["before", "after", ""] = ""
    """Where norms stand whose names do not tell: before attention and MLP, or behind the residual
    addition."""
    parallel: bool = False
    """Whether the MLP reads what attention reads, where no flag of the model says so."""


ANY = Family()
"""A family that no record speaks of."""

FAMILIES = (
    Family(names=("gpt2", "imagegpt", "decision_transformer", "gpt-sw3"), conv1d=True),
    Family(names=("openai-gpt",), conv1d=True, norms="after"),
    Family(names=("gpt_neox", "gpt_neox_japanese", "bloom", "persimmon", "fuyu", "deberta"), joint="heads"),
    Family(names=("falcon",), joint="falcon"),
    Family(names=("gpt_bigcode",), joint="bigcode"),
    Family(names=("codegen",), joint="codegen", parallel=True),
    Family(names=("chatglm", "glm", "glm4"), joint="blocks"),
    Family(names=("internlm2",), joint="groups"),
    Family(names=("olmo", "hf_olmo"), lower_first=True),
    Family(names=("moonshine", "moonshine_streaming", "phi4_multimodal_audio"), lower_first=True),
    Family(names=("gpt_oss",), interleaved=True, experts="inputs first"),
    Family(names=("openai_privacy_filter",), experts="inputs first"),
    Family(names=("llama4", "llama4_text"), experts="inputs first", norms="before"),
    Family(
        names=(
            *(
                "qwen2_moe",
                "qwen3_moe",
                "qwen3_vl_moe",
                "qwen3_vl_moe_text",
                "qwen3_omni_moe",
                "mixtral",
                "olmoe",
            ),
            *("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe", "ernie4_5_moe", "phimoe", "jamba"),
            *("granitemoe", "granitemoeshared", "granitemoehybrid", "minimax", "minimax_m2", "hy_v3", "dbrx"),
        ),
        experts="outputs first",
    ),
    Family(
        names=(
            *("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
            *("qwen4_exp", "qwen4_exp_text"),
        ),
        gated_queries=True,
        experts="outputs first",
    ),
    Family(names=("gptj", "phi", "cohere", "cohere2"), parallel=True),
    Family(names=("bart", "marian", "plbart", "blenderbot-small", "xlm", "flaubert"), norms="after"),
    Family(
        names=(
            *(
                "mbart",
                "pegasus",
                "whisper",
                "m2m_100",
                "blenderbot",
                "xglm",
                "biogpt",
                "opt",
                "gpt_neo",
                "pegasus_x",
            ),
            *("speech_to_text", "trocr", "esm", "nllb-moe", "bigbird_pegasus", "siglip"),
        ),
        norms="before",
    ),
)

_BY_NAME = {name: family for family in FAMILIES for name in family.names}


def family_of(model_type: str) -> Family:
    """The record of a ``model_type``, or ``ANY``."""
    return _BY_NAME.get(model_type, ANY)
