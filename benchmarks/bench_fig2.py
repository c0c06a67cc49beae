"""Fig. 2 with 20 seeds: joma's seeds side by side against a plain PyTorch script, one seed after another.

Both train in float64 and keep, at every step, what Fig. 2's correlations and errors are made from; both
must end at the same logits. The script is what a user would write first: autograd, ``torch.optim.SGD``,
measurements in the loop. A round times both in turn; the ratio is the median over rounds. Steps are fewer
than the figure's 2,000, for both alike: each step costs the same.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch

from joma.experiments.shared.classes_training import INITIAL_SCALE, train_classes

SEEDS = 20
STEPS = 150
ROUNDS = 3
TEMPERATURE, RATE, CLASSES, TOKENS = 0.5, 0.1, 20, 20
TARGET = 8.0


def script(frequencies: np.ndarray, seed: int) -> np.ndarray:
    """One seed in PyTorch; returns the final logits."""
    start = np.random.default_rng([seed, 1])
    x = torch.tensor(frequencies)
    w = torch.tensor(INITIAL_SCALE * start.normal(size=(CLASSES, TOKENS + 1)), requires_grad=True)
    z = torch.tensor(INITIAL_SCALE * start.normal(size=TOKENS), requires_grad=True)
    labels = torch.arange(CLASSES)
    optimizer = torch.optim.SGD([w, z], lr=RATE)
    loss_function = torch.nn.CrossEntropyLoss()
    mean = x.mean(dim=0)
    first = torch.zeros(STEPS, TOKENS, dtype=torch.float64)
    second, logits = torch.zeros_like(first), torch.zeros_like(first)
    for step in range(STEPS):
        optimizer.zero_grad()
        b = x * (z / TEMPERATURE).exp()
        b = b / b.sum(dim=1, keepdim=True)
        f = torch.cat([b, torch.ones(CLASSES, 1, dtype=torch.float64)], dim=1)
        with torch.no_grad():
            v = w[:, :TOKENS]
            logits[step] = z
            first[step] = v.pow(2).sum(dim=0) / (2 * TEMPERATURE)
            second[step] = -mean * v.pow(2).sum() / (2 * TEMPERATURE)
        loss = loss_function(f @ w.T, labels)
        loss.backward()
        optimizer.step()
    return z.detach().numpy()


def run() -> list[dict[str, object]]:
    """Time both, interleaved, and compare their results."""
    torch.set_num_threads(1)
    seeds = range(SEEDS)
    data = train_classes("smooth", seeds=seeds, steps=1).frequencies
    ours, theirs = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        course = train_classes("smooth", seeds=seeds, steps=STEPS)
        middle = time.perf_counter()
        logits = [script(data[seed], seed) for seed in seeds]
        ours.append(middle - began)
        theirs.append(time.perf_counter() - middle)
        np.testing.assert_allclose(course.logits[-1], logits, atol=1e-12)
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    return [
        {
            "benchmark": "fig2",
            "what": f"{SEEDS} seeds, {STEPS} steps: side by side against one after another in PyTorch",
            "joma_s": statistics.median(ours),
            "other_s": statistics.median(theirs),
            "ratio": statistics.median(ratios),
            "target": TARGET,
        }
    ]


def main() -> None:
    """Print a line for each comparison."""
    for row in run():
        print(
            f"{row['benchmark']}: {row['what']}: {row['joma_s']:.2f} s against {row['other_s']:.2f} s, "
            f"{row['ratio']:.1f}x (target {row['target']:g}x)"
        )


if __name__ == "__main__":
    main()
