"""One layer trained on either distribution, with attention and as a bag of tokens."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from joma.core.errors import InputError
from joma.core.progress import Progress
from joma.experiments.joma_paper.latent_depth import AGAIN, DATA, MODELS, LatentDepth
from joma.experiments.shared.tables import Rows, by_table
from joma.experiments.shared.trees import ancestor_heights, sample, tree_below_classes
from joma.theory.latent_tree import LatentTree
from joma.training.loop import reproducible


def run(settings: LatentDepth, progress: Progress) -> dict[str, pd.DataFrame]:
    """Tables ``losses``, ``attention`` and ``growth``."""
    cells = list(
        itertools.product((*DATA, AGAIN), MODELS, range(settings.seed, settings.seed + settings.seeds))
    )
    parts = [
        progress.part(
            f"{data}-{model}-seed-{seed}".replace(", ", "-"),
            functools.partial(_train, settings, data, model, seed),
        )
        for data, model, seed in progress.track(cells, "latent_depth")
    ]
    return by_table(parts)


def trees(depth: int, edge_correlation: float) -> dict[str, LatentTree]:
    """The deep tree, and the shallow one with the same marginals and mean correlation of two tokens."""
    # Two classes: the top latent is on in half of the sequences.
    deep = tree_below_classes(classes=2, depth=depth, edge_correlation=edge_correlation)
    size = len(deep.leaves)
    moments = deep.second_moments[np.ix_(deep.leaves, deep.leaves)]
    mean = (moments.sum() - size) / (size * (size - 1))
    shallow = LatentTree(
        class_probabilities=deep.class_probabilities,
        zero_given_class=deep.zero_given_class,
        parents=(0,) * size,
        correlations=np.full(size, np.sqrt(mean)),
    )
    return {"deep": deep, "shallow": shallow}


def bayes_probabilities(tree: LatentTree, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    """``P[y_m = 1 | all other tokens]`` for every token of every sequence: (sequences, tokens)."""
    result = np.empty(tokens.shape)
    for m in range(tokens.shape[1]):
        likelihood = []
        for value in (0, 1):
            changed = tokens.copy()
            changed[:, m] = value
            likelihood.append(_likelihood(tree, changed))
        result[:, m] = likelihood[1] / (likelihood[0] + likelihood[1])
    return result


def _likelihood(tree: LatentTree, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    """P[tokens] (sequences,), by messages from the leaves up."""
    messages = np.ones((tree.nodes, 2, len(tokens)))
    for column, leaf in enumerate(tree.leaves):
        messages[leaf] = [tokens[:, column] == 0, tokens[:, column] == 1]
    zero = np.atleast_2d(np.asarray(tree.zero_given_class))
    edges = list(zip(tree.parents, np.asarray(tree.correlations), strict=True))
    for node in range(tree.nodes - 1, len(zero) - 1, -1):
        parent, rho = edges[node - len(zero)]
        edge = np.array([[1 + rho, 1 - rho], [1 - rho, 1 + rho]]) / 2
        messages[parent] *= edge @ messages[node]
    of_roots = [messages[i][0] * z[:, None] + messages[i][1] * (1 - z[:, None]) for i, z in enumerate(zero)]
    prior = np.asarray(tree.class_probabilities, dtype=np.float64)
    return np.asarray(prior @ np.prod(of_roots, axis=0))


def _shares(logits: NDArray[np.float64], heights: NDArray[np.int64]) -> NDArray[np.float64]:
    """Attention of every query to every other token, were all of them present: (queries, tokens)."""
    return np.asarray(softmax(np.where(heights > 0, logits[:, : len(heights)], -np.inf), axis=1))


def _train(settings: LatentDepth, data: str, model: str, seed: int) -> pd.DataFrame:
    """One layer, all queries at once, trained and measured."""
    tree = trees(settings.depth, settings.edge_correlation)["shallow" if data == AGAIN else data]
    _, values = sample(tree, 2 * settings.samples, [seed, (*DATA, AGAIN).index(data)])
    tokens = values[:, tree.leaves].astype(np.float64)
    held_out = tokens[settings.samples :]
    best = bayes_probabilities(tree, held_out)
    return train_layer(settings, tokens, best, data=data, model=model, seed=seed)


def train_layer(
    settings: LatentDepth,
    tokens: NDArray[np.float64],
    best: NDArray[np.float64],
    *,
    data: str,
    model: str,
    seed: int,
) -> pd.DataFrame:
    """The layer on some sequences; all three tables in one.

    Args:
        settings: of the training. The heights are those of one binary tree above all tokens.
        tokens: (2 samples, tokens), 0 or 1: trained on and held out.
        best: of the held-out half, the probability of each token given all others.
        data: what these are called.
        model: ``attention`` or ``bag``.
        seed: of the initial weights.

    Raises:
        InputError: a token that is always there, or never.
    """
    train, held_out = tokens[: settings.samples], tokens[settings.samples :]
    bayes = float(-np.log(np.where(held_out == 1, best, 1 - best)).mean())
    frequency = train.mean(axis=0)
    if not ((frequency > 0) & (frequency < 1)).all():
        raise InputError(
            f"{settings.name()}: a token never varies in {settings.samples} sequences; draw more."
        )
    marginal = float(-np.log(np.where(held_out == 1, frequency, 1 - frequency)).mean())
    size = tokens.shape[1]
    heights = ancestor_heights(size)
    rows: Rows = []
    with reproducible(seed):
        logits = torch.zeros(size, size + 1, dtype=torch.float64, requires_grad=model == "attention")
        start = 0.01 * torch.rand(size, size + 1, dtype=torch.float64)
        weights, bias = start.requires_grad_(), torch.zeros(size, dtype=torch.float64, requires_grad=True)
        learned = [p for p in (logits, weights, bias) if p.requires_grad]
        visible = torch.cat([1 - torch.eye(size), torch.ones(size, 1)], dim=1).double()

        def predict(present: NDArray[np.float64]) -> torch.Tensor:
            x = torch.from_numpy(np.concatenate([present, np.ones((len(present), 1))], axis=1))
            strength = visible * logits.exp()
            # sum_l x_l e^z_ml v_ml / sum_l x_l e^z_ml: no array of (sequences, queries, tokens) is needed.
            mixed: torch.Tensor = (x @ (strength * weights).T) / (x @ strength.T)
            return mixed + bias

        for step in range(settings.steps + 1):
            if step % settings.measure_every == 0 or step == settings.steps:
                with torch.no_grad():
                    loss = float(cross_entropy(predict(held_out), torch.from_numpy(held_out)))
                    association = (_shares(logits.numpy(), heights) * weights[:, :size].numpy()) * (size - 1)
                excess = (loss - bayes) / (marginal - bayes)
                rows.append({"table": "losses", "step": step, "loss": loss, "bayes": bayes, "value": excess})
                rows += [
                    {
                        "table": "growth",
                        "step": step,
                        "height": h,
                        "value": float(association[heights == h].mean()),
                    }
                    for h in range(1, int(heights.max()) + 1)
                ]
            loss_now = cross_entropy(predict(train), torch.from_numpy(train)) * size
            gradients = torch.autograd.grad(loss_now, learned)
            with torch.no_grad():
                for parameter, gradient in zip(learned, gradients, strict=True):
                    parameter -= settings.learning_rate * gradient
        z, v = logits.detach().numpy()[:, :size], weights.detach().numpy()[:, :size]
        share = _shares(logits.detach().numpy(), heights)
    rows += [
        {
            "table": "attention",
            "query": m,
            "token": t,
            "height": int(heights[m, t]),
            "logit": z[m, t],
            "weight": v[m, t],
            "attention": share[m, t],
        }
        for m, t in itertools.permutations(range(size), 2)
    ]
    return pd.DataFrame(rows).assign(
        run=f"{data}-{model}-seed-{seed}".replace(", ", "-"),
        data=data,
        model=model,
        seed=seed,
        dtype="float64",
    )
