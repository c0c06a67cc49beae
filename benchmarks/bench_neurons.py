"""Pattern superposition of all neurons over the plain forward pass; peak memory at two lengths of text.

A Llama-like model of SmolLM2-135M's size with random weights, float32, one thread, 50,000 tokens in windows
of 128. Plain passes (without the logits, and with them, as users run them) and the search run in turn, batch
by batch; the scores are computed at the end and counted. Peak memory (above that of the loaded model) at
25,000 and 50,000 tokens is measured in processes of their own, of the model's first six layers.
``python benchmarks/bench_neurons.py [FOLDER TEXT]``: a real model on a real text; the environment variables
JOMA_SMOLLM2 and JOMA_TEXT stand for the two. About six minutes on an idle core.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from smollm2 import random_model

from joma.instruments.neurons.find import NeuronContexts, find_neurons
from joma.instruments.neurons.meaning import embedding_matrix
from joma.instruments.neurons.probe import superposition_tables
from joma.instruments.reading.passes import run_batch
from joma.instruments.reading.texts import TokenBatch

TOKENS = (25_000, 50_000)
LENGTH, BATCH = 128, 8
TARGET = 1.3
LAYERS_FOR_MEMORY = 6


def resident() -> int:
    """Bytes that this process holds and no file does (Linux).

    Pages of files, the weights' among them, come and go as the system likes.
    """
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def text(tokens: int) -> list[TokenBatch]:
    """Zipf's words, so that tokens repeat as they do in text."""
    generator = torch.Generator().manual_seed(0)
    batches = -(-tokens // (LENGTH * BATCH))
    uniform = torch.rand(batches, BATCH, LENGTH, generator=generator, dtype=torch.float64)
    words = (49_152**uniform).long().clamp(0, 49_151)
    return [TokenBatch(batch, torch.ones_like(batch, dtype=torch.bool)) for batch in words]


def given(folder: str, path: str, tokens: int) -> tuple[torch.nn.Module, list[TokenBatch]]:
    from joma.instruments.reading.loading import load_model
    from joma.instruments.reading.texts import windows

    loaded = load_model(folder)
    pieces = windows(
        Path(path),
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        length=LENGTH,
        tokens=tokens,
        batch_tokens=LENGTH * BATCH,
    )
    return loaded.model, list(pieces)


def model_and_text(arguments: list[str], tokens: int) -> tuple[torch.nn.Module, list[TokenBatch]]:
    if arguments:
        return given(arguments[0], arguments[1], tokens)
    return random_model(positions=512), text(tokens)


def tables_of(model: torch.nn.Module, found: NeuronContexts) -> dict[str, Any]:
    """All that ``joma neurons`` computes after the search."""
    return dict(superposition_tables(found, str, embedding=embedding_matrix(model)))


def compare(model: torch.nn.Module, batches: list[TokenBatch]) -> dict[str, float]:
    """Seconds of this process's thread: plain passes between the batches of the search."""
    seconds = {"plain": 0.0, "with_logits": 0.0, "all": 0.0}

    def interleaved() -> Iterator[TokenBatch]:
        nonlocal outside
        for batch in batches:
            start = time.process_time()
            with torch.no_grad():
                run_batch(model, batch)
                middle = time.process_time()
                run_batch(model, batch, logits=True)
            end = time.process_time()
            seconds["plain"] += middle - start
            seconds["with_logits"] += end - middle
            outside += end - start
            yield batch

    outside = 0.0
    start = time.process_time()
    found = find_neurons(model, interleaved())
    seconds["searching"] = time.process_time() - start - outside
    tables_of(model, found)
    seconds["all"] = time.process_time() - start - outside
    return seconds


def one(way: str, tokens: int, arguments: list[str]) -> None:
    """In a process of its own: memory above that of the loaded model, the largest between batches."""
    model, batches = model_and_text(arguments, tokens)
    layers: Any = model.get_submodule("model.layers")
    del layers[LAYERS_FOR_MEMORY:]
    samples = []

    def sampled() -> Iterator[TokenBatch]:
        for batch in batches:
            yield batch
            samples.append(resident())

    with torch.no_grad():
        run_batch(model, batches[0])
        before = resident()
        if way == "plain":
            for batch in sampled():
                run_batch(model, batch)
        else:
            found = find_neurons(model, sampled())
            tables = tables_of(model, found)
            samples.append(resident())
            assert len(tables["neurons"])
    print(json.dumps({"above": max(samples) - before}))


def alone(way: str, tokens: int, arguments: list[str]) -> float:
    command = [sys.executable, __file__, "--one", way, str(tokens), *arguments]
    measured: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return float(measured["above"]) / 1e6


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
        return
    named = [os.environ.get(name) for name in ("JOMA_SMOLLM2", "JOMA_TEXT")]
    arguments = sys.argv[1:3] or [name for name in named if name]
    if len(arguments) not in (0, 2):
        sys.exit("give the model's folder and a text, or neither")
    model, batches = model_and_text(arguments, TOKENS[-1])
    with torch.no_grad():
        run_batch(model, batches[0], logits=True)
    took = compare(model, batches)
    del model
    tokens = sum(int(batch.mask.sum()) for batch in batches)
    print(
        f"{tokens} tokens, all neurons: {took['all'] / took['plain']:.2f} of plain passes without logits "
        f"({took['plain']:.0f} s; target {TARGET}), {took['all'] / took['with_logits']:.2f} of passes with "
        "them; "
        f"the scores are {(took['all'] - took['searching']) / took['plain']:.2f} of it",
        flush=True,
    )
    peaks = {tokens: alone("search", tokens, arguments) for tokens in TOKENS}
    plain = alone("plain", TOKENS[0], arguments)
    print(
        "peak memory above the model's: "
        + ", ".join(f"{peak:.0f} MB at {tokens} tokens" for tokens, peak in peaks.items())
        + f" (plain passes {plain:.0f} MB), {LAYERS_FOR_MEMORY} layers"
    )


if __name__ == "__main__":
    main()
