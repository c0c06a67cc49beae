"""The rank of the lower MLP's W along Eq. 6 and along the block, with K nodes that share their attention."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from joma.core.arguments import Array
from joma.core.claim import Claim, above, statements, within_error
from joma.dynamics.block_salience_flow import BlockAttention, integrate_joint
from joma.theory import block_salience, salience
from joma.theory.drift import towards

FIGURE_4 = (
    1.265432,
    1.396091,
    1.922268,
    2.366884,
    2.470280,
    2.488770,
    2.896919,
    2.902236,
    3.304665,
    3.689334,
)
TIMES = np.concatenate([[1e-4], np.geomspace(1e-3, 20.0, 300)])
NODES = 40
DRAWS = 5

STATEMENTS = statements(
    {
        "block_rank.initial_values": "JoMA Fig. 6, the fall of the stable rank | That the stable rank of W "
        "falls from its random start is no sign of sparse attention: under uniform attention it falls "
        "farther.",
        "block_rank.nodes": "JoMA Eq. 6, of the block, K nodes | From W = 0 each node stays in proportion "
        "to its mu_k, the columns growing as one component of size |mu_l| does.",
        "block_rank.drops_and_rebounds": "JoMA Sec. 4, 'the rank of lower layer matrix W will first drop "
        "... and then bounce back' | In the block the stable rank of W drops first and then rises again.",
    },
    exact=True,
)


def points(seed: int) -> Array:
    """mu (nodes, 10): random directions of the components, their sizes those of Fig. 4."""
    found = np.random.default_rng(seed).standard_normal((NODES, len(FIGURE_4)))
    return np.asarray(found * np.array(FIGURE_4) / np.linalg.norm(found, axis=0))


def stable_ranks(weights: Array) -> Array:
    """|W|_F^2/sigma_1^2 of matrices (..., K, m)."""
    singular = np.linalg.svd(weights, compute_uv=False)
    return np.asarray(np.square(singular / singular[..., :1]).sum(axis=-1))


def printed_weights(mu: Array, times: Array) -> Array:
    """W along Eq. 6, (times, K, m): here too every node stays in proportion to its mu_k."""
    size = np.linalg.norm(mu, axis=0)
    return np.asarray(mu * (salience.solve(size, times).v / size)[:, None, :])


def block_rank() -> list[Claim]:
    """The exact curve, the paper's remark, and what initial values do to a rank."""
    mu = points(0)
    some = np.array([0.0, 0.05, 0.3, 1.0])
    joint = integrate_joint(towards(mu), np.zeros_like(mu), some, rtol=1e-11, atol=1e-13)
    apart = joint.v[1:] - block_salience.weights_of_nodes(mu, some[1:])
    curves = {
        "block": [stable_ranks(block_salience.weights_of_nodes(points(s), TIMES)) for s in range(DRAWS)],
        "Eq. 6": [stable_ranks(printed_weights(points(s), TIMES)) for s in range(DRAWS)],
    }
    frozen = [stable_ranks(_from(points(s), np.zeros_like(mu), "frozen")) for s in range(DRAWS)]

    def drops(name: str) -> Array:
        return np.array([1 - one.min() / one[0] for one in curves[name]])

    def ends(name: str) -> Array:
        return np.array([one[-1] / one[0] for one in curves[name]])

    flat = max(float(np.abs(one / one[0] - 1).max()) for one in frozen)
    return [
        STATEMENTS["block_rank.nodes"].judge(
            within_error(1e-8, np.abs(apart).max()),
            null=np.abs(joint.v[1:] - printed_weights(mu, some[1:])).max(),
            null_description="the distance of Eq. 6's W from the block's joint flow",
            evidence=f"joint flow of {NODES} nodes that share z",
        ),
        STATEMENTS["block_rank.drops_and_rebounds"].judge(
            above(
                0.01,
                drops("block"),
                of="drop of the stable rank, relative to its start,",
                across="for every mu drawn",
            )
            & above(
                0.01, ends("block") - 1 + drops("block"), of="rise after it", across="for every mu drawn"
            ),
            null=flat,
            null_description="largest change of the stable rank under uniform attention",
            evidence=f"{DRAWS} draws, |mu_l| of Fig. 4; drops by {span(drops('block'))} and ends "
            f"{span(ends('block') - 1)} *above* its start, attention having evened the columns; Eq. 6 drops "
            f"by {span(drops('Eq. 6'))} and ends where it began",
        ),
        _initial_values(),
    ]


def _initial_values() -> Claim:
    """What of a rank's fall is owed to leaving random initial weights."""
    falls: dict[str, list[float]] = {"exp": [], "frozen": []}
    for seed in range(DRAWS):
        mu = points(seed)
        start = 0.02 * np.random.default_rng(100 + seed).standard_normal(mu.shape)
        for attention in ("exp", "frozen"):
            ranks = stable_ranks(_from(mu, start, attention))
            falls[attention].append(float(1 - ranks[-1] / ranks[0]))
    attended, uniform = np.array(falls["exp"]), np.array(falls["frozen"])
    fall = "fall under uniform attention"
    return STATEMENTS["block_rank.initial_values"].judge(
        above(0, uniform, of=fall, across="in every draw")
        & above(attended, uniform, of=fall, than="that with exp attention", across="in every draw"),
        null=attended.max(),
        null_description="largest fall with exp attention",
        evidence=f"{DRAWS} draws from the same weights; by {span(uniform)} of the start, with exp attention "
        f"by {span(attended)}: what is left behind is the random weights",
    )


def span(values: Array) -> str:
    """From the least to the largest, in percent."""
    return f"{values.min():.0%} to {values.max():.0%}"


def _from(mu: Array, start: Array, attention: BlockAttention) -> Array:
    """W (times, K, m) of the joint flow, from ``start``; z = sum_k v_k^2/2 (exp)."""
    z0 = 0.5 * np.square(start).sum(axis=0) if attention == "exp" else 0.0
    times = np.concatenate([[0.0], TIMES])
    # From W = 0 the first moment has no rank.
    first = 0 if start.any() else 1
    return integrate_joint(towards(mu), start, times, attention=attention, z0=z0).v[first:]


CHECKS: dict[str, Callable[[], list[Claim]]] = {"block_rank": block_rank}
