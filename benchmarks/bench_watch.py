"""A forward pass with all its attention entropies over the plain pass, and eager attentions beside it.

SmolLM2-135M in float32 on real text, where its folder and a text are given; otherwise a Llama-like model of
its size with random weights on random tokens. On two threads plain, watched, and watched at one row in eight
run in turn; a ratio is the median over the rounds of the ratio within a round. The same for watched and the
eager way, ``output_attentions=True`` and the entropy of what it returns. Peak memory is measured in processes
of their own. About ten minutes on two idle cores; nothing else should run on them.

    python examples/prepare_smollm2.py smollm2
    python benchmarks/bench_watch.py --model smollm2 --text FILE [--threads 2] [LENGTH ...]

The environment variables JOMA_SMOLLM2 and JOMA_TEXT stand for the two options.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from smollm2 import random_model

from joma.instruments.watch.watch import watch

TARGETS = {1024: (1.20, None), 4096: (1.40, 1.12)}
ROUNDS = {1024: 21, 4096: 5}
LONGEST = 8192
EAGER_LENGTH = 2048
EAGER_ROUNDS = 3
TARGET_SPEED, TARGET_MEMORY, TARGET_PEAK = 3.5, 15, 1.15


def load(folder: str | None, implementation: str) -> torch.nn.Module:
    """SmolLM2 from its folder, or random weights in a model of its size."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    if folder:
        model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
            folder, dtype="float32", attn_implementation=implementation
        )
        return model.eval()
    return random_model(positions=LONGEST, implementation=implementation)


def read(folder: str | None, text: str | None, length: int) -> torch.Tensor:
    """The first tokens of the text, (1, length); random ones where there is no text or no tokenizer."""
    if folder and text:
        from transformers import AutoTokenizer

        content = Path(text).read_text(encoding="utf-8")[: 12 * length]
        tokens: torch.Tensor = AutoTokenizer.from_pretrained(folder)(content, return_tensors="pt").input_ids
        if tokens.shape[1] < length:
            sys.exit(f"{text} has {tokens.shape[1]} tokens of the {length} wanted; give a longer text.")
        return tokens[:, :length]
    return torch.randint(0, 49152, (1, length), generator=torch.Generator().manual_seed(0))


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
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peak_of_one(way: str, tokens: torch.Tensor, folder: str | None) -> None:
    """In a process of its own: memory before a pass, and at most while it runs.

    With the last position's logits alone: all of them would hide what the attention needs. Reading the table
    afterwards is no part of the pass; what it needs (pandas, if nothing has imported it) is "read".
    """
    with torch.no_grad():
        model = load(folder, "eager" if way == "eager" else "sdpa")
        ways(model, tokens[:, :64], logits=1)["plain"]()
        # Loading has a peak of its own: forget it (Linux).
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        if way == "watched":
            with watch(model) as seen:
                ways(model, tokens, logits=1)["plain"]()
        else:
            ways(model, tokens, logits=1)[way]()
        peak = resident("VmHWM")
        if way == "watched":
            seen.table()
    print(json.dumps({"before": before, "peak": peak, "read": resident("VmHWM")}))


def resident(which: str) -> int:
    """Bytes of memory that this process holds (``VmRSS``) or has held at most (``VmHWM``)."""
    found = re.search(rf"^{which}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def alone(way: str, length: int, given: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", way, str(length), "--threads", str(given.threads)]
    for option, value in (("--model", given.model), ("--text", given.text)):
        command += [option, value] if value else []
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def verdict(what: str, value: float, target: float, *, least: bool = False) -> None:
    met = value >= target if least else value <= target
    print(f"  {what}: {value:.2f} (target {target:g}, {'met' if met else 'MISSED'})", flush=True)


def compare(model: torch.nn.Module, tokens: torch.Tensor) -> None:
    length = tokens.shape[1]
    calls = ways(model, tokens)
    warm = ways(model, tokens[:, :256])
    names = ("plain", "watched", "sampled")
    for name in names:
        warm[name]()
    rounds = ROUNDS.get(length, 3)
    times = [{name: seconds(calls[name]) for name in names} for _ in range(rounds)]
    plain = statistics.median(t["plain"] for t in times)
    print(f"T = {length}: a plain pass takes {plain:.2f} s (median of {rounds} interleaved rounds)")
    for name, target in zip(names[1:], TARGETS.get(length, (None, None)), strict=True):
        ratios = sorted(t[name] / t["plain"] for t in times)
        what = f"{name} over plain (rounds from {ratios[0]:.2f} to {ratios[-1]:.2f})"
        if target:
            verdict(what, statistics.median(ratios), target)
        else:
            print(f"  {what}: {statistics.median(ratios):.2f}", flush=True)


def compare_eager(given: argparse.Namespace) -> None:
    tokens = read(given.model, given.text, EAGER_LENGTH)
    with torch.no_grad():
        calls = ways(load(given.model, "sdpa"), tokens, logits=1)
        calls["eager"] = ways(load(given.model, "eager"), tokens, logits=1)["eager"]
        names = ("plain", "watched", "eager")
        for name in names:  # the first pass pays for memory that it is the first to touch
            calls[name]()
        times = [{name: seconds(calls[name]) for name in names} for _ in range(EAGER_ROUNDS)]
    del calls
    took = {name: statistics.median(t[name] for t in times) for name in names}
    print(f"T = {EAGER_LENGTH}: " + ", ".join(f"{way} {took[way]:.2f} s" for way in names))
    for slow, fast in (("watched", "plain"), ("eager", "plain")):
        print(f"  {slow} over {fast}, time: {statistics.median(t[slow] / t[fast] for t in times):.2f}")
    ratio = statistics.median(t["eager"] / t["watched"] for t in times)
    verdict("eager over watched, time", ratio, TARGET_SPEED, least=True)
    runs = {way: alone(way, EAGER_LENGTH, given) for way in names}
    needed = {way: found["peak"] - found["before"] for way, found in runs.items()}
    print(
        "in processes of their own: "
        + ", ".join(f"{way} {needed[way] / 1e9:.3f} GB" for way in runs)
        + " more"
    )
    verdict(
        "eager over watched, memory beyond the loaded model",
        needed["eager"] / needed["watched"],
        TARGET_MEMORY,
        least=True,
    )
    plain, watched = runs["plain"]["peak"], runs["watched"]
    verdict("watched over plain, peak memory of the process", watched["peak"] / plain, TARGET_PEAK)
    print(f"  the same with the table read: {watched['read'] / plain:.2f}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("lengths", nargs="*", type=int, help="tokens; without any, all that has a target")
    parser.add_argument("--model", default=os.environ.get("JOMA_SMOLLM2"), help="folder of SmolLM2-135M")
    parser.add_argument("--text", default=os.environ.get("JOMA_TEXT"), help="a text file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", choices=("plain", "watched", "sampled", "eager"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    torch.set_num_threads(given.threads)
    if given.one:
        peak_of_one(given.one, read(given.model, given.text, given.lengths[0]), given.model)
        return
    print(
        f"{given.model or 'random weights'}, {given.text or 'random tokens'}, float32, "
        f"{given.threads} threads, torch {torch.__version__}"
    )
    model = load(given.model, "sdpa")
    with torch.no_grad():
        for length in given.lengths or list(TARGETS):
            compare(model, read(given.model, given.text, length))
    del model
    if not given.lengths:
        compare_eager(given)


if __name__ == "__main__":
    main()
