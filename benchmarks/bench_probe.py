"""What the sections of a probe cost beside a plain forward pass: processor time, one thread.

Run by ``python benchmarks/bench_probe.py [TOKENS]``: SmolLM2-135M's size with random weights.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from smollm2 import random_model

import joma
from joma.probes.probe import SECTIONS
from joma.probes.reading.passes import run_batch
from joma.probes.reading.texts import windows

PAIRS = 5


def seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def main(tokens: int = 2048) -> None:
    torch.set_num_threads(1)
    model = random_model(positions=512)
    text = torch.randint(0, 49152, (tokens // 512, 512), generator=torch.Generator().manual_seed(0))
    batches = list(windows(text, model=model))

    def plain() -> None:
        with torch.no_grad():
            for batch in batches:
                run_batch(model, batch)

    chosen = [name for name in SECTIONS if name != "ranks"]  # the ranks are of the weights, not of the text
    plain()
    for sections in (*([name] for name in chosen), chosen):
        ratios = []
        for _ in range(PAIRS):
            base = seconds(plain)
            ratios.append(seconds(lambda s=sections: joma.probe(model, text, sections=s)) / base)
        print(f"{' + '.join(sections)}: {statistics.median(ratios):.2f} plain passes of {tokens} tokens")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
