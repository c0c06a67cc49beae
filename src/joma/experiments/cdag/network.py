"""The network that learns the class, with all that the draft speaks of in view."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from joma.arguments import Array


class Network:
    """Two hidden ReLU layers and a softmax; ``g`` ascends the log-likelihood, as in the draft."""

    def __init__(
        self, inputs: Array, labels: NDArray[np.int64], width: int, random: np.random.Generator
    ) -> None:
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
        activations = [self.inputs]
        for weight, bias in layers[:-1]:
            activations.append(np.maximum(activations[-1] @ weight.T + bias, 0))
        weight, bias = layers[-1]
        gradients = [self.targets - softmax(activations[-1] @ weight.T + bias, axis=1)]
        for weight, reached in zip(self.weights[:0:-1], activations[:0:-1], strict=True):
            gradients.insert(0, (gradients[0] @ weight) * (reached > 0))
        return activations, gradients

    def ascend(self, activations: list[Array], gradients: list[Array], rate: float) -> None:
        """One step of gradient ascent."""
        for number, (f, s) in enumerate(zip(activations, gradients, strict=True)):
            self.weights[number] = self.weights[number] + rate * s.T @ f / len(f)
            self.biases[number] = self.biases[number] + rate * s.mean(axis=0)
