"""Theorem 1 at every layer of a stack, and attention integrated out of all of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from joma.core.claim import Claim, statements, within_error
from joma.dynamics import stack_flow
from joma.theory.activation import activation
from joma.theory.stack import invariant, random_stack

WIDTHS, GROUPS = (6, 4, 3, 3, 3), (2, 2, 2, 1)
RATES = {"weight_rate": 1.0, "attention_rate": 0.7}
TIMES = np.linspace(0.0, 10.0, 6)

STATEMENTS = statements(
    {
        "theorem1_stack.invariants": "JoMA Thm 1 at any depth (poster, future work) | In a stack z - "
        "eta_z/(2 eta_w) sum_k v_k^2 is constant at every layer at once.",
        "theorem1_stack.reduced": "JoMA Sec. 3 at any depth | With all attention integrated out, the "
        "weights of a deep stack take the course of the full one.",
    },
    exact=True,
)


def course(
    depth: int, seed: int, *, reduced: bool = False, through: bool = False
) -> stack_flow.StackTrajectory:
    """A stack of so many layers on 12 random samples of three classes."""
    rng = np.random.default_rng(100 + seed)
    x, labels = rng.dirichlet(np.ones(6), 12) * 3, rng.integers(0, 3, 12)
    layers = random_stack((*WIDTHS[:depth], 3), (*GROUPS[: depth - 1], 1), seed)
    return stack_flow.solve(
        layers,
        x,
        labels,
        activation("softplus"),
        TIMES,
        reduced=reduced,
        through=through,
        weight_rate=RATES["weight_rate"],
        attention_rate=RATES["attention_rate"],
    )


def drift(flow: stack_flow.StackTrajectory, **rates: float) -> float:
    """Largest relative change of any layer's invariant along the course."""
    worst = 0.0
    for number in range(len(flow.layers[0])):
        value = np.array([invariant(now[number], **rates) for now in flow.layers])
        worst = max(worst, float(np.abs(value - value[0]).max() / max(1.0, float(np.abs(value).max()))))
    return worst


def theorem1_stack() -> list[Claim]:
    """Invariants up to depth four, and the reduced network."""
    full = {depth: course(depth, depth) for depth in (1, 2, 3, 4)}
    moved = min(
        float(np.abs(flow.layers[-1][number].logits - flow.layers[0][number].logits).max())
        for flow in full.values()
        for number in range(len(flow.layers[0]))
    )
    reduced, other = course(3, 3, reduced=True), course(3, 3, reduced=True, through=True)
    return [
        STATEMENTS["theorem1_stack.invariants"].judge(
            within_error(1e-9, max(drift(flow, **RATES) for flow in full.values())),
            null=min(drift(flow, weight_rate=1.0, attention_rate=0.35) for flow in full.values()),
            null_description="the same with half the rate of attention: an invariant that is none",
            evidence=f"depths 1 to 4, softplus, cross-entropy; logits of every layer move by {moved:.2g}",
        ),
        STATEMENTS["theorem1_stack.reduced"].judge(
            within_error(1e-8, np.abs(reduced.losses - full[3].losses).max()),
            null=np.abs(other.losses - full[3].losses).max(),
            null_description="the reduced network differentiated through its logits, another flow",
            evidence=f"loss in nats, three layers; it falls from {full[3].losses[0]:.3f} to "
            f"{full[3].losses[-1]:.3f}",
        ),
    ]


CHECKS: dict[str, Callable[[], list[Claim]]] = {"theorem1_stack": theorem1_stack}
