"""What each policy keeps of a context, from the layers' queries, keys and values on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from joma.core.errors import InputError
from joma.experiments.shared.decoder_attention import LayerAttention
from joma.measures.entropy import entropy_of_probabilities

MASS, MEAN, MAXIMUM, CHANGE, WINDOW, NORM = (
    "received mass",
    "received mean",
    "received maximum",
    "exact change",
    "mass from the window",
    "small key norm",
)
RECENT, SINK, RANDOM = "recency", "sink plus recency", "random"
OWN, BY_ENTROPY = "own keys", "own keys, by entropy"
ASKS = {
    MASS: "all queries",
    MEAN: "all queries",
    MAXIMUM: "all queries",
    CHANGE: "all queries",
    WINDOW: "window",
    NORM: "none",
    RECENT: "none",
    SINK: "none",
    RANDOM: "none",
    OWN: "all queries",
    BY_ENTROPY: "all queries",
}
"""Policy -> which queries of the context it has asked; "none": it knows no query."""
PLAIN, BEYOND = "rank correlation with the exact change", "the same beyond position"
"""What is told of each score beside its regret."""
SINKS = 4
"""Sink plus recency keeps the first key, and one more for every so many of the budget beyond."""


@dataclass(frozen=True)
class Scores:
    """What each policy thinks of each position of a context."""

    common: dict[str, Tensor]
    """Policy -> (context,) float64: the larger, the sooner it is kept."""
    own: list[Tensor]
    """Per layer (heads, context): received mass."""
    entropies: list[Tensor]
    """Per layer (heads,): mean entropy of the rows, nats."""


def score(layers: list[LayerAttention], window: int) -> Scores:
    """The scores, summed over layers and heads; the exact change as a sum of squares."""
    context = layers[0].key.shape[2]
    found = [layer.receive() for layer in layers]
    last = [layer.receive(list(range(context - window, context))) for layer in layers]

    def total(parts: list[Tensor]) -> Tensor:
        return torch.stack([part.double()[0].sum(0) for part in parts]).sum(0)

    place = torch.arange(context, dtype=torch.float64)
    common = {
        MASS: total([one.mass for one in found]),
        MEAN: total([one.mean for one in found]),
        MAXIMUM: total([one.maximum for one in found]),
        CHANGE: total([one.removal_effect.double().square() for one in found]),
        WINDOW: total([one.mass for one in last]),
        NORM: -total([layer.key.norm(dim=-1) for layer in layers]),
        RECENT: place,
    }
    entropies = [entropy_of_probabilities(layer.probabilities()).mean((0, 2)) for layer in layers]
    return Scores(common, [one.mass[0].double() for one in found], entropies)


def keep_positions(scores: Scores, policy: str, budget: int) -> Tensor:
    """(context,) bool: what a policy keeps.

    Raises:
        InputError: a budget below 1 or above the context.
    """
    context = len(scores.common[MASS])
    if not 1 <= budget <= context:
        raise InputError(
            f"a budget of {budget} keys in a context of {context}; give one from 1 to {context}."
        )
    if policy == SINK:
        sinks = 1 + (budget - 1) // (SINKS + 1)
        place = torch.arange(context)
        return (place < sinks) | (place >= context - (budget - sinks))
    return largest(scores.common[policy], budget)


def largest(values: Tensor, number: int) -> Tensor:
    """(..., n) bool: the ``number`` largest of each row; of equals the later."""
    order = values.flip(-1).sort(dim=-1, descending=True, stable=True).indices
    chosen = torch.zeros_like(values, dtype=torch.bool)
    return chosen.scatter(-1, order[..., :number], True).flip(-1)


def keep_by_head(scores: Scores, policy: str, budget: int) -> list[Tensor]:
    """Per layer (heads, context) bool: as many in every head, or more where the entropy is higher."""
    if policy == OWN:
        return [largest(one, budget) for one in scores.own]
    entropies = torch.cat(scores.entropies)
    context = scores.own[0].shape[1]
    numbers = divide(entropies, budget * len(entropies), context).tolist()
    found = []
    for one in scores.own:
        own, numbers = numbers[: len(one)], numbers[len(one) :]
        found.append(torch.stack([largest(row, int(n)) for row, n in zip(one, own, strict=True)]))
    return found


def divide(weights: Tensor, total: int, most: int) -> Tensor:
    """Whole numbers from 1 to ``most`` with sum ``total``, in proportion to the weights where they can."""
    numbers = torch.ones(len(weights), dtype=torch.int64)
    for _ in range(total - len(weights)):
        wanting = (weights.double() / numbers).masked_fill(numbers >= most, -1.0)
        numbers[int(wanting.argmax())] += 1
    return numbers
