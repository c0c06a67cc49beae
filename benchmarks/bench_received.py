"""Received attention beside the entropy, interleaved: ratios of times and peak memory, one thread.

``python benchmarks/bench_received.py [TOKENS ...]``; the shape of SmolLM2-135M: 9 heads, 3 of keys, width 64.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import torch

import joma

ROUNDS = 3


def seconds(call: object) -> float:
    """Of one call."""
    assert callable(call)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main(tokens: int) -> None:
    """Medians of interleaved rounds, and their ratios to the entropy's."""
    random = torch.Generator().manual_seed(0)
    query = torch.randn(1, 9, tokens, 64, generator=random)
    key, value = (torch.randn(1, 3, tokens, 64, generator=random) for _ in range(2))
    calls = {
        "entropy": lambda: joma.attention_entropy(query, key, causal=True),
        "mass": lambda: joma.received_attention(query, key, causal=True),
        "mass and removal": lambda: joma.received_attention(query, key, value, causal=True),
        "eager mass": lambda: eager(query, key),
    }
    for call in calls.values():
        call()
    times = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(seconds(call))
    base = median(times["entropy"])
    redone = joma.received_attention(query, key, value, causal=True).redone
    for name, found in times.items():
        print(f"T = {tokens}: {name}: {median(found):.3f} s, {median(found) / base:.2f} of the entropy")
    print(f"T = {tokens}: {redone} of 9 heads computed again in float64")


def eager(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The mass from the whole matrix."""
    scores = query @ key.repeat_interleave(3, 1).mT * query.shape[-1] ** -0.5
    hidden = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
    return scores.masked_fill_(hidden, -torch.inf).softmax(-1).sum(-2)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for size in [int(word) for word in sys.argv[1:]] or [2048]:
        main(size)
