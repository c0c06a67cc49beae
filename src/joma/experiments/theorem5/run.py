"""Four routes to the co-occurrence, and Eq. 8's error."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd

from joma.errors import InputError
from joma.experiments.tables import Rows
from joma.experiments.theorem5 import Theorem5
from joma.experiments.trees import ancestor_heights, enumerate_states, sample, tree_below_classes
from joma.progress import Progress
from joma.theory.class_labels import printed_root_bias, root_bias
from joma.theory.latent_tree import cooccurrence, cooccurrence_expansion


def run(settings: Theorem5, progress: Progress) -> dict[str, pd.DataFrame]:
    """Tables ``cooccurrence`` and ``expansion``."""
    parts = [
        progress.part(f"rho-{rho:g}", functools.partial(_one_correlation, settings, rho))
        for rho in progress.track(settings.edge_correlations, "theorem5")
    ]
    return {"cooccurrence": pd.concat(parts, ignore_index=True), "expansion": _expansion(settings)}


def _one_correlation(settings: Theorem5, rho: float) -> pd.DataFrame:
    """Every route to the co-occurrence, for one rho: the small tree and the deep one."""
    rows: Rows = []
    for depth in sorted({settings.enumerated_depth, settings.depth}):
        tree = tree_below_classes(classes=settings.classes, depth=depth, edge_correlation=rho)
        heights = ancestor_heights(len(tree.leaves))[0]
        first, partners = tree.leaves[0], {h: tree.leaves[2 ** (h - 1)] for h in range(1, depth)}
        assert all(heights[2 ** (h - 1)] == h for h in partners)
        found: dict[tuple[str, int], tuple[float, float | None]] = {}
        for height, value in _formulas(settings, rho, depth).items():
            found |= {(route, height): (number, None) for route, number in value.items()}
            found["messages", height] = (_messages(settings.classes, rho, depth, height), None)
        if depth == settings.enumerated_depth:
            states, probability = enumerate_states(tree)
            present = states[:, first] == 1
            appears = float(probability[present].sum())
            for height, partner in partners.items():
                both = float(probability[present & (states[:, partner] == 1)].sum())
                found["enumerated", height] = (both / appears, None)
        if depth == settings.depth:
            seed = [settings.seed, round(rho * 1e9)]
            _, values = sample(tree, settings.samples, seed)
            present = values[values[:, first] == 1]
            if not len(present):
                raise InputError(
                    f"theorem5: token m never appeared in {settings.samples} samples; draw more."
                )
            for height, partner in partners.items():
                share = float(present[:, partner].mean())
                found["sampled", height] = (share, (share * (1 - share) / len(present)) ** 0.5)
        rows += [
            {
                "run": f"rho-{rho:g}",
                "edge_correlation": rho,
                "depth": depth,
                "ancestor_height": height,
                "metric": route,
                "value": value,
                "standard_error": error,
                "unit": "probability",
            }
            for (route, height), (value, error) in found.items()
        ]
    return pd.DataFrame(rows).astype({"standard_error": "float64"})


def _formulas(settings: Theorem5, rho: float, depth: int) -> dict[int, dict[str, float]]:
    """H -> the formula with either rho_0, and P[y_l = 1], which unrelated tokens would have."""
    prior = np.full(settings.classes, 1 / settings.classes)
    zero = 1 - np.eye(settings.classes)[0]
    biases = {"formula": root_bias(prior, zero), "printed formula": printed_root_bias(prior, zero)}
    marginal = (1 - rho ** (depth - 1) * biases["formula"]) / 2
    return {
        height: {
            route: float(cooccurrence(rho, bias, depth=depth, ancestor_height=height))
            for route, bias in biases.items()
        }
        | {"marginal": marginal}
        for height in range(1, depth)
    }


def _messages(classes: int, rho: float, depth: int, height: int) -> float:
    """The same by sum-product along the path, without signs or moments: P[child | parent] as matrices."""
    edge = np.array([[1 + rho, 1 - rho], [1 - rho, 1 + rho]]) / 2
    ancestor = np.array([1 - 1 / classes, 1 / classes])
    for _ in range(depth - 1 - height):
        ancestor = edge @ ancestor
    present = np.array([0.0, 1.0])
    for _ in range(height):
        present = edge.T @ present
    return float((present * present * ancestor).sum() / (present * ancestor).sum())


def _expansion(settings: Theorem5) -> pd.DataFrame:
    """Eq. 8's error at each eps and H, printed and completed."""
    depth, rows = settings.depth, []
    for eps in sorted(settings.expansion, reverse=True):
        for height in range(1, depth):
            exact = float(cooccurrence(1 - eps, 1 - eps, depth=depth, ancestor_height=height))
            guesses = {
                "printed": 1 - height / depth,
                "completed": float(cooccurrence_expansion(eps, depth=depth, ancestor_height=height)),
            }
            rows += [
                {
                    "depth": depth,
                    "eps": eps,
                    "ancestor_height": height,
                    "metric": name,
                    "value": exact - guess,
                }
                for name, guess in guesses.items()
                if 2 * height != depth
            ]
    return pd.DataFrame(rows)
