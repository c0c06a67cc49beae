"""What JoMA says in passing of the value matrix, of mu and co-occurrence, and of signs (A.4): as claims."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import expit
from scipy.stats import spearmanr

from joma.core.arguments import Array
from joma.core.claim import Claim, above, below, statements
from joma.dynamics.block_flow import solve
from joma.dynamics.block_salience_flow import integrate_attended
from joma.theory.activation import activation
from joma.theory.attention import Attention
from joma.theory.block import Block, Embeddings
from joma.theory.cooccurrence import query_bias, token_salience
from joma.theory.critical_points import find_critical_points, opposite_signs_from
from joma.theory.drift import of_labels
from joma.theory.isotropic_laws import MultivariateT

WITH_QUERY = np.array([0.9, 0.9, 0.5, 0.5, 0.2, 0.2])
WITHOUT_QUERY = np.array([0.9, 0.4, 0.5, 0.1, 0.2, 0.02])
"""P(l | m) and P(l | not m) of six tokens: of each frequency one that tells and one that does not."""
TAILS = (1.2, 1.5, 2.0, 3.0, 5.0)

STATEMENTS = statements(
    {
        "value_matrix.merged": "JoMA Sec. 2, 'W_V ... can be merged into the embedding vectors' | With W_V "
        "merged, u'_l = W_V u_l, Theorem 1 holds as it stands: z = 1/2 sum_k v_k^2 + c, v = U'^T w.",
        "token_salience.log_odds": "JoMA Sec. 4, after Thm 4 | A contextual token that co-occurs a lot with "
        "the query m has a large mu_l.",
        "token_salience.relu": "JoMA Sec. 4, corrected, of the block's own drift | In a ReLU unit under "
        "uniform attention, too, weights grow on tokens that tell m from other contexts, not on those that "
        "co-occur with it most.",
        "remark_a4.signs": "JoMA A.4 | At a critical point y_- < 1/2 < y_+ 'often', that is rho_- < 0 < "
        "rho_+.",
    },
    exact=True,
)


def value_matrix() -> list[Claim]:
    """Theorem 1 with a fixed value matrix: when its columns of merged embeddings are orthogonal."""
    tokens, width, samples, units = 4, 6, 12, 3
    rng = np.random.default_rng(3)
    basis = np.linalg.qr(rng.standard_normal((width, width)))[0]
    plain = Embeddings(basis[:, :tokens], basis[:, tokens])
    frequencies, gradient = rng.random((samples, tokens)), rng.standard_normal((samples, units))
    weights, logits = 0.3 * rng.standard_normal((units, width)), 0.2 * rng.standard_normal(tokens)
    lengths = np.array([0.6, 0.9, 1.2, 1.5])
    stretch = basis @ np.diag([*lengths, 1.0, 1.0]) @ basis.T
    mixed = np.eye(width)
    mixed[:tokens, :tokens] += 0.4 * rng.standard_normal((tokens, tokens))
    mixing = basis @ mixed @ basis.T

    def drifts(values: Array) -> tuple[float, float]:
        """Of z - 1/2 sum v^2 as printed, and over the squared lengths; over how far z moved."""
        merged = plain.merge_values(values)
        block = Block(merged, Attention(kind="exp"), activation("gelu"))
        found = solve(
            block, frequencies, gradient, weights=weights, logits=logits, times=np.linspace(0.0, 0.8, 5)
        )
        half = 0.5 * np.square(found.context_weights).sum(axis=-2)
        moved = float(np.abs(found.logits - found.logits[0]).max())
        size = np.square(np.linalg.norm(merged.context, axis=0))
        printed, over_lengths = (
            float(np.ptp(found.logits - part, axis=0).max()) / moved for part in (half, half / size)
        )
        return printed, over_lengths

    printed, corrected = drifts(stretch)
    return [
        STATEMENTS["value_matrix.merged"].correct(
            "Only if U'^T U' = I (an orthogonal W_V). If the merged embeddings are orthogonal to each "
            "other and to u_q, of lengths l: z_l = 1/2 sum_k v_kl^2/l^2 + c; else there is no such law.",
            printed_error=printed,
            error=max(corrected, drifts(np.eye(width))[0]),
            tolerance=1e-8,
            also=above(
                1e-3, drifts(mixing)[1], of="the corrected law's drift where embeddings are not orthogonal"
            ),
            null=drifts(mixing)[1],
            null_description="the corrected law with merged embeddings that are not orthogonal",
            evidence="drift of the difference over how far z moved, exp attention, smooth gate, 3 nodes; "
            f"lengths {lengths.min():g} to {lengths.max():g}",
        )
    ]


def _contexts(with_query: Array, without: Array) -> tuple[Array, Array, Array]:
    """All contexts (N, n) of independent tokens, whether they have the query, and their probabilities."""
    count = with_query.size
    patterns = ((np.arange(2**count)[:, None] >> np.arange(count)) & 1).astype(np.float64)

    def chance(p: Array) -> Array:
        return np.asarray(np.prod(np.where(patterns > 0, p, 1 - p), axis=1))

    labels = np.repeat([1.0, 0.0], 2**count)
    return np.tile(patterns, (2, 1)), labels, 0.5 * np.concatenate([chance(with_query), chance(without)])


def _logistic_rest(x: Array, y: Array, p: Array) -> Array:
    """Weights and bias of the linear unit at rest, by Newton's method: independent of the closed form."""
    inputs = np.column_stack([x, np.ones(len(x))])
    found = np.zeros(inputs.shape[1])
    for _ in range(60):
        chance = expit(inputs @ found)
        slope = inputs.T @ (p * (y - chance))
        curvature = (inputs * (p * chance * (1 - chance))[:, None]).T @ inputs
        found = found + np.linalg.solve(curvature, slope)
    return found


def token_salience_group() -> list[Claim]:
    """mu against co-occurrence, of the linear unit exactly and of the ReLU unit in order."""
    x, y, p = _contexts(WITH_QUERY, WITHOUT_QUERY)
    law = np.append(token_salience(WITH_QUERY, WITHOUT_QUERY), query_bias(WITH_QUERY, WITHOUT_QUERY))
    rest = _logistic_rest(x, y, p)
    often, telling = WITH_QUERY, law[:-1]
    discordant = np.mean(
        [rest[j] > rest[i] + 1e-6 for i in range(6) for j in range(6) if often[i] > often[j] + 1e-9]
    )
    # kappa near 0 is uniform attention.
    course = integrate_attended(
        of_labels(x, y, p, width=0.01), np.full(6, 0.02), np.array([0.0, 300.0]), kappa=1e-12
    )
    end = course.attended[-1]
    order, by_frequency = (float(spearmanr(end, key).statistic) for key in (telling, often))
    told, untold = end[1::2], end[::2]
    return [
        STATEMENTS["token_salience.log_odds"].correct(
            "mu_l = ln [p_l/(1 - p_l)] - ln [q_l/(1 - q_l)], the log odds with m over those without: a token "
            "that is everywhere has mu_l = 0 however often it co-occurs.",
            printed_error=float(discordant),
            error=float(np.abs(rest - law).max()),
            tolerance=1e-9,
            null=float(np.abs(rest[:-1] - np.log(WITH_QUERY / WITHOUT_QUERY)).max()),
            null_description="error of the ratio of probabilities, ln p_l/q_l, in place of the odds",
            evidence="linear unit with a logistic loss at rest (Newton), all 128 contexts of six independent "
            "tokens; printed: share of pairs of which the rarer token has the larger mu",
        ),
        STATEMENTS["token_salience.relu"].judge(
            above(by_frequency, order, of="rank correlation with the log odds", than="that with P(l | m)")
            & above(untold.max(), told, of="weight of a token that tells", than="any that does not"),
            null=by_frequency,
            null_description="rank correlation with P(l | m)",
            evidence="weights after 300 units of time: " + ", ".join(f"{v:.2f}" for v in end),
        ),
    ]


def remark_a4() -> list[Claim]:
    """Signs of the critical distances: a matter of how far the centres lie apart."""
    alike = total = wrong = 0
    limits = []
    for nu in TAILS:
        law = MultivariateT(nu)
        limits.append(opposite_signs_from(law))
        for distance in (0.3, 0.6, 1.0, 1.6, 2.2, 3.0, 5.0):
            for point in find_critical_points(law, distance, grid=801).points:
                differ = point.rho_minus < 0 < point.rho_plus
                total, alike = total + 1, alike + (not differ)
                wrong += differ != (distance > limits[-1])
    listed = ", ".join(f"t_{nu:g}: {limit:.3f}" for nu, limit in zip(TAILS, limits, strict=True))
    return [
        STATEMENTS["remark_a4.signs"].correct(
            "If and only if the centres lie farther apart than the critical pair one of which is 0, "
            f"H(rho) = H(0): {listed}.",
            printed_error=alike / total,
            error=wrong / total,
            tolerance=1e-9,
            also=below(total, alike, of="number of critical points with like signs", than="that of all"),
            null=0.5,
            null_description="share that a coin would get wrong",
            evidence=f"{total} critical points of five t laws at distances 0.3 to 5, {alike} with like signs",
        )
    ]


CHECKS: dict[str, Callable[[], list[Claim]]] = {
    "value_matrix": value_matrix,
    "token_salience": token_salience_group,
    "remark_a4": remark_a4,
}
