"""The trees, their sequences, and what a network is asked about them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joma.core.arguments import Array
from joma.experiments.joma_paper.deep_hierarchy import LONE, SHUFFLED, SHUFFLED_CLASSES, TOPS, DeepHierarchy
from joma.experiments.shared.trees import sample
from joma.theory.latent_tree import LatentTree


@dataclass(frozen=True, eq=False)
class Questions:
    """Different rows, how often each occurs, and what is to be answered."""

    inputs: Array
    """x (rows, tokens): what is seen."""
    present: Array
    """(rows, tokens): the queries at hand."""
    weights: Array
    """(rows,): sums to the number of queries (tokens), or to one (classes)."""
    answers: Array
    """(rows, outcomes): shares of the outcomes (token absent or there; the classes)."""
    asked: NDArray[np.int64]
    """(rows,): the query that is asked; -1 where all are (classes)."""

    @property
    def floor(self) -> float:
        """The least cross-entropy that the rows allow, nats."""
        return float(self.weights @ _entropy(self.answers))

    @property
    def ceiling(self) -> float:
        """The cross-entropy of those who do not look at the inputs, nats."""
        total = 0.0
        for query in np.unique(self.asked):
            mine = self.asked == query
            mean = self.weights[mine] @ self.answers[mine] / self.weights[mine].sum()
            total += float(self.weights[mine].sum() * _entropy(mean))
        return total


def forest(settings: DeepHierarchy, run: str) -> LatentTree:
    """Independent trees, on or off by the class; in ``lone cousins`` every second family has one token."""
    bits = (np.arange(2**TOPS)[None, :] >> np.arange(TOPS)[:, None]) & 1
    parents: list[int] = []
    level = list(range(TOPS))
    for depth in range(settings.levels):
        lowest = depth == settings.levels - 1
        below = []
        for place, node in enumerate(level):
            children = 1 if run == LONE and lowest and place % 2 else 2
            for _ in range(children):
                below.append(TOPS + len(parents))
                parents.append(node)
        level = below
    return LatentTree(
        class_probabilities=np.full(2**TOPS, 0.5**TOPS),
        zero_given_class=(1 - bits).astype(np.float64),
        parents=tuple(parents),
        correlations=np.full(len(parents), settings.edge_correlation),
    )


def heights(settings: DeepHierarchy, run: str) -> NDArray[np.int64]:
    """H of every query and token (tokens, tokens); one more than the top's for the other tree.

    With lone cousins: of queries that have a sibling and tokens that have none; -1 for all else.
    """
    tree = forest(settings, run)
    leaves = np.array(tree.leaves)
    above = np.concatenate([np.arange(TOPS), np.array(tree.parents)])
    line = [leaves]
    for _ in range(settings.levels):
        line.append(above[line[-1]])
    same = np.stack([one[:, None] == one[None, :] for one in line])
    found = np.where(same.any(axis=0), same.argmax(axis=0), settings.levels + 1)
    if run == LONE:
        family = same[1].sum(axis=1)
        found = np.where((family[:, None] > 1) & (family[None, :] == 1), found, -1)
    return found


def questions(settings: DeepHierarchy, task: str, run: str, seed: int) -> Questions:
    """What a network learns from, drawn with the seed."""
    tree = forest(settings, run)
    labels, values = sample(tree, settings.sequences, [seed, 5])
    tokens = values[:, list(tree.leaves)].astype(np.int64)
    rng = np.random.default_rng([seed, 6])
    if run == SHUFFLED:
        tokens = rng.permuted(tokens.reshape(len(tokens), TOPS, -1), axis=2).reshape(tokens.shape)
    if task == "classes":
        labels = rng.permutation(labels) if run == SHUFFLED_CLASSES else labels
        return _count_questions(tokens, np.full(len(tokens), -1), labels, 2**TOPS)
    return ask_for_tokens(tokens)


def ask_for_tokens(tokens: NDArray[np.int64]) -> Questions:
    """Every token in turn is hidden in all sequences (sequences, tokens), and asked for."""
    size = tokens.shape[1]
    contexts = np.repeat(tokens[None], size, axis=0)
    contexts[np.arange(size), :, np.arange(size)] = 0
    asked = np.repeat(np.arange(size), len(tokens))
    found = _count_questions(contexts.reshape(-1, size), asked, tokens.T.ravel(), 2)
    present = found.present + np.eye(size)[found.asked]
    return Questions(found.inputs, present, size * found.weights, found.answers, found.asked)


def _count_questions(
    inputs: NDArray[np.int64], asked: NDArray[np.int64], outcome: NDArray[np.int64], outcomes: int
) -> Questions:
    rows, which = np.unique(np.column_stack([inputs, asked]), axis=0, return_inverse=True)
    counts = np.bincount(which.ravel() * outcomes + outcome, minlength=len(rows) * outcomes)
    counts = counts.reshape(-1, outcomes).astype(np.float64)
    total = counts.sum(axis=1)
    x = rows[:, :-1].astype(np.float64)
    return Questions(x, x, total / total.sum(), counts / total[:, None], rows[:, -1])


def _entropy(shares: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(-np.where(shares > 0, shares * np.log(shares), 0.0).sum(axis=-1))
