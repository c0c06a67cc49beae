"""Tiny random models of many families of transformers, and their attention entropies by the eager way."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VOCABULARY = 64
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_COMMON, "num_key_value_heads": 2, "head_dim": 8}
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_VISION = {**_COMMON, "image_size": 32, "patch_size": 8}

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "llama": _GROUPED,
    "mistral": {**_GROUPED, "sliding_window": 4},
    "qwen2": _GROUPED,
    "qwen3": _GROUPED,
    "gemma2": {**_GROUPED, "sliding_window": 4, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8},
    "gemma3_text": {**_GROUPED, "sliding_window": 4, "query_pre_attn_scalar": 8},
    "opt": {**_COMMON, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "gpt_neox": _COMMON,
    "bert": _COMMON,
    "t5": _T5,
    # The rest are for the slow tests.
    "gptj": {
        "vocab_size": VOCABULARY,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "rotary_dim": 4,
    },
    "gpt_bigcode": {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_neo": {
        **_COMMON,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 4,
    },
    "codegen": {
        "vocab_size": VOCABULARY,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "rotary_dim": 4,
    },
    "olmo": _GROUPED,
    "olmo2": _GROUPED,
    "phi": {**_COMMON, "num_key_value_heads": 2},
    "phi3": {**_GROUPED, "sliding_window": None},
    "gemma": _GROUPED,
    "starcoder2": {**_GROUPED, "sliding_window": 4},
    "stablelm": {**_COMMON, "num_key_value_heads": 2},
    "cohere": _GROUPED,
    "granite": _GROUPED,
    "smollm3": _GROUPED,
    "nemotron": _GROUPED,
    "glm": {**_GROUPED, "partial_rotary_factor": 0.5},
    "mixtral": {**_GROUPED, **_EXPERTS, "sliding_window": None},
    "qwen3_moe": {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "deepseek_v3": {
        **_COMMON,
        "num_key_value_heads": 4,
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "first_k_dense_replace": 2,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
    },
    "gpt_oss": {
        **_GROUPED,
        **_EXPERTS,
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "bloom": {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "falcon": {**_COMMON, "new_decoder_architecture": False, "multi_query": True, "alibi": False},
    "mpt": {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    "xglm": {"vocab_size": VOCABULARY, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4},
    "roberta": _COMMON,
    "distilbert": {"vocab_size": VOCABULARY, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4},
    "electra": {**_COMMON, "embedding_size": 16},
    "albert": {**_COMMON, "embedding_size": 16},
    "deberta-v2": {
        **_COMMON,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 8,
    },
    "modernbert": {**_COMMON, "local_attention": 8, "global_attn_every_n_layers": 2},
    "mpnet": _COMMON,
    "bart": _BART,
    "mbart": _BART,
    "pegasus": _BART,
    "mt5": _T5,
    "vit": _VISION,
    "deit": _VISION,
    "dinov2": _VISION,
}
FAST = tuple(FAMILIES)[:11]
ENCODER_DECODERS = ("t5", "mt5", "bart", "mbart", "pegasus")
IMAGES = ("vit", "deit", "dinov2")
BY_SOFTMAX_ONLY = ("gemma2", "gpt_oss", "bloom", "falcon", "mpt", "gpt_neo", "xglm", "deberta-v2")


def tiny_model(family: str, implementation: str | None = None) -> Any:
    """A random model of a family, in evaluation mode; the same weights for every implementation."""
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(family, **FAMILIES[family])
    torch.manual_seed(0)
    model = AutoModel.from_config(
        config, **({} if implementation is None else {"attn_implementation": implementation})
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            torch.manual_seed(len(name))
            if parameter.ndim > 1 or "sinks" in name:  # far enough from uniform attention to tell errors
                parameter.normal_(std=0.3)
    return model.eval()


def tiny_batch(family: str, padding: str = "none", length: int = 14) -> dict[str, Tensor]:
    """Two samples, the second shorter by five tokens where there is padding."""
    generator = torch.Generator().manual_seed(7)
    if family in IMAGES:
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator)}
    tokens = torch.randint(3, VOCABULARY, (2, length), generator=generator)
    kept = torch.ones_like(tokens)
    if padding == "left":
        kept[1, :5] = 0
    elif padding == "right":
        kept[1, -5:] = 0
    batch = {"input_ids": tokens.masked_fill(kept == 0, 0)}
    if padding != "none":
        batch["attention_mask"] = kept
    if family in ENCODER_DECODERS:
        batch["decoder_input_ids"] = torch.randint(3, VOCABULARY, (2, 9), generator=generator)
    return batch


def eager_entropies(family: str, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Mean entropies over the valid rows in float64 from eager attentions: kind -> (layers, heads)."""
    model = tiny_model(family, "eager")
    with torch.no_grad():
        outputs = model(**batch, output_attentions=True)
    kept = batch.get("attention_mask")
    if family not in ENCODER_DECODERS:
        return {"self": torch.stack([_mean(a, kept) for a in outputs.attentions])}
    return {
        "encoder": torch.stack([_mean(a, kept) for a in outputs.encoder_attentions]),
        "decoder": torch.stack([_mean(a, None) for a in outputs.decoder_attentions]),
        "cross": torch.stack([_mean(a, None) for a in outputs.cross_attentions]),
    }


def _mean(probabilities: Tensor, kept: Tensor | None) -> Tensor:
    assert probabilities.dtype in (torch.float32, torch.float64)
    # Beside a sink the probabilities sum to less than one; the keys' own distribution is meant.
    probabilities = probabilities.double() / probabilities.double().sum(-1, keepdim=True)
    entropy = torch.special.entr(probabilities).sum(-1)
    if kept is None:
        return entropy.mean((0, 2))
    return (entropy.nan_to_num(0.0) * kept[:, None]).sum((0, 2)) / kept.sum()


def save_small_model(path: Path, layers: int, text: str = "") -> Path:
    """A Llama with its tokenizer of 63 words, ``w1`` to ``w63`` or the most frequent ones of a text."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = tiny_model("llama").config
    config.num_hidden_layers = layers
    config.hidden_size, config.intermediate_size, config.num_attention_heads = 8, 8, 2
    config.num_key_value_heads, config.head_dim = 1, 4
    config.max_position_embeddings = 1024
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    frequent = [word for word, _ in Counter(text.split()).most_common(63)]
    words = {"<unk>": 0, **{w: n for n, w in enumerate(frequent or [f"w{n}" for n in range(1, 64)], 1)}}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(path)
    return path
