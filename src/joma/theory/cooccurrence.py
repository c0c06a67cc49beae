"""What makes a token salient: not how often it stands beside the query, but how much oftener than without.

JoMA's Sec. 4 says of mu that "if a contextual token l co-occurs a lot with the query m, then mu_l becomes
larger". A unit that learns by a logistic loss to tell the contexts with m from those without rests where no
context can tell it more. Where tokens occur independently, with the probabilities p_l with m and q_l without,
and the unit is linear, that is exactly the log odds

    mu_l = ln [p_l/(1 - p_l)] - ln [q_l/(1 - q_l)],    xi = ln [P/(1 - P)] + sum_l ln [(1 - p_l)/(1 - q_l)],

P the share of contexts with m. So a token that is everywhere, p_l = q_l, has mu_l = 0 however often it
co-occurs with m, and a rare one that is hardly ever elsewhere is the most salient. Where the two orders
agree, as in the trees of Fig. 5, in which all tokens are equally frequent, the paper's sentence is right.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from joma.core.arguments import Array, broadcast, positive
from joma.core.errors import InputError


def token_salience(with_query: ArrayLike, without_query: ArrayLike) -> Array:
    """mu_l, the log odds of a token with the query over its odds without.

    Args:
        with_query: P(l | m), between 0 and 1, both excluded; any shape.
        without_query: P(l | not m), likewise.

    Raises:
        InputError: a probability that is 0 or 1, for which mu_l would be infinite.

    Examples:
        >>> [round(float(mu), 2) for mu in token_salience([0.9, 0.9, 0.2], [0.9, 0.3, 0.02])]
        [0.0, 3.04, 2.51]
    """
    p, q = _probabilities("token_salience", with_query=with_query, without_query=without_query)
    return np.asarray(np.log(p) - np.log1p(-p) - np.log(q) + np.log1p(-q))


def query_bias(with_query: ArrayLike, without_query: ArrayLike, *, share: float = 0.5) -> float:
    """xi at rest, of the same unit: tokens along the last and only axis; ``share`` of the contexts have m."""
    p, q = _probabilities("query_bias", with_query=with_query, without_query=without_query)
    part = positive("query_bias", "share", share)
    if part >= 1:
        raise InputError(f"query_bias: share = {part:g} must lie between 0 and 1.")
    return float(np.log(part / (1 - part)) + np.sum(np.log1p(-p) - np.log1p(-q)))


def _probabilities(where: str, **given: ArrayLike) -> tuple[Array, ...]:
    found = broadcast(where, **given)
    for name, value in zip(given, found, strict=True):
        if np.any((value <= 0) | (value >= 1)):
            raise InputError(f"{where}: {name} must lie between 0 and 1, both excluded.")
    return found
