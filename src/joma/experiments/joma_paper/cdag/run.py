"""The data, the training, and what is measured on the way."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joma.core.arguments import Array
from joma.core.errors import InputError
from joma.core.progress import Progress
from joma.experiments.joma_paper.cdag import LEVELS, VARIANTS, Cdag
from joma.experiments.joma_paper.cdag.network import Network
from joma.experiments.shared.trees import sample, tree_below_classes

Row = dict[str, str | float | None]


def measured_steps(settings: Cdag) -> list[int]:
    """Step 0, then ever sparser."""
    later = np.geomspace(1, settings.steps, settings.measurements - 1).round().astype(int)
    return sorted({0, *later.tolist()})


def run(settings: Cdag, progress: Progress) -> dict[str, pd.DataFrame]:
    """Tables ``quadruples`` and ``alignment``."""
    seeds = range(settings.seed, settings.seed + settings.seeds)
    parts = [
        progress.part(f"seed-{seed}", functools.partial(_one_network, settings, seed))
        for seed in progress.track(seeds, "cdag")
    ]
    others = [
        progress.part(f"{kind}-seed-{seed}", functools.partial(_one_network, settings, seed, kind))
        for kind in VARIANTS
        for seed in progress.track(seeds, f"cdag, {kind}")
    ]
    table = pd.concat(parts, ignore_index=True)
    quadruples = table["level"].isna()
    return {
        "quadruples": table[quadruples].drop(columns="level").reset_index(drop=True),
        "alignment": table[~quadruples].reset_index(drop=True),
        "variants": pd.concat(others, ignore_index=True),
    }


def _one_network(settings: Cdag, seed: int, kind: str = "") -> pd.DataFrame:
    """Draw the data, train, and measure on the way; ``kind``: one of the variants."""
    tree = tree_below_classes(
        classes=settings.classes, depth=4, edge_correlation=settings.edge_correlation, with_all=True
    )
    labels, values = sample(tree, settings.samples, [seed, 1])
    classes = len(np.unique(labels))
    if classes < settings.classes:
        raise InputError(
            f"cdag: {settings.samples} samples hold {classes} of {settings.classes} classes; draw more."
        )
    latents = np.split(values, np.cumsum([settings.classes * 2**level for level in range(3)]), axis=1)
    inputs = latents.pop().astype(np.float64)
    signals = [_unit(level - level.mean(axis=0)) for level in latents]
    shuffle = np.random.default_rng([seed, 2]).permutation(settings.samples)
    wanted, rows = set(measured_steps(settings)), []
    network = Network(
        inputs,
        labels,
        settings.width,
        np.random.default_rng([seed, 3]),
        linear=kind == "linear",
        residual=kind == "residual",
    )
    for step in range(settings.steps + 1):
        activations, gradients = network.passes()
        if step in wanted:
            for name, known in (("true", signals), ("permuted", [z[shuffle] for z in signals])):
                measured = _quadruples(settings, network, activations, gradients, known)
                measured += _alignment(activations, gradients, known)
                rows += [{"latents": name, "step": step, **row} for row in measured]
        network.ascend(activations, gradients, settings.learning_rate)
    name = f"{kind}-seed-{seed}" if kind else f"seed-{seed}"
    table = pd.DataFrame(rows).assign(run=name, network=kind or "plain", seed=seed, dtype="float64")
    if kind:
        columns = ["run", "network", "seed", "latents", "step", "layer", "level", "metric", "value", "dtype"]
        return table[columns]
    return table[["run", "seed", "latents", "step", "layer", "level", "metric", "value", "dtype"]]


def _unit(signals: Array) -> Array:
    """Columns of length one; a signal that is zero everywhere stays zero and correlates with nothing."""
    length = np.linalg.norm(signals, axis=0)
    return np.asarray(signals / np.where(length > 0, length, 1))


def _quadruples(
    settings: Cdag,
    network: Network,
    activations: list[Array],
    gradients: list[Array],
    signals: list[Array],
) -> list[Row]:
    """Per layer of parents j: shares over all (alpha, j, beta, k), alpha and beta any latent or class."""
    latents = np.concatenate(signals, axis=1)
    related, rows, least = np.abs(latents.T @ latents), [], settings.least_correlation
    for layer, parent in (("output", 2), ("hidden 2", 1)):
        asked, feature = _unit(gradients[parent]), _unit(activations[parent])
        c1, c2 = latents.T @ asked, latents.T @ feature
        first_step = (feature.T @ asked).T
        # Axes: alpha, j, beta, k.
        hypotheses = (
            (c1 > least)[:, :, None, None] & (c2 > least)[None, None] & (related > least)[:, None, :, None]
        )
        angles = [np.arccos(np.clip(c, 0, 1)) for c in (c1, c2, related)]
        total = angles[0][:, :, None, None] + angles[1][None, None] + angles[2][:, None, :, None]
        condition = hypotheses & (total < np.pi / 2)
        passed = {"": first_step, ", own weight": network.weights[parent]}
        shares = {"meets the condition": _share(condition, hypotheses)}
        for name, weight in passed.items():
            # corr(z_beta, w_jk s_j) has the sign of w_jk corr(z_beta, s_j).
            fails = (weight.T[None, :, :] * c1[:, None, :] <= 0).transpose(2, 0, 1)[None]
            shares |= {
                f"draft fails{name}": _share(hypotheses & fails, hypotheses),
                f"condition fails{name}": _share(condition & fails, condition),
            }
        rows += [{"layer": layer, "metric": metric, "value": value} for metric, value in shares.items()]
    return rows


def _share(part: NDArray[np.bool_], whole: NDArray[np.bool_]) -> float | None:
    total = int(whole.sum())
    return int(part.sum()) / total if total else None


def _alignment(activations: list[Array], gradients: list[Array], signals: list[Array]) -> list[Row]:
    """Mean over the latents of a level of the best correlation with a layer's nodes."""
    rows: list[Row] = []
    for layer, number in (("hidden 1", 1), ("hidden 2", 2)):
        nodes = {"activation": activations[number], "gradient": gradients[number - 1]}
        for metric, values in nodes.items():
            for level, known in zip(LEVELS, signals, strict=True):
                best = float((known.T @ _unit(values)).max(axis=1).mean())
                rows.append({"layer": layer, "level": level, "metric": metric, "value": best})
    return rows
