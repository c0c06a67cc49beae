"""A training step of JoMA Table 1 at its own size: d = 1024, C = 20, (10, 20), 3 layers, batch 128.

Ours (distinct sequences weighted by their counts, padding folded, each distinct token and the last
position alone projected, fused Adam) against the step one would write first: the sampled batch, every
position, ``torch.optim.Adam``. One thread, both in turn, the ratio is the median over rounds. The gradients
of the two losses must agree to 1e-12 of the largest component, in float64.

Then five seeds trained together (batched matrix products) against the same one after the other, one thread,
for a small and the largest cell: above 1 it pays, and ``table1`` does so (``Table1._pays_together``). Times
are those of the thread, so that a busy machine counts less. One process per core is what both are run in.
"""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from joma.data.hierarchy import draw_hierarchy
from joma.models.hierarchy import HierarchyNetwork
from joma.training.distinct import (
    DistinctRecipe,
    draw_classes,
    draw_counts,
    fold_padding,
    train_distinct,
    train_together,
    weighted_loss,
)

CLASSES, WIDTH, BATCH = 20, 1024, 128
RATE, DECAY = 1e-5, 1e-4
ROUNDS = 5
STEPS = 10
TARGET, TOLERANCE = 20.0, 1e-12


def plain_loss(network: HierarchyNetwork, tokens: Tensor, classes: Tensor) -> Tensor:
    return F.cross_entropy(network(tokens[classes], shortened=False), classes)


def gradient_error(network: HierarchyNetwork, tokens: Tensor, padding: int) -> float:
    """Largest difference of the two gradients over their largest component, in float64."""
    double = copy.deepcopy(network).double()
    parameters = list(double.parameters())
    folded = fold_padding(tokens, padding, dtype=torch.float64)
    counts = draw_counts(CLASSES, BATCH, torch.Generator().manual_seed(0))
    classes = draw_classes(CLASSES, BATCH, torch.Generator().manual_seed(0))
    ours = torch.autograd.grad(weighted_loss(double, folded, counts), parameters)
    plain = torch.autograd.grad(plain_loss(double, tokens, classes), parameters)
    scale = max(g.abs().max().item() for g in plain)
    return max((a - b).abs().max().item() for a, b in zip(ours, plain, strict=True)) / scale


def together_ratio(width: int, classes: int, children: int, latents: tuple[int, int]) -> str:
    """Five seeds' steps one after the other over the same in one, the median over rounds in turn."""
    seeds, recipe = range(5), DistinctRecipe(steps=STEPS, learning_rate=RATE, weight_decay=DECAY, batch=BATCH)
    networks, tokens = [], []
    for seed in seeds:
        random = np.random.default_rng(seed)
        drawn = draw_hierarchy(classes=classes, latents=latents, children=children, random=random)
        tokens.append(torch.from_numpy(drawn.sequences()))
        networks.append(HierarchyNetwork(drawn.vocabulary_size, classes, width=width))
    ratios = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        train_together(
            networks,
            tokens,
            drawn.padding,
            recipe,
            seeds,
            measure=lambda number, network, step: [],
            measure_at=frozenset(),
        )
        middle = time.thread_time()
        for seed, (network, own) in enumerate(zip(networks, tokens, strict=True)):
            train_distinct(
                network,
                own,
                drawn.padding,
                replace(recipe, seed=seed),
                measure=lambda network, step: [],
                measure_at=frozenset(),
            )
        ratios.append((time.thread_time() - middle) / (middle - start))
    return (
        f"5 seeds together, d = {width}, C = {classes}, {children} children: "
        f"{statistics.median(ratios):.2f}x one after the other ({min(ratios):.2f} to {max(ratios):.2f})"
    )


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    drawn = draw_hierarchy(classes=CLASSES, latents=(10, 20), children=2, random=np.random.default_rng(0))
    tokens = torch.from_numpy(drawn.sequences())
    network = HierarchyNetwork(drawn.vocabulary_size, CLASSES, width=WIDTH)
    error = gradient_error(network, tokens, drawn.padding)
    if error > TOLERANCE:
        raise SystemExit(f"the two gradients differ by {error:.1e}, more than {TOLERANCE:g}")

    ours, theirs = copy.deepcopy(network), copy.deepcopy(network)
    fused = torch.optim.Adam(ours.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    plain = torch.optim.Adam(theirs.parameters(), lr=RATE, weight_decay=DECAY)
    folded = fold_padding(tokens, drawn.padding)
    our_draws, plain_draws = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        fused.zero_grad()
        our_loss = weighted_loss(ours, folded, draw_counts(CLASSES, BATCH, our_draws))
        our_loss.backward()
        fused.step()
        middle = time.perf_counter()
        plain.zero_grad()
        loss = plain_loss(theirs, tokens, draw_classes(CLASSES, BATCH, plain_draws))
        loss.backward()
        plain.step()
        times.append((middle - start, time.perf_counter() - middle))
        if abs(our_loss.item() - loss.item()) > 1e-3 * loss.item():
            raise SystemExit(f"the two steps disagree: losses {our_loss.item()} and {loss.item()}")
    times = times[1:]
    ratio = statistics.median(theirs / ours for ours, theirs in times)
    print(
        f"Table 1 step, d = {WIDTH}: ours {statistics.median(t[0] for t in times) * 1e3:.0f} ms, plain "
        f"{statistics.median(t[1] for t in times) * 1e3:.0f} ms, ratio {ratio:.1f} (target {TARGET:g}); "
        f"gradients differ by {error:.1e} (at most {TOLERANCE:g})"
    )
    for width in (16, 64, 128, 256):
        print(together_ratio(width, 20, 2, (10, 20)))
    for width in (16, 128):
        print(together_ratio(width, 50, 3, (20, 30)))


if __name__ == "__main__":
    main()
