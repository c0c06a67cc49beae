"""Activations of the hidden layer, each with its derivative: homogeneous ones and smooth ones.

``phi`` is homogeneous of degree one when ``phi(x) = phi'(x) x`` (JoMA Thm 3): linear, relu, leaky. The
smooth ones are not, and Theorem 1 holds for them all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from joma.core.errors import InputError, nearest
from joma.theory.attention import Array


@dataclass(frozen=True)
class Activation:
    """``phi`` and ``phi'``; calling it returns both. Build one with ``activation``."""

    name: str
    value: Callable[[Array], Array]
    derivative: Callable[[Array], Array]
    """At a kink, the derivative from the left."""
    homogeneous: bool
    """Whether ``phi(x) = phi'(x) x`` everywhere."""

    def __call__(self, preactivation: Array) -> tuple[Array, Array]:
        """``phi(x)`` and ``phi'(x)``, elementwise."""
        return self.value(preactivation), self.derivative(preactivation)


def leaky(slope: float) -> Activation:
    """``x`` for positive and ``slope * x`` for negative x: ``c_- = slope``, ``c_+ = 1`` in Lemma 5."""
    if not np.isfinite(slope):
        raise InputError(f"leaky: slope = {slope!r} must be finite.")
    return Activation(
        f"leaky({slope:g})",
        lambda x: np.where(x > 0, x, slope * x),
        lambda x: np.where(x > 0, 1.0, slope),
        homogeneous=True,
    )


def smooth_relu(width: float) -> Activation:
    """``width * softplus(x / width)``: ReLU with its kink rounded over that width, at most 0.7 width off.

    For flows that slide along the kink, where ReLU itself has no derivative.
    """
    if not (np.isfinite(width) and width > 0):
        raise InputError(f"smooth_relu: width = {width!r} must be a finite number above 0.")
    return Activation(
        f"smooth_relu({width:g})",
        lambda x: width * np.logaddexp(0.0, x / width),
        lambda x: np.asarray(special.expit(x / width)),
        homogeneous=False,
    )


def _gelu_derivative(x: Array) -> Array:
    return np.asarray(special.ndtr(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi))


def _silu_derivative(x: Array) -> Array:
    s = special.expit(x)
    return np.asarray(s * (1 + x * (1 - s)))


LINEAR = Activation("linear", lambda x: x, np.ones_like, homogeneous=True)
_KNOWN = {
    each.name: each
    for each in (
        LINEAR,
        Activation("relu", lambda x: np.maximum(x, 0.0), lambda x: (x > 0).astype(float), homogeneous=True),
        Activation("softplus", lambda x: np.logaddexp(0.0, x), special.expit, homogeneous=False),
        Activation("gelu", lambda x: x * special.ndtr(x), _gelu_derivative, homogeneous=False),
        Activation("silu", lambda x: x * special.expit(x), _silu_derivative, homogeneous=False),
        Activation("tanh", np.tanh, lambda x: 1.0 - np.tanh(x) ** 2, homogeneous=False),
        Activation(
            "sigmoid", special.expit, lambda x: special.expit(x) * special.expit(-x), homogeneous=False
        ),
        Activation("quadratic", lambda x: x * x / 2, lambda x: 1.0 * x, homogeneous=False),
    )
}
ACTIVATIONS: tuple[str, ...] = (*_KNOWN, "leaky")


def activation(name: str) -> Activation:
    """The activation of that name; ``leaky`` has slope 0.1 (another with ``leaky``)."""
    if name == "leaky":
        return leaky(0.1)
    if name not in _KNOWN:
        raise InputError(f"activation: {name!r} is unknown; {nearest(name, ACTIVATIONS)}")
    return _KNOWN[name]
