"""Scan&Snap Fig. 6: all 640 runs by joma beside one run after the other in a plain PyTorch script.

The script is what a user would write first: sequences drawn one by one, one-hot vectors, autograd and
``torch.optim.SGD``. It is timed over the first steps of one run for each number of last tokens and scaled
up; joma is timed over whole runs of a few seeds, all sixteen pairs of rates, and scaled up to ten. One
thread each, in turn.
"""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn import functional

from joma.core.progress import Progress
from joma.experiments.scan_snap.snap_fig6 import SnapFig6

SEEDS, PLAIN_STEPS, TARGET = 2, 6, 20.0
EXPERIMENT = SnapFig6()


def plain_steps(last_tokens: int, steps: int) -> float:
    """Seconds for some steps of one run, as one would first write it."""
    generator = torch.Generator().manual_seed(1)
    classes = 2 * last_tokens
    first_last, first_next = 10 + 10 * classes, 10 + 10 * classes + last_tokens
    size = first_next + classes
    weights = torch.cat([torch.ones(10), torch.linspace(0.1, 1.0, 10)])
    tokens = [torch.cat([torch.arange(10), 10 + 10 * n + torch.arange(10)]) for n in range(classes)]
    decoder, attention = nn.Linear(size, size, bias=False), nn.Linear(size, size, bias=False)
    fast = torch.optim.SGD(decoder.parameters(), lr=1.0, momentum=EXPERIMENT.momentum)
    slow = torch.optim.SGD(attention.parameters(), lr=1.0, momentum=EXPERIMENT.momentum)
    start = time.perf_counter()
    for _ in range(steps):
        sequences = torch.empty(EXPERIMENT.batch, EXPERIMENT.length, dtype=torch.long)
        targets = torch.empty(EXPERIMENT.batch, dtype=torch.long)
        for i in range(EXPERIMENT.batch):
            n = int(torch.randint(classes, (), generator=generator))
            drawn = torch.multinomial(weights, EXPERIMENT.length - 1, replacement=True, generator=generator)
            sequences[i, :-1] = tokens[n][drawn]
            sequences[i, -1] = first_last + n // 2
            targets[i] = first_next + n
        one_hot = functional.one_hot(sequences, size).float()
        context, last = one_hot[:, :-1], one_hot[:, -1]
        scores = (attention(context) @ last[:, :, None]).squeeze(2)
        read = (torch.softmax(scores, dim=1)[:, None] @ context).squeeze(1)
        logits = decoder(read / read.norm(dim=1, keepdim=True))
        loss = functional.cross_entropy(logits, targets)
        fast.zero_grad()
        slow.zero_grad()
        loss.backward()
        fast.step()
        slow.step()
    return time.perf_counter() - start


def main() -> None:
    torch.set_num_threads(1)
    pairs = len(EXPERIMENT.eta_z) * len(EXPERIMENT.ratios)
    plain = joma = 0.0
    print(f"{'last tokens':>11} {'plain, 160 runs':>16} {'joma, 160 runs':>16} {'ratio':>7}")
    for last in EXPERIMENT.last_tokens:
        plain_steps(last, 1)
        ours = SnapFig6(last_tokens=(last,), seeds=SEEDS)
        start = time.perf_counter()
        ours.run(Progress(quiet=True))
        batched = (time.perf_counter() - start) * EXPERIMENT.seeds / SEEDS
        one_run = plain_steps(last, PLAIN_STEPS) * EXPERIMENT.steps / PLAIN_STEPS
        alone = one_run * pairs * EXPERIMENT.seeds
        plain, joma = plain + alone, joma + batched
        print(f"{last:>11} {alone:>14.0f} s {batched:>14.1f} s {alone / batched:>6.0f}x")
    verdict = "met" if plain / joma >= TARGET else "MISSED"
    print(f"{'all 640':>11} {plain:>14.0f} s {joma:>14.1f} s {plain / joma:>6.0f}x")
    print(f"target: at least {TARGET:.0f}x: {verdict}")


if __name__ == "__main__":
    main()
