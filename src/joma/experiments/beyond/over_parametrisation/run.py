"""Many blocks of one size at once: each is a group that reads the same sequences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from joma.core.progress import Progress
from joma.experiments.beyond.over_parametrisation import OverParametrisation
from joma.experiments.shared.tables import Rows, by_table
from joma.training.loop import reproducible


def run(settings: OverParametrisation, progress: Progress) -> dict[str, pd.DataFrame]:
    """Tables ``coverage`` and ``basins``, one part a seed."""
    seeds = range(settings.seed, settings.seed + settings.seeds)
    progress.note_device("cpu", "float64")
    parts = progress.parts({f"seed-{seed}": partial(_one_seed, settings, seed) for seed in seeds})
    return by_table(parts.values(), counted=("neurons", "latent"))


def coupon_collector(basins: Sequence[float], neurons: int) -> float:
    """Probability that ``neurons`` independent draws hit every basin; what is left of one hits none."""
    total = 0.0
    for size in range(len(basins) + 1):
        for chosen in combinations(basins, size):
            total += (-1) ** size * (1.0 - sum(chosen)) ** neurons
    return float(np.clip(total, 0.0, 1.0))


def sequences(settings: OverParametrisation, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens (sequences, latents x tokens) of 0 and 1, and which latent is on (sequences, latents)."""
    rng = np.random.default_rng([seed, 3])
    latent = rng.integers(0, settings.latents, settings.sequences)
    own = np.arange(settings.latents * settings.tokens)[None] // settings.tokens == latent[:, None]
    there = own ^ (rng.random(own.shape) < settings.flip)
    on = np.arange(settings.latents)[None] == latent[:, None]
    return torch.from_numpy(there.astype(np.float64)), torch.from_numpy(on.astype(np.float64))


def _one_seed(settings: OverParametrisation, seed: int, progress: Progress) -> pd.DataFrame:
    x, on = sequences(settings, seed)
    rows: Rows = []
    with reproducible(seed):
        _, alone = _train(settings, 1, settings.single, x, on, progress)
        found, which = alone[:, 0].max(dim=1)
        basins = [
            float(((which == n) & (found > settings.threshold)).double().mean()) for n in range(on.shape[1])
        ]
        rows += [
            {"table": "basins", "latent": n, "metric": "share", "value": share}
            for n, share in enumerate(basins)
        ]
        for size in settings.neurons:
            before, after = _train(settings, size, settings.networks, x, on, progress)
            numbers = {
                "trained": _coverage(after, settings.threshold),
                "untrained": _coverage(before, settings.threshold),
                "law": coupon_collector(basins, size),
                "law, equal basins": coupon_collector([1 / len(basins)] * len(basins), size),
            }
            rows += [
                {"table": "coverage", "neurons": size, "run": name, "metric": "all found", "value": value}
                for name, value in numbers.items()
            ]
    return pd.DataFrame(rows).assign(seed=seed, dtype="float64")


def _coverage(correlations: Tensor, threshold: float) -> float:
    """Share of the networks (networks, neurons, latents) in which every latent is found."""
    return float((correlations.max(dim=1).values > threshold).all(dim=1).double().mean())


def _train(
    settings: OverParametrisation, neurons: int, networks: int, x: Tensor, on: Tensor, progress: Progress
) -> tuple[Tensor, Tensor]:
    """Correlations (networks, neurons, latents) before and after training."""

    def normal(*shape: int) -> Tensor:
        return (settings.scale * torch.randn(networks, *shape, dtype=torch.float64)).requires_grad_()

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(networks, *shape, dtype=torch.float64, requires_grad=True)

    tokens, latents = x.shape[1], on.shape[1]
    v, z, xi = normal(neurons, tokens), zeros(tokens), zeros(neurons)
    readout, base = normal(neurons, latents), zeros(latents)
    learned = [v, z, xi, readout, base]

    def nodes() -> Tensor:
        attended = (v * z.exp()[:, None]).flatten(0, 1)
        return torch.relu((x @ attended.T).view(-1, networks, neurons) + xi)

    with torch.no_grad():
        before = _correlations(nodes(), on)
    for _ in progress.track(range(settings.steps), f"{networks} blocks of {neurons}"):
        scores = torch.einsum("ngk,gkl->ngl", nodes(), readout) + base
        loss = -(scores.log_softmax(dim=2) * on[:, None]).sum() / len(x)
        moves = torch.autograd.grad(loss, learned)
        with torch.no_grad():
            for parameter, move in zip(learned, moves, strict=True):
                parameter -= settings.rate * move
    with torch.no_grad():
        return before, _correlations(nodes(), on)


def _correlations(hidden: Tensor, on: Tensor) -> Tensor:
    """Over the sequences; 0 for neurons that are silent."""
    h, y = hidden - hidden.mean(0), on - on.mean(0)
    sizes = h.norm(dim=0).clamp_min(1e-12)[..., None] * y.norm(dim=0)
    found: Tensor = torch.einsum("ngk,nl->gkl", h, y) / sizes
    return found
