"""The class label at the root of a latent tree: the mean that it gives its binary children (``rho_0``).

Theorem 5 and Eq. 101 print a probability where the sign's mean is needed: ``printed_root_bias``
against ``root_bias``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from joma.core.arguments import Array, finite, numbers, whole
from joma.core.errors import InputError


def root_bias(class_probabilities: ArrayLike, zero_given_class: ArrayLike) -> float:
    """The right ``rho_0 = sum_k P[y_0 = k] (2 P[y_1 = 0 | y_0 = k] - 1) = 2 P[y_1 = 0] - 1``.

    ``y_1`` is the child of the class label on the way to the CLA; ``class_probabilities`` (D,) and
    ``zero_given_class`` (D,) are ``P[y_0 = k]`` and ``P[y_1 = 0 | y_0 = k]``. A binary root that passes its
    value on as any other latent does is the case ``zero_given_class = marginal columns of M(rho)``.
    Theorem 5 and Eq. 101 print the probability where this needs ``2 P - 1``.

    Raises:
        InputError: lengths that differ, negative probabilities, classes that do not sum to one.
    """
    prior, zero = class_table(class_probabilities, zero_given_class, "root_bias")
    return float(prior @ (2 * zero - 1))


def printed_root_bias(class_probabilities: ArrayLike, zero_given_class: ArrayLike) -> float:
    """Theorem 5's ``rho_0`` as printed, ``sum_k P[y_0 = k] P[y_1 = 0 | y_0 = k]``: wrong, for comparison."""
    prior, zero = class_table(class_probabilities, zero_given_class, "printed_root_bias")
    return float(prior @ zero)


def sparse_root_bias(classes: int) -> float:
    """``rho_0 = 1 - 2 / D`` where each of D equally likely classes triggers one child of its own.

    The remark after Theorem 5. The printed definition gives ``1 - 1 / D``.

    Raises:
        InputError: fewer than one class.
    """
    if whole("sparse_root_bias", "classes", classes, least=0) == 0:
        raise InputError("sparse_root_bias: 0 classes; give at least one.")
    return 1 - 2 / classes


def class_table(
    class_probabilities: ArrayLike, zero_given_class: ArrayLike, where: str
) -> tuple[Array, Array]:
    """P[y_0 = k] and P[y_1 = 0 | y_0 = k], both (D,): probabilities, the first of sum one."""
    prior = finite(where, "class_probabilities", class_probabilities)
    zero = numbers(where, "zero_given_class", zero_given_class)
    if prior.ndim != 1 or prior.shape != zero.shape:
        raise InputError(
            f"{where}: class probabilities of shape {prior.shape}, P[y_1 = 0 | y_0] of shape {zero.shape}: "
            "give one number per class in each."
        )
    if not (np.all(prior >= 0) and abs(prior.sum() - 1) <= 1e-9):
        raise InputError(
            f"{where}: class probabilities {prior.tolist()} sum to {prior.sum():.12g}; "
            "give non-negative numbers that sum to one."
        )
    if not np.all((zero >= 0) & (zero <= 1)):
        raise InputError(f"{where}: P[y_1 = 0 | y_0 = k] = {zero.tolist()} must lie between 0 and 1.")
    return prior, zero
