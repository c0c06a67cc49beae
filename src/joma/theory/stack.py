"""A stack of JoMA blocks of any depth, and Theorem 1 at every layer of it.

Layer s reads the activations of layer s - 1 as its ``x`` (one orthonormal direction per hidden unit, one
query per group: the paper's abstraction of upper layers) under exp attention,

    b_g = x o exp(z_g),    h_gk = phi(v_gk . b_g + xi_gk),    next x = all h_gk,

and the last layer's units are the logits of the classes. Theorem 1's argument is pointwise in time and needs
nothing of the inputs, which may therefore be activations that train too, nor of the gradient: at every layer
at once z_g - eta_z/(2 eta_w) sum_k v_gk^2 is constant, for any loss. So all attention can be integrated out:
``reduced_logits`` makes the logits of every layer a function of its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joma.core.arguments import Array, arrays, positive, whole
from joma.core.errors import InputError
from joma.theory.activation import Activation


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer's parameters, or their directions of ascent: G groups of K units that read M inputs."""

    weights: Array
    """``v`` (G, K, M)."""
    bias: Array
    """``xi`` (G, K)."""
    logits: Array
    """``z`` (G, M)."""

    def __post_init__(self) -> None:
        v = np.shape(self.weights)
        if len(v) != 3 or np.shape(self.bias) != v[:2] or np.shape(self.logits) != (v[0], v[2]):
            raise InputError(
                f"stack: a layer of weights {v}, bias {np.shape(self.bias)} and logits "
                f"{np.shape(self.logits)} does not fit; give (G, K, M), (G, K) and (G, M)."
            )


def random_stack(
    widths: Sequence[int], groups: Sequence[int], seed: int, *, scale: float = 0.5
) -> list[Layer]:
    """Layers with ``widths`` units a group: widths[0] inputs, then one entry per layer, as in ``groups``."""
    if len(widths) != len(groups) + 1 or not groups:
        raise InputError(
            f"random_stack: {len(widths)} widths and {len(groups)} groups do not match; give the inputs' "
            "width and one width and one number of groups for every layer."
        )
    for name, sizes in (("widths", widths), ("groups", groups)):
        for size in sizes:
            whole("random_stack", name, size)
    rng = np.random.default_rng(seed)
    layers, inputs = [], widths[0]
    for width, number in zip(widths[1:], groups, strict=True):
        layers.append(
            Layer(
                scale * rng.standard_normal((number, width, inputs)),
                np.zeros((number, width)),
                0.5 * scale * rng.standard_normal((number, inputs)),
            )
        )
        inputs = number * width
    return layers


def directions(
    layers: Sequence[Layer], inputs: Array, labels: NDArray[np.int64], activation: Activation
) -> tuple[float, list[Layer]]:
    """The cross-entropy (nats) of the stack and the directions that descend it, layer by layer.

    Args:
        layers: the last has one group, whose units are the classes.
        inputs: ``x`` (N, M).
        labels: the class of each sample, (N,) whole numbers.
        activation: phi of every layer but the last, whose units are linear.

    Raises:
        InputError: layers that do not fit each other, the inputs or the labels.
    """
    (x,) = arrays("stack.directions", inputs=(inputs, "N M"))
    if not layers:
        raise InputError("stack: there is no layer; give at least one.")
    seen = []
    for number, layer in enumerate(layers):
        if layer.weights.shape[2] != x.shape[1]:
            raise InputError(
                f"stack: layer {number + 1} reads {layer.weights.shape[2]} inputs and is given {x.shape[1]}; "
                "make its width that of the layer below."
            )
        b = x[:, None, :] * np.exp(layer.logits)
        before = np.einsum("ngm,gkm->ngk", b, layer.weights) + layer.bias
        last = number == len(layers) - 1
        value, slope = (before, np.ones_like(before)) if last else activation(before)
        seen.append((b, slope))
        x = value.reshape(len(x), -1)
    classes = layers[-1].bias.size
    if (
        layers[-1].bias.shape[0] != 1
        or np.shape(labels) != (len(x),)
        or not np.issubdtype(np.asarray(labels).dtype, np.integer)
        or not np.all((labels >= 0) & (labels < classes))
    ):
        raise InputError(
            f"stack: labels {np.shape(labels)} must be {len(x)} whole numbers, classes below {classes}, of "
            "one group."
        )
    shifted = x - x.max(axis=1, keepdims=True)
    log_share = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    rows = np.arange(len(x))
    back = -np.exp(log_share)
    back[rows, labels] += 1.0
    found: list[Layer] = []
    for layer, (b, slope) in zip(reversed(layers), reversed(seen), strict=True):
        signal = back.reshape(slope.shape) * slope
        to_scores = np.einsum("ngk,gkm->ngm", signal, layer.weights)
        found.append(
            Layer(
                np.einsum("ngk,ngm->gkm", signal, b) / len(b),
                signal.mean(axis=0),
                np.mean(to_scores * b, axis=0),
            )
        )
        back = np.einsum("ngm,gm->nm", to_scores, np.exp(layer.logits))
    return float(-log_share[rows, labels].mean()), found[::-1]


def invariant(layer: Layer, *, weight_rate: float = 1.0, attention_rate: float = 1.0) -> Array:
    """``z - eta_z/(2 eta_w) sum_k v_k^2`` (G, M): constant along the joint flow.

    Raises InputError for a ``weight_rate`` that is not positive or a negative ``attention_rate``.
    """
    kappa = _kappa("stack.invariant", weight_rate, attention_rate)
    return np.asarray(layer.logits - 0.5 * kappa * np.square(layer.weights).sum(axis=1))


def reduced_logits(
    weights: Array, start: Layer, *, weight_rate: float = 1.0, attention_rate: float = 1.0
) -> Array:
    """``z`` (G, M) as a function of ``v`` (G, K, M): attention integrated out.

    Raises InputError for weights of another shape than the start's, and for rates as ``invariant`` does.
    """
    if np.shape(weights) != start.weights.shape:
        raise InputError(
            f"stack.reduced_logits: weights {np.shape(weights)} must be {start.weights.shape}, as those of "
            "the start."
        )
    kappa = _kappa("stack.reduced_logits", weight_rate, attention_rate)
    grown = np.square(weights).sum(axis=1) - np.square(start.weights).sum(axis=1)
    return np.asarray(start.logits + 0.5 * kappa * grown)


def _kappa(where: str, weight_rate: float, attention_rate: float) -> float:
    turn = positive(where, "attention_rate", attention_rate, zero=True)
    return turn / positive(where, "weight_rate", weight_rate)
