"""An entropy in the loss: attention_entropy(differentiable=True), forward and backward, beside autograd.

One layer of SmolLM2-135M's shape (9 query heads, 3 key heads, width 64, float32, causal), in one run:

- *ours*: the mean entropy and its gradient;
- *by the matrix*: the same by eager autograd of the whole matrix (up to 2,048 keys);
- *attention*: forward and backward of PyTorch's own attention, and the peak memory of that step beside that
  of the same step with the entropy in its loss, each in a process of its own.

Run it alone on the machine: ``python benchmarks/bench_differentiable.py [LENGTH ...]``.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import torch
from peak import peak_of

import joma

ROUNDS = 5
DENSE_UP_TO = 2048


def tensors(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    query = torch.randn(1, 9, length, 64, generator=random).requires_grad_()
    return query, torch.randn(1, 3, length, 64, generator=random).requires_grad_()


def ours(query: torch.Tensor, key: torch.Tensor) -> None:
    joma.attention_entropy(query, key, causal=True, differentiable=True).entropy.mean().backward()


def by_the_matrix(query: torch.Tensor, key: torch.Tensor) -> None:
    scores = query @ key.repeat_interleave(3, 1).mT * query.shape[-1] ** -0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    log_p = scores.masked_fill(hidden, -1e9).log_softmax(-1)
    (-(log_p.exp() * log_p).sum(-1)).mean().backward()


def attention(query: torch.Tensor, key: torch.Tensor) -> None:
    torch.nn.functional.scaled_dot_product_attention(
        query, key, key, is_causal=True, enable_gqa=True
    ).square().mean().backward()


def peak(length: int, *steps: Callable[[torch.Tensor, torch.Tensor], None]) -> float:
    """MB above what the process holds before, after these steps."""
    joma.attention_entropy(*tensors(256), causal=True)  # what is compiled and imported is not the step's
    attention(*tensors(256))
    query, key = tensors(length)
    return peak_of(lambda: [step(query, key) for step in steps])[1]


def main() -> None:
    if sys.argv[1:2] == ["peak"]:
        print(peak(int(sys.argv[2]), attention, *([ours] if sys.argv[3] == "ours" else [])))
        return
    for length in [int(text) for text in sys.argv[1:]] or [1024, 2048, 8192]:
        query, key = tensors(length)
        calls = {"attention": attention, "ours": ours}
        if length <= DENSE_UP_TO:
            calls["matrix"] = by_the_matrix
        times: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(ROUNDS + 1):
            for name, call in calls.items():
                start = time.perf_counter()
                call(query, key)
                if turn:  # the first turn warms up
                    times[name].append(time.perf_counter() - start)
        best = {name: min(spent) for name, spent in times.items()}
        memory = [
            float(subprocess.check_output([sys.executable, __file__, "peak", str(length), name]))
            for name in ("plain", "ours")
        ]
        matrix = f"; by the matrix / ours {best['matrix'] / best['ours']:.2f}" if "matrix" in best else ""
        print(
            f"{length:6d} keys: ours {best['ours'] * 1e3:.0f} ms, ours / attention "
            f"{best['ours'] / best['attention']:.2f}{matrix}; peak of the step {memory[1]:.0f} MB for "
            f"{memory[0]:.0f} MB"
        )


if __name__ == "__main__":
    main()
