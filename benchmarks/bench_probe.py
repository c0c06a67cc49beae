"""What all sections of a probe cost beside a plain forward pass: processor time on one thread.

SmolLM2-135M where its folder is given, otherwise a model of its size with random weights; 2,048 tokens of a
text, or random ones, in windows of 512. The plain pass is the model called on the tokens as a user calls it,
``model(tokens)``, with its logits at every position; beside it the pass without them, which is cheaper than
any use of a language model. Five pairs in turn, the median of their ratios; three to five minutes.

    python examples/prepare_smollm2.py smollm2
    python benchmarks/bench_probe.py --model smollm2 --text FILE [--tokens 2048] [--pairs 5]

The environment variables JOMA_SMOLLM2 and JOMA_TEXT stand for the two options.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from smollm2 import random_model

import joma
from joma.core.threads import limit_threads
from joma.instruments.probe.probe import SECTIONS
from joma.instruments.reading.passes import run_batch
from joma.instruments.reading.texts import windows

TARGET = 4.0
LENGTH = 512


def seconds(work: Callable[[], object]) -> float:
    """Processor time of this process, user and system."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def read(folder: str | None, text: str | None, tokens: int) -> torch.Tensor:
    """Token ids, (windows, 512): turning a text into them is no part of what is compared."""
    count = tokens // LENGTH
    if folder and text:
        loaded = joma.load_model(folder, device="cpu")
        content = Path(text).read_text(encoding="utf-8")[: 12 * tokens]
        pieces = windows(content, tokenizer=loaded.tokenizer, length=LENGTH).pieces
        whole = [piece for piece in pieces if len(piece) == LENGTH][:count]
        return torch.stack([torch.from_numpy(piece) for piece in whole])
    return torch.randint(0, 49152, (count, LENGTH), generator=torch.Generator().manual_seed(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=os.environ.get("JOMA_SMOLLM2"), help="folder of SmolLM2-135M")
    parser.add_argument("--text", default=os.environ.get("JOMA_TEXT"), help="a text file")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--pairs", type=int, default=5)
    given = parser.parse_args()
    model = (
        joma.load_model(given.model, device="cpu").model if given.model else random_model(positions=LENGTH)
    )
    text = read(given.model, given.text, given.tokens)
    batches = list(windows(text, model=model))
    sections = [name for name in SECTIONS if name != "ranks"]  # the ranks are of the weights, not of the text

    def plain(logits: bool) -> None:
        with torch.no_grad():
            for batch in batches:
                run_batch(model, batch, logits=logits)

    def probe(null: str) -> None:
        joma.probe(model, text, sections=sections, null=null)

    with limit_threads(1):
        plain(True)
        probe("none")  # pays for imports and for memory that it is the first to touch
        times = [
            {
                "plain": seconds(lambda: plain(True)),
                "probe": seconds(lambda: probe("none")),
                "without logits": seconds(lambda: plain(False)),
            }
            for _ in range(given.pairs)
        ]
        null = seconds(lambda: probe("untrained"))
    took = {way: statistics.median(pair[way] for pair in times) for way in times[0]}
    ratios = sorted(pair["probe"] / pair["plain"] for pair in times)
    ratio = statistics.median(ratios)
    print(
        f"{given.model or 'random weights'}, {text.numel()} tokens: {' + '.join(sections)}\n"
        f"  a plain pass {took['plain']:.2f} s, the probe {took['probe']:.2f} s: {ratio:.2f} passes "
        f"(from {ratios[0]:.2f} to {ratios[-1]:.2f}; target {TARGET:g}, "
        f"{'met' if ratio <= TARGET else 'MISSED'})\n"
        f"  over a pass without logits: "
        f"{statistics.median(pair['probe'] / pair['without logits'] for pair in times):.2f}\n"
        f"  with an untrained network beside it (null='untrained'): {null / took['plain']:.2f}\n"
        f"  peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB",
        flush=True,
    )


if __name__ == "__main__":
    main()
