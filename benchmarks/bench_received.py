"""Received attention beside the entropy and beside the whole matrix, interleaved, one thread.

The shape of SmolLM2-135M: 9 query heads, 3 key heads, width 64, float32, causal. In one run:

- *entropy*: ``joma.attention_entropy``, whose products are the only ones that the mass needs;
- *mass*, *removal*: ``joma.received_attention`` without and with values, which needs two products more;
- *eager*: the same from the whole matrix (up to 4,096 keys).

What is beyond the entropy is what they cost whoever measures it anyway: at most 0.8 of it for the mass, and
1.2 more with the removal. The peak memory is that of processes of their own.

Run it alone on the machine: ``python benchmarks/bench_received.py [TOKENS ...]``.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from peak import peak_of

import joma

ROUNDS = 5
DENSE_UP_TO = 4096
MEMORY_AT = 2048
"""Keys from which the peak memory is measured."""


def tensors(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    key, value = (torch.randn(1, 3, tokens, 64, generator=random) for _ in range(2))
    return torch.randn(1, 9, tokens, 64, generator=random), key, value


def eager(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor | None = None) -> object:
    """Mass and maximum and, with values, the removal effect, from the whole matrix."""
    scores = query @ key.repeat_interleave(3, 1).mT * query.shape[-1] ** -0.5
    hidden = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
    p = scores.masked_fill_(hidden, -torch.inf).softmax(-1)
    received = p.sum(-2), p.amax(-2)
    if value is None:
        return received
    value = value.repeat_interleave(3, 1)
    output = p @ value
    distance = output.square().sum(-1)[..., :, None] + value.square().sum(-1)[..., None, :]
    distance -= 2 * output @ value.mT
    ratio = (p / (1 - p)).nan_to_num_(0.0, 0.0).square_()
    return *received, p.square().mean(-2).sqrt(), (ratio * distance).mean(-2).sqrt()


def calls(tokens: int) -> dict[str, Callable[[], object]]:
    query, key, value = tensors(tokens)
    return {
        "entropy": lambda: joma.attention_entropy(query, key, causal=True),
        "mass": lambda: joma.received_attention(query, key, causal=True),
        "removal": lambda: joma.received_attention(query, key, value, causal=True),
        "eager mass": lambda: eager(query, key),
        "eager removal": lambda: eager(query, key, value),
    }


def memory(tokens: int, name: str) -> None:
    """Print the peak of a call, of the process and above what it held."""
    for call in calls(1024).values():  # what is compiled and imported is not the call's
        call()
    print(*peak_of(calls(tokens)[name]))


def main(tokens: int) -> None:
    """Medians of interleaved rounds, and what is beyond the entropy's."""
    every = calls(tokens)
    if tokens > DENSE_UP_TO:
        every = {name: call for name, call in every.items() if not name.startswith("eager")}
    times: dict[str, list[float]] = {name: [] for name in every}
    for turn in range(ROUNDS + 1):
        for name, call in every.items():
            start = time.perf_counter()
            call()
            if turn:  # the first turn warms up
                times[name].append(time.perf_counter() - start)
    spent = {name: median(found) for name, found in times.items()}
    base, mass, removal = spent["entropy"], spent["mass"], spent["removal"]
    line = f"{tokens:6d} keys: entropy {base * 1e3:.0f} ms; beyond it mass {mass / base - 1:.2f} of it, "
    line += f"mass and removal {removal / base - 1:.2f}"
    if "eager mass" in spent:
        line += f"; eager / ours {spent['eager mass'] / mass:.1f}, {spent['eager removal'] / removal:.1f}"
    print(line)
    peaks = {}
    for name in every if tokens >= MEMORY_AT else ():
        told = subprocess.check_output([sys.executable, __file__, "memory", str(tokens), name])
        peaks[name] = [float(word) for word in told.split()]
    if peaks:
        process = ", ".join(f"{name} {peaks[name][0] / peaks['entropy'][0]:.3f}" for name in peaks)
        above = ", ".join(f"{name} {peak[1]:.0f}" for name, peak in peaks.items())
        print(f"        peak of the process over the entropy's: {process}")
        print(f"        MB above what the process held: {above}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["memory"]:
        memory(int(sys.argv[2]), sys.argv[3])
    else:
        for size in [int(word) for word in sys.argv[1:]] or [2048, 4096, 16384]:
            main(size)
