"""The random numbers of the authors' runs: initial weights and the order of the classes."""

from __future__ import annotations

import random

import numpy as np
import torch

from joma.data.next_token import NextTokenData


def authors_start(data: NextTokenData, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(Y, z) at the start of the authors' run ``seed``: two M x M linear layers drawn one after the other.

    The first holds Y transposed, the second Z; rows and columns that the data never use are dropped. The
    vocabulary is contextual, last, next tokens in this order, but a decoder column is a next token here,
    so Y's columns are put in the order next tokens first.
    """
    size = data.logits
    generator = torch.Generator().manual_seed(seed)
    first, second = (
        torch.empty(size, size).uniform_(-(size**-0.5), size**-0.5, generator=generator).numpy()
        for _ in range(2)
    )
    tokens = data.contextual_tokens
    return (
        np.roll(first.T[:tokens], data.classes, axis=1),
        second[tokens : tokens + data.last_tokens, :tokens],
    )


def authors_classes(data: NextTokenData, seed: int, steps: int, batch: int) -> np.ndarray:
    """The class of every sequence of the authors' run ``seed``, shape (steps, batch)."""
    choose = random.Random(seed).choice
    classes = range(data.classes)
    return np.array([choose(classes) for _ in range(steps * batch)], dtype=np.int64).reshape(steps, batch)
