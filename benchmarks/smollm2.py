"""A model of SmolLM2-135M's size with random weights, for benchmarks without the real one."""

from __future__ import annotations

import torch


def random_model(*, positions: int, implementation: str = "sdpa") -> torch.nn.Module:
    """Llama-like, in float32 and evaluation mode."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
    )
    model: torch.nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    return model.eval()
