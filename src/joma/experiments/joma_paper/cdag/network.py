"""The network that learns the class, with all that the draft speaks of in view."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from joma.core.arguments import Array


class Network:
    """Two hidden ReLU layers and a softmax; ``g`` ascends the log-likelihood, as in the draft.

    ``linear``: no nonlinearity. ``residual``: the second hidden layer adds to what the first one has.
    """

    def __init__(
        self,
        inputs: Array,
        labels: NDArray[np.int64],
        width: int,
        random: np.random.Generator,
        *,
        linear: bool = False,
        residual: bool = False,
    ) -> None:
        self.linear, self.residual = linear, residual
        self.inputs = inputs
        self.targets = np.eye(labels.max() + 1)[labels]
        sizes = [inputs.shape[1], width, width, self.targets.shape[1]]
        self.weights = [
            random.normal(0, np.sqrt(2 / fan_in), (fan_out, fan_in))
            for fan_in, fan_out in itertools.pairwise(sizes)
        ]
        self.biases = [np.zeros(size) for size in sizes[1:]]

    def passes(self) -> tuple[list[Array], list[Array]]:
        """``f`` of input and hidden layers, and ``s = sigma' g`` of hidden layers and output."""
        layers = list(zip(self.weights, self.biases, strict=True))
        activations, slopes = [self.inputs], []
        for number, (weight, bias) in enumerate(layers[:-1]):
            before = activations[-1] @ weight.T + bias
            slopes.append(np.ones_like(before) if self.linear else (before > 0).astype(np.float64))
            skipped = activations[-1] if self.residual and number else 0.0
            activations.append(before * slopes[-1] + skipped)
        weight, bias = layers[-1]
        gradients = [self.targets - softmax(activations[-1] @ weight.T + bias, axis=1)]
        skipped_back: Array | float = 0.0
        for weight, slope in zip(self.weights[:0:-1], slopes[::-1], strict=True):
            reached = gradients[0] @ weight + skipped_back
            gradients.insert(0, reached * slope)
            skipped_back = reached if self.residual else 0.0
        return activations, gradients

    def ascend(self, activations: list[Array], gradients: list[Array], rate: float) -> None:
        """One step of gradient ascent."""
        for number, (f, s) in enumerate(zip(activations, gradients, strict=True)):
            self.weights[number] = self.weights[number] + rate * s.T @ f / len(f)
            self.biases[number] = self.biases[number] + rate * s.mean(axis=0)
