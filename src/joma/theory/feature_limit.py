"""Whether a node of the draft "Multi-layer Analysis" comes to stand for its label: f_j -> z_alpha.

The draft integrates, for a binary z that gives x = x_+ or x_- (its Eq. 2 and 3, gradients held at +1 and -1),

    w' = sigma'(w.x_+) P x_+ - sigma'(w.x_-) (1 - P) x_-

and concludes "therefore f_j -> z_alpha", with a note that "the distribution of x_- may need to be quite
spread-out". With two inputs any f that tells them apart is an affine function of z, so what has to vanish is
what the node says of the other class, f(x_-)/f(x_+). With ReLU, from small weights that both inputs pass:

- while both gates are open w' = P x_+ - (1 - P) x_-. If **P x_+.x_- <= (1 - P) |x_-|^2**, w.x_- falls to 0
  and stays there (it slides along the kink, or is negative): f -> z.
- else both responses grow for ever, and f(x_-)/f(x_+) tends to (P c - (1 - P) B)/(P A - (1 - P) c),
  A = |x_+|^2, B = |x_-|^2, c = x_+.x_-: the frequent class draws the node along.
- a spread of x_- does no good: isotropic noise of size s about 0 passes the gate half of the time, and the
  correlation of f with z is that of ``spread_correlation``, 1 only for s -> 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from joma.core.arguments import Array, broadcast, finite, positive
from joma.core.errors import InputError


def background_response(plus: ArrayLike, minus: ArrayLike, *, share: float = 0.5) -> float:
    """The limit of f(x_-)/f(x_+) of a ReLU node from small weights that pass both inputs.

    Args:
        plus: x_+ (d,), where the label is 1.
        minus: x_- (d,), where it is 0.
        share: P, of the samples with label 1, between 0 and 1.

    Raises:
        InputError: shapes that differ, an input of zeros, or inputs between which the node dies: P |x_+|^2 <=
            (1 - P) x_+.x_-.

    Examples:
        >>> background_response([1.0, 0.0], [0.3, 1.0])
        0.0
        >>> round(background_response([1.0, 0.0], [0.3, 0.2]), 3)
        0.243
    """
    first, second = finite("background_response", "plus", plus), finite("background_response", "minus", minus)
    part = positive("background_response", "share", share)
    if first.ndim != 1 or first.shape != second.shape or not first.any() or not second.any() or part >= 1:
        raise InputError(
            f"background_response: plus {first.shape} and minus {second.shape} must be vectors of one "
            f"length, none of zeros, and share = {part:g} below 1."
        )
    a, b, c = float(first @ first), float(second @ second), float(first @ second)
    growth, other = part * a - (1 - part) * c, part * c - (1 - part) * b
    if growth <= 0:
        raise InputError(
            "background_response: P |x_+|^2 <= (1 - P) x_+.x_-: the node dies before it tells labels apart."
        )
    return max(other, 0.0) / growth


def spread_correlation(spread: ArrayLike, *, distance: float, share: float = 0.5) -> Array:
    """The correlation of f and z in the limit, x_+ at the distance X and x_- isotropic Gaussian about 0.

    f(x_+) = |w| X and f(x_-) = |w| s max(N, 0), N normal: the means differ by X - s/sqrt(2 pi), the variance
    within x_- is s^2 (1/2 - 1/(2 pi)).

    Args:
        spread: s, positive, any shape.
        distance: X = |x_+|.
        share: P, of the samples with label 1.
    """
    (s,) = broadcast("spread_correlation", spread=spread)
    apart, part = (
        positive("spread_correlation", "distance", distance),
        positive("spread_correlation", "share", share),
    )
    if np.any(s <= 0) or part >= 1:
        raise InputError("spread_correlation: spread must be positive and share below 1.")
    gap = apart - s / np.sqrt(2 * np.pi)
    within = (1 - part) * np.square(s) * (0.5 - 0.5 / np.pi)
    between = part * (1 - part) * np.square(gap)
    return np.asarray(np.sign(gap) * np.sqrt(between / (between + within)))
