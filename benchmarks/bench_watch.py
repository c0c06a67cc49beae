"""A forward pass with all its attention entropies over the plain pass, and eager attentions beside it.

A Llama-like model of SmolLM2-135M's size with random weights, float32. Plain, watched, and watched at one
row in eight run in turn on one thread; the ratio is the median over rounds. Peak memory (above that of
the loaded model) and the eager way, ``output_attentions=True`` and the entropy of what it returns, are
measured in processes of their own. ``python benchmarks/bench_watch.py [LENGTH ...]``: other lengths.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from joma.probes.watch import watch

TARGETS = {1024: (1.20, None), 4096: (1.40, 1.12)}
ROUNDS = {1024: 7, 4096: 3}
EAGER_LENGTH = 2048
TARGET_SPEED, TARGET_MEMORY, TARGET_PEAK = 3.5, 15, 1.15


def model_of_smollm2_size(implementation: str) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    model: torch.nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    return model.eval()


def ways(model: torch.nn.Module, tokens: torch.Tensor, logits: int = 0) -> dict[str, Callable[[], object]]:
    """The passes; ``logits``: at how many last positions they end in logits, 0 for all."""

    def plain() -> object:
        return model(tokens, use_cache=False, logits_to_keep=logits)

    def watched(rows: float | None = None) -> object:
        with watch(model, rows=rows) as seen:
            plain()
        return seen.table()

    def eager() -> object:
        outputs = model(tokens, use_cache=False, logits_to_keep=logits, output_attentions=True)
        return [torch.special.entr(attention).sum(-1).mean((0, 2)) for attention in outputs.attentions]

    return {"plain": plain, "watched": watched, "sampled": lambda: watched(1 / 8), "eager": eager}


def seconds(call: Callable[[], object]) -> float:
    """Of this process's one thread on its core, so that other work on the machine counts little."""
    start = time.process_time()
    call()
    return time.process_time() - start


def peak_of_one(way: str, length: int) -> None:
    """In a process of its own: seconds and peak memory of one pass, after a warm-up on few tokens.

    With the last position's logits alone: all of them would hide what the attention needs.
    """
    tokens = torch.randint(0, 49152, (1, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model = model_of_smollm2_size("eager" if way == "eager" else "sdpa")
        ways(model, tokens[:, :64], logits=1)[way]()
        # Loading has a peak of its own: forget it (Linux).
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        took = seconds(ways(model, tokens, logits=1)[way])
    print(json.dumps({"seconds": took, "before": before, "peak": resident("VmHWM")}))


def resident(which: str) -> int:
    """Bytes of memory that this process holds (``VmRSS``) or has held at most (``VmHWM``)."""
    found = re.search(rf"^{which}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def alone(way: str, length: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", way, str(length)]
    measured: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return measured


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--one"]:
        peak_of_one(sys.argv[2], int(sys.argv[3]))
        return
    model = model_of_smollm2_size("sdpa")
    with torch.no_grad():
        for length in [int(argument) for argument in sys.argv[1:]] or list(TARGETS):
            tokens = torch.randint(0, 49152, (1, length), generator=torch.Generator().manual_seed(0))
            calls = ways(model, tokens)
            calls["watched"]()
            names = ("plain", "watched", "sampled")
            times = [{name: seconds(calls[name]) for name in names} for _ in range(ROUNDS.get(length, 3))]
            plain = statistics.median(t["plain"] for t in times)
            for name, target in zip(names[1:], TARGETS.get(length, (None, None)), strict=True):
                ratio = statistics.median(t[name] / t["plain"] for t in times)
                print(
                    f"T = {length}, {name}: {ratio:.2f} of a plain pass of {plain:.2f} s"
                    + (f" (target {target})" if target else ""),
                    flush=True,
                )
    if sys.argv[1:]:
        return
    results = {way: alone(way, EAGER_LENGTH) for way in ("plain", "watched", "eager")}
    needed = {way: (r["peak"] - r["before"]) / 1e9 for way, r in results.items()}
    slower = results["eager"]["seconds"] / results["watched"]["seconds"]
    peak = results["watched"]["peak"] / results["plain"]["peak"]
    print(
        f"T = {EAGER_LENGTH}, eager over watched: {slower:.1f} in time (target {TARGET_SPEED}), "
        f"{needed['eager'] / needed['watched']:.0f} in memory above the model's (target {TARGET_MEMORY}; "
        f"{needed['eager']:.2f} and {needed['watched']:.2f} GB)"
    )
    print(f"T = {EAGER_LENGTH}, peak memory watched over plain: {peak:.2f} (target {TARGET_PEAK})")


if __name__ == "__main__":
    main()
