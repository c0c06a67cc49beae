"""The co-occurrence by the formula and in sampled sequences, and Eq. 8's error."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd

from joma.core.errors import InputError
from joma.core.progress import Progress
from joma.experiments.joma_paper.theorem5 import Theorem5
from joma.experiments.shared.tables import Row, Rows
from joma.experiments.shared.trees import ancestor_heights, sample, tree_below_classes
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
    """The formula with either rho_0, P[y_l = 1], and the share in sampled sequences, for one rho."""
    depth = settings.depth
    tree = tree_below_classes(classes=settings.classes, depth=depth, edge_correlation=rho)
    first, heights = tree.leaves[0], ancestor_heights(len(tree.leaves))[0]
    prior, zero = np.full(settings.classes, 1 / settings.classes), 1 - np.eye(settings.classes)[0]
    biases = {"formula": root_bias(prior, zero), "printed formula": printed_root_bias(prior, zero)}
    _, values = sample(tree, settings.samples, [settings.seed, round(rho * 1e9)])
    present = values[values[:, first] == 1]
    if not len(present):
        raise InputError(f"theorem5: token m never appeared in {settings.samples} samples; draw more.")
    rows: Rows = []
    for height in range(1, depth):
        found: list[tuple[str, float, float | None]] = [
            (route, float(cooccurrence(rho, bias, depth=depth, ancestor_height=height)), None)
            for route, bias in biases.items()
        ]
        found.append(("marginal", (1 - rho ** (depth - 1) * biases["formula"]) / 2, None))
        # The nearest token of this height, and the farthest one where there are several.
        partners = np.flatnonzero(heights == height)
        for name, partner in zip(
            ("sampled", "sampled, other token"), {partners[0], partners[-1]}, strict=False
        ):
            share = float(present[:, tree.leaves[partner]].mean())
            found.append((name, share, (share * (1 - share) / len(present)) ** 0.5))
        label: Row = {
            "run": f"rho-{rho:g}",
            "edge_correlation": rho,
            "depth": depth,
            "ancestor_height": height,
        }
        rows += [
            {**label, "metric": name, "value": value, "standard_error": error, "unit": "probability"}
            for name, value, error in found
        ]
    return pd.DataFrame(rows).astype({"standard_error": "float64"})


def _expansion(settings: Theorem5) -> pd.DataFrame:
    """Eq. 8's error at each eps and H, printed and completed."""
    depth = settings.depth
    rows: Rows = []
    for eps in sorted(settings.expansion, reverse=True):
        for height in range(1, depth):
            exact = float(cooccurrence(1 - eps, 1 - eps, depth=depth, ancestor_height=height))
            completed = float(cooccurrence_expansion(eps, depth=depth, ancestor_height=height))
            label = {"depth": depth, "eps": eps, "ancestor_height": height}
            rows += [
                {**label, "metric": name, "value": exact - guess}
                for name, guess in (("printed", 1 - height / depth), ("completed", completed))
                if 2 * height != depth
            ]
    return pd.DataFrame(rows)
