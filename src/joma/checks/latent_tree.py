"""Lemmas 8 and 9, Theorem 5 and Eq. 8 of JoMA, against an enumeration in rational numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from joma.core.claim import Claim, above, below, between, statements, within_error
from joma.theory import class_labels
from joma.theory import latent_tree as tree

# The example of every check below: three classes, an unequal root, a tree of four edges.
PRIOR = (Fraction(1, 2), Fraction(3, 10), Fraction(1, 5))
ZERO_GIVEN_CLASS = (Fraction(9, 10), Fraction(1, 4), Fraction(3, 5))
RHO = Fraction(4, 5)
ENUMERATION = "sum over every state of the latents, in rational numbers"
ROUNDING = 1e-13

STATEMENTS = statements(
    {
        "lemma8.symmetric": "JoMA Lemma 8 | M(rho) is symmetric.",
        "lemma8.stochastic": "JoMA Lemma 8 | M(rho) 1 = 1.",
        "lemma8.product": "JoMA Lemma 8, Eq. 90 | M(a) M(b) = M(b) M(a) = M(a b): the product is "
        "commutative (printed: communicative).",
        "lemma8.marginal": "JoMA Lemma 8 | M(a) p(b) = p(a b).",
        "lemma9.chain": "JoMA Lemma 9, Eq. 91 | From a latent to any descendant: M of the product of the "
        "correlations on the way.",
        "lemma9.pair": "JoMA Eq. 93-98 | The joint distribution of two latents below a common binary "
        "ancestor.",
        "theorem5.equation_101": "JoMA Eq. 101 | The columns of P[y_1 | y_0] are (1 +- p_k|0) / 2 with "
        "p_k|0 = P[y_1 = 0 | y_0 = k].",
        "theorem5.equation_103": "JoMA Eq. 103 | The ancestor's distribution is M(rho_c|1 rho_0), a matrix.",
        "theorem5.sparse_root": "JoMA Sec. 5, remark after Thm 5 | One class, one child: rho_0 as printed, "
        "which is 1 - 1/D.",
        "theorem5.any_tree": "JoMA Def. 2, Lemma 9, Eq. 98 | Unequal edges: every pair of latents follows "
        "from the products along its path.",
        "theorem5.near_ancestor": "JoMA Sec. 5 | The higher the common ancestor, the weaker the "
        "co-occurrence.",
        "theorem5.deep": "JoMA Sec. 5 | Deep hierarchy, near ancestor, rho and rho_0 close to 1: "
        "co-occurrence tends to 1.",
        "equation8.limit": "JoMA Eq. 8 | As rho = rho_0 = 1 - eps tends to 1, P[y_l = 1 | y_m = 1] tends to "
        "1 - H/L.",
        "equation8.remainder": "JoMA Eq. 8 | P = 1 - H/L + O(eps^2).",
        "equation8.balanced": "JoMA Eq. 8 | The printed order O(eps^2) is right where L = 2H (there P = 1/2 "
        "exactly).",
        "theorem5.root_bias": "JoMA Thm 5 | P[y_l = 1 | y_m = 1] with rho_0 = sum_k P[y_0 = k] P[y_1 = 0 | "
        "y_0 = k].",
        "theorem5.across_root": "JoMA Thm 5 | Tokens whose common ancestor is the class label itself: H = "
        "L, not excluded.",
    },
    exact=True,
)


def _probability(
    path: Sequence[int], edges: Sequence[tuple[int, int]], rho: Fraction, roots: Sequence[int]
) -> Fraction:
    """P[all latents as in ``path``]: the class label summed out, then one factor per edge."""
    total = Fraction(0)
    for prior, zero in zip(PRIOR, ZERO_GIVEN_CLASS, strict=True):
        factor = prior
        for root in roots:
            factor *= zero if path[root] == 0 else 1 - zero
        total += factor
    for parent, child in edges:
        total *= (1 + rho if path[parent] == path[child] else 1 - rho) / 2
    return total


def _enumerate(depth: int, height: int, rho: Fraction = RHO) -> tuple[Fraction, Fraction]:
    """P[y_l = 1 | y_m = 1], and P[y_c = 0] of their common ancestor (if H = L: of the root's child)."""
    if height == depth:  # two chains that meet in the class label only
        left, right = range(depth), range(depth, 2 * depth)
        ancestor = 0
        roots: tuple[int, ...] = (0, depth)
        edges = [*itertools.pairwise(left), *itertools.pairwise(right)]
        first, second = depth - 1, 2 * depth - 1
    else:
        ancestor = depth - height - 1
        roots = (0,)
        left = range(depth - height, depth)
        right = range(depth, depth + height)
        chains = (range(ancestor + 1), (ancestor, *left), (ancestor, *right))
        edges = [edge for chain in chains for edge in itertools.pairwise(chain)]
        first, second = depth - 1, depth + height - 1
    nodes = max(first, second) + 1
    both = one = zero = Fraction(0)
    for state in itertools.product((0, 1), repeat=nodes):
        probability = _probability(state, edges, rho, roots)
        one += probability * state[second]
        both += probability * state[second] * state[first]
        zero += probability * (1 - state[ancestor])
    return both / one, zero


def _prior() -> list[float]:
    return [float(p) for p in PRIOR]


def _zero() -> list[float]:
    return [float(q) for q in ZERO_GIVEN_CLASS]


def lemma8() -> list[Claim]:
    """The four properties of M(rho), on a grid of pairs."""
    grid = np.linspace(-1, 1, 41)
    pairs = [(a, b) for a in grid for b in grid]
    matrix, vector = tree.transition_matrix, tree.marginal
    asymmetry = max(float(np.abs(matrix(a) - matrix(a).T).max()) for a in grid)
    row_sums = max(float(np.abs(matrix(a) @ np.ones(2) - 1).max()) for a in grid)
    products = max(
        float(
            max(
                np.abs(matrix(a) @ matrix(b) - matrix(a * b)).max(),
                np.abs(matrix(b) @ matrix(a) - matrix(a * b)).max(),
            )
        )
        for a, b in pairs
    )
    applied = max(float(np.abs(matrix(a) @ vector(b) - vector(a * b)).max()) for a, b in pairs)
    evidence = "41 values of rho in [-1, 1], all pairs"
    return [
        STATEMENTS["lemma8.symmetric"].judge(within_error(0.0, asymmetry), evidence=evidence),
        STATEMENTS["lemma8.stochastic"].judge(within_error(ROUNDING, row_sums), evidence=evidence),
        STATEMENTS["lemma8.product"].judge(within_error(ROUNDING, products), evidence=evidence),
        STATEMENTS["lemma8.marginal"].judge(within_error(ROUNDING, applied), evidence=evidence),
    ]


def lemma9() -> list[Claim]:
    """Chains of unequal edges, and the joint distribution below a common ancestor."""
    random = np.random.default_rng(9)
    chain_error = pair_error = 0.0
    for _ in range(200):
        edges = random.uniform(-1, 1, random.integers(1, 9))
        product = np.eye(2)
        for rho in edges:
            product = tree.transition_matrix(rho) @ product
        chain_error = max(
            chain_error, float(np.abs(product - tree.transition_matrix(tree.chain_correlation(edges))).max())
        )
        first, second, bias = random.uniform(-1, 1, 3)
        direct = (
            tree.transition_matrix(first) @ np.diag(tree.marginal(bias)) @ tree.transition_matrix(second).T
        )
        pair_error = max(
            pair_error, float(np.abs(direct - tree.pair_distribution(first, second, bias)).max())
        )
    return [
        STATEMENTS["lemma9.chain"].judge(
            within_error(ROUNDING, chain_error),
            evidence="200 random chains of 1 to 8 unequal edges, matrix products",
        ),
        STATEMENTS["lemma9.pair"].judge(
            within_error(ROUNDING, pair_error),
            evidence="200 random triples (rho_1c, rho_2c, rho_c), sum over the ancestor's values",
        ),
    ]


def theorem5() -> list[Claim]:
    """Co-occurrence: the formula, its rho_0, the case H = L, and trees that are not uniform."""
    right, printed = (
        class_labels.root_bias(_prior(), _zero()),
        class_labels.printed_root_bias(_prior(), _zero()),
    )
    places = [(4, 1), (4, 2), (4, 3), (3, 1), (3, 2), (2, 1)]
    errors: dict[str, list[float]] = {"right": [], "printed": []}
    for depth, height in places:
        exact = float(_enumerate(depth, height)[0])
        for name, bias in (("right", right), ("printed", printed)):
            law = tree.cooccurrence(float(RHO), bias, depth=depth, ancestor_height=height)
            errors[name].append(abs(float(law) - exact))

    exact_zero = float(_enumerate(4, 1)[1])  # the ancestor two edges below the root's child
    below_root = tree.chain_correlation([float(RHO)] * 2)
    ancestor = tree.marginal(below_root * right)
    as_matrix = tree.transition_matrix(below_root * right)
    vector_error = abs(ancestor[0] - exact_zero)
    matrix_error = float(np.abs(as_matrix - np.array([exact_zero, 1 - exact_zero])[:, None]).max())

    first_child = float(_enumerate(2, 1)[1])
    column_error = abs(tree.marginal(right)[0] - first_child)
    printed_column_error = abs((1 + printed) / 2 - first_child)

    classes = 20
    sparse = class_labels.root_bias(np.full(classes, 1 / classes), 1.0 - (np.arange(classes) == 0))

    pair = float(np.array(_prior()) @ (2 * np.array(_zero()) - 1) ** 2)
    across = float(_enumerate(3, 3)[0])
    with_pair = float(tree.cooccurrence_across_root(float(RHO), right, pair, depth=3))
    bare = float(tree.cooccurrence_across_root(float(RHO), right, float(RHO) ** 2, depth=3))

    heights = np.arange(1, 12)
    falling = tree.cooccurrence(0.9, 0.8, depth=12, ancestor_height=heights)
    deep = [
        float(tree.cooccurrence(1 - 1e-4, 1 - 1e-4, depth=d, ancestor_height=1)) for d in (10, 10**3, 10**5)
    ]
    limit = (1 - (1 - 1e-4) ** 2) / 2
    return [
        STATEMENTS["theorem5.root_bias"].correct(
            "rho_0 = sum_k P[y_0 = k] (2 P[y_1 = 0 | y_0 = k] - 1) = 2 P[y_1 = 0] - 1.",
            printed_error=min(errors["printed"]),
            error=max(errors["right"]),
            tolerance=ROUNDING,
            evidence=f"{len(places)} places (L, H) in a tree of three classes; {ENUMERATION}; the printed "
            f"definition is off by {min(errors['printed']):.3f} to {max(errors['printed']):.3f}",
        ),
        STATEMENTS["theorem5.equation_101"].correct(
            "They are (1 +- (2 P[y_1 = 0 | y_0 = k] - 1)) / 2.",
            printed_error=printed_column_error,
            error=column_error,
            tolerance=ROUNDING,
            evidence=f"P[y_1 = 0]; {ENUMERATION}",
        ),
        STATEMENTS["theorem5.equation_103"].correct(
            "It is the vector p(rho_c|1 rho_0), the first column of that matrix.",
            printed_error=matrix_error,
            error=vector_error,
            tolerance=ROUNDING,
            evidence=f"L = 4, H = 1; {ENUMERATION}; the matrix is compared column by column",
        ),
        STATEMENTS["theorem5.sparse_root"].correct(
            "rho_0 = 1 - 2/D; it still tends to 1 with the number of classes D.",
            printed_error=abs((1 - 1 / classes) - sparse),
            error=abs(class_labels.sparse_root_bias(classes) - sparse),
            tolerance=ROUNDING,
            evidence=f"D = {classes} equally likely classes, sum over the classes",
        ),
        STATEMENTS["theorem5.across_root"].correct(
            "rho^2H becomes rho^(2L-2) E[s_1 s_1'] of the label's two children; rho_0 is not enough.",
            printed_error=abs(bare - across),
            error=abs(with_pair - across),
            tolerance=ROUNDING,
            evidence=f"L = H = 3, three classes; {ENUMERATION}",
        ),
        STATEMENTS["theorem5.any_tree"].judge(
            within_error(ROUNDING, _any_tree_error()),
            evidence="uneven tree of 8 latents below 3 classes, all pairs; sum over all 768 states",
        ),
        STATEMENTS["theorem5.near_ancestor"].judge(
            below(0, np.diff(falling), of="change of the co-occurrence", across="at each step of H"),
            evidence="L = 12, rho = .9, rho_0 = .8, H = 1..11: largest step",
        ),
        STATEMENTS["theorem5.deep"].judge(
            between(-1e-3, 1e-3, (1 - deep[2]) / limit - 1, of="relative error of (1 - rho^2) / 2 for 1 - P")
            & above(0, np.diff(deep), of="rise of P with L"),
            evidence="1 - rho = 1e-4, H = 1, L = 10, 1e3, 1e5: 1 - P = "
            + ", ".join(f"{1 - p:.3g}" for p in deep),
        ),
    ]


def _any_tree_error() -> float:
    random = np.random.default_rng(5)
    roots, parents = 2, (0, 0, 1, 2, 2, 4)
    zero, rho = random.uniform(0, 1, (roots, 3)), random.uniform(-1, 1, len(parents))
    model = tree.LatentTree(
        class_probabilities=_prior(), zero_given_class=zero, parents=parents, correlations=rho
    )
    both = np.zeros((model.nodes, model.nodes))
    for label, prior in enumerate(_prior()):
        for state in itertools.product((0, 1), repeat=model.nodes):
            weight = prior
            for root in range(roots):
                weight *= zero[root, label] if state[root] == 0 else 1 - zero[root, label]
            for offset, parent in enumerate(parents):
                weight *= (1 + rho[offset] * (1 if state[roots + offset] == state[parent] else -1)) / 2
            both += weight * np.outer(state, state)
    table = model.cooccurrence(np.arange(model.nodes))
    return float(np.abs(table - both / np.diag(both)[None, :]).max())


def equation8() -> list[Claim]:
    """The small-noise limit and the order of its remainder."""
    places = [(6, 2), (9, 2), (9, 7), (12, 1)]
    noise = 1e-5
    limit_error, printed, right = 0.0, [], []
    for depth, height in places:
        exact = float(tree.cooccurrence(1 - noise, 1 - noise, depth=depth, ancestor_height=height))
        remainder = (exact - (1 - height / depth)) / noise
        kept = float(tree.cooccurrence_expansion(noise, depth=depth, ancestor_height=height))
        limit_error = max(limit_error, abs(exact - (1 - height / depth)))
        printed.append(abs(remainder))
        right.append(abs(exact - kept) / noise)
    balanced = float(tree.cooccurrence(1 - noise, 1 - noise, depth=8, ancestor_height=4)) - 0.5
    return [
        STATEMENTS["equation8.limit"].judge(
            within_error(2 * noise, limit_error),
            evidence=f"eps = {noise:g}, four pairs (L, H), against Theorem 5",
        ),
        STATEMENTS["equation8.remainder"].correct(
            "P = 1 - H/L + eps H (2H - L) / (2L) + O(eps^2).",
            printed_error=min(printed),
            error=max(right),
            tolerance=1e-3,
            evidence=f"remainder divided by eps at eps = {noise:g}, four pairs (L, H); should vanish",
        ),
        STATEMENTS["equation8.balanced"].judge(
            within_error(1e-3, abs(balanced) / noise),
            evidence=f"L = 8, H = 4, eps = {noise:g}: remainder divided by eps",
        ),
    ]


CHECKS: dict[str, Callable[[], list[Claim]]] = {
    "lemma8": lemma8,
    "lemma9": lemma9,
    "theorem5": theorem5,
    "equation8": equation8,
}
