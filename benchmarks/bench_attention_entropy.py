"""Attention entropy beside the attention it is measured on and beside what people do today.

One layer of SmolLM2-135M's shape (9 query heads, 3 key heads, width 64, float32, causal). In one
interleaved run, as ratios to PyTorch's own attention on the same queries and keys:

- *ours*: ``joma.attention_entropy``, every row;
- *ours, 1 row in 8*: the sampled mode;
- *by the matrix*: softmax of the whole matrix and -sum p log p, what eager attentions allow.

Run it alone on the machine: ``python benchmarks/bench_attention_entropy.py [LENGTH ...]``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

import joma

ROUNDS = 5
DENSE_UP_TO = 2048


def by_the_matrix(query, key):
    heads = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query @ heads.mT * query.shape[-1] ** -0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    probabilities = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return joma.entropy_of_probabilities(probabilities)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    lengths = [int(text) for text in sys.argv[1:]] or [256, 1024, 2048, 4096]
    random = torch.Generator().manual_seed(0)
    print(f"{'keys':>6} {'attention':>10} {'ours':>7} {'1 in 8':>7} {'matrix':>7}  route, rows redone, error")
    for length in lengths:
        query = torch.randn(1, 9, length, 64, generator=random) * 2
        key = torch.randn(1, 3, length, 64, generator=random) + torch.randn(1, 3, 1, 64, generator=random)
        calls: dict[str, Callable[[], object]] = {
            "attention": lambda q=query, k=key: torch.nn.functional.scaled_dot_product_attention(
                q, k, k, is_causal=True, enable_gqa=True
            ),
            "ours": lambda q=query, k=key: joma.attention_entropy(q, k, causal=True),
            "sampled": lambda q=query, k=key: joma.attention_entropy(q, k, causal=True, rows=1 / 8),
        }
        if length <= DENSE_UP_TO:
            calls["matrix"] = lambda q=query, k=key: by_the_matrix(q, k)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(ROUNDS + 1):
            for name, call in calls.items():
                spent = seconds(call)
                if turn:  # the first turn warms up
                    times[name].append(spent)
        best = {name: min(spent) for name, spent in times.items()}
        ratios = " ".join(
            f"{best[name] / best['attention']:6.2f}x" if name in best else f"{'-':>7}"
            for name in ("ours", "sampled", "matrix")
        )
        found = joma.attention_entropy(query, key, causal=True)
        error = "-"
        if length <= DENSE_UP_TO:
            truth = by_the_matrix(query.double(), key.double())
            error = f"{float((found.entropy - truth).abs().max()):.1e} nats"
        print(
            f"{length:6d} {best['attention'] * 1e3:8.1f}ms {ratios}  {found.route}, {found.redone}, {error}"
        )


if __name__ == "__main__":
    main()
